package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

const clockMonotonic = 1

// The machine's monotonic clock, the same in every process (Go's own has no common origin).
func monotonicSeconds() float64 {
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	return float64(now.Sec) + float64(now.Nsec)/1e9
}

type topicPartition struct {
	topic     string
	partition int32
}

func (tp topicPartition) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{tp.topic, tp.partition})
}

type partitionOffset struct {
	topicPartition
	offset int64
}

func (po partitionOffset) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{po.topic, po.partition, po.offset})
}

func compareTopicPartitions(a, b topicPartition) int {
	if order := strings.Compare(a.topic, b.topic); order != 0 {
		return order
	}
	return int(a.partition) - int(b.partition)
}

// One line of the history. What the events mean:
//
//   - started and closed; error for what the client reports instead of records
//   - assigned, told before anything is done with the partitions; revoked and lost, told after
//     everything has been: between them the member owns
//   - processed, from its first to its last offset without a hole, before the commit
//   - committed, once the broker has confirmed; refused, when it has not
//   - holding, when the member waits for its line on stdin
type event struct {
	Event      string            `json:"event"`
	At         float64           `json:"at"`
	Member     string            `json:"member"`
	Epoch      int32             `json:"epoch"`
	Partitions []topicPartition  `json:"partitions,omitempty"`
	Offsets    []partitionOffset `json:"offsets,omitempty"`
	First      int64             `json:"first"`
	Last       int64             `json:"last"`
	// A commit that franz-go had to send again with a newer epoch: the broker had called it stale.
	Repeated bool   `json:"repeated,omitempty"`
	Error    string `json:"error,omitempty"`
}

type history struct {
	mu      sync.Mutex
	encoder *json.Encoder
}

func newHistory() *history { return &history{encoder: json.NewEncoder(os.Stdout)} }

func (h *history) tell(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.At = monotonicSeconds()
	if err := h.encoder.Encode(e); err != nil {
		// Nobody listens any more.
		os.Exit(1)
	}
}

func flat(partitions map[string][]int32) []topicPartition {
	var all []topicPartition
	for topic, numbers := range partitions {
		for _, number := range numbers {
			all = append(all, topicPartition{topic, number})
		}
	}
	slices.SortFunc(all, compareTopicPartitions)
	return all
}
