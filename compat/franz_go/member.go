package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	pollTimeout = 200 * time.Millisecond
	// franz-go waits this long before it sends a commit again that the broker called stale.
	staleCommitPause = 500 * time.Millisecond
	commitTimeout    = 20 * time.Second
	fencedTimeout    = 10 * time.Second
	maxPollRecords   = 100
)

type member struct {
	client  *kgo.Client
	history *history
	lines   chan struct{}
	// Signalled when partitions have been given up, in whichever way.
	dropped chan struct{}

	holdAfter int
	processed int

	// The poll loop and the callbacks of a rebalance both commit, never at the same time; the
	// mutex is for the reader of this program.
	mu          sync.Mutex
	uncommitted map[string]map[int32]kgo.EpochOffset
}

func runMember(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	m := &member{
		history:     newHistory(),
		lines:       make(chan struct{}, 16),
		dropped:     make(chan struct{}, 1),
		holdAfter:   o.holdAfter,
		uncommitted: make(map[string]map[int32]kgo.EpochOffset),
	}
	go m.readLines(stop)
	opts, err := clientOptions(o)
	if err != nil {
		return err
	}
	m.client, err = kgo.NewClient(append(opts,
		kgo.OnPartitionsAssigned(m.onAssigned),
		kgo.OnPartitionsRevoked(m.onRevoked),
		kgo.OnPartitionsLost(m.onLost),
	)...)
	if err != nil {
		return err
	}
	m.tell(event{Event: "started"})
	for ctx.Err() == nil {
		m.poll(ctx)
	}
	id, _ := m.client.GroupMetadata()
	m.client.CloseAllowingRebalance()
	if o.staticLeave {
		err = leaveForAWhile(o, id)
	}
	m.history.tell(event{Event: "closed"})
	return err
}

// The leave of a static member, with its instance id. That of franz-go 1.22.2 has none, and the
// broker, as Apache Kafka does, refuses it with INVALID_REQUEST.
func leaveForAWhile(o options, id string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(o.bootstrap))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	request := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	request.Group, request.MemberID, request.MemberEpoch = o.group, id, -2
	request.InstanceID = &o.instance
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(response.ErrorCode)
}

func (m *member) readLines(stop func()) {
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		m.lines <- struct{}{}
	}
	stop()
}

func (m *member) tell(e event) {
	if m.client != nil {
		e.Member, e.Epoch = m.client.GroupMetadata()
	}
	m.history.tell(e)
}

// One turn: poll, process, commit. Nothing is taken away before AllowRebalance.
func (m *member) poll(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, pollTimeout)
	fetches := m.client.PollRecords(limited, maxPollRecords)
	cancel()
	fetches.EachError(func(topic string, partition int32, err error) {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			m.tell(event{Event: "error", Error: err.Error()})
		}
	})
	fetches.EachPartition(m.process)
	if m.holdAfter > 0 && m.processed >= m.holdAfter && len(m.uncommitted) > 0 {
		m.holdAfter = 0
		m.tell(event{Event: "holding"})
		select {
		case <-m.lines:
		case <-ctx.Done():
		}
	}
	fenced := m.commit()
	select {
	case <-m.dropped:
	default:
	}
	m.client.AllowRebalance()
	if fenced {
		// The client learns it from its next heartbeat. Until then it would go on handing out
		// records of partitions that others own by now.
		select {
		case <-m.dropped:
		case <-time.After(fencedTimeout):
		case <-ctx.Done():
		}
	}
}

func (m *member) process(partition kgo.FetchTopicPartition) {
	records := partition.Records
	if len(records) == 0 {
		return
	}
	first, last := records[0], records[len(records)-1]
	// A branch has holes where the records of other branches are; each run is told by itself.
	for begin := 0; begin < len(records); {
		end := begin + 1
		for end < len(records) && records[end].Offset == records[end-1].Offset+1 {
			end++
		}
		m.tell(event{
			Event:      "processed",
			Partitions: []topicPartition{{first.Topic, first.Partition}},
			First:      records[begin].Offset,
			Last:       records[end-1].Offset,
		})
		begin = end
	}
	m.processed += len(records)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uncommitted[last.Topic] == nil {
		m.uncommitted[last.Topic] = make(map[int32]kgo.EpochOffset)
	}
	m.uncommitted[last.Topic][last.Partition] = kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1}
}

// Commits what was processed; returns whether the broker says that this is no member any more.
// What is refused for another reason stays for the next time.
func (m *member) commit() (fenced bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.uncommitted) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	_, epoch := m.client.GroupMetadata()
	began := time.Now()
	m.client.CommitOffsetsSync(ctx, m.uncommitted, func(
		_ *kgo.Client, request *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error,
	) {
		repeated := request.Generation != epoch && time.Since(began) >= staleCommitPause
		if err != nil {
			m.tell(event{Event: "refused", Offsets: m.offsets(), Error: err.Error(), Repeated: repeated})
			return
		}
		fenced = m.answered(response, repeated)
	})
	return fenced
}

func (m *member) answered(response *kmsg.OffsetCommitResponse, repeated bool) (fenced bool) {
	outcomes := make(map[int16][]partitionOffset)
	for _, topic := range response.Topics {
		for _, partition := range topic.Partitions {
			tp := topicPartition{topic.Topic, partition.Partition}
			offset := m.uncommitted[tp.topic][tp.partition].Offset
			outcomes[partition.ErrorCode] = append(outcomes[partition.ErrorCode], partitionOffset{tp, offset})
		}
	}
	for code, offsets := range outcomes {
		err := kerr.TypedErrorForCode(code)
		switch err {
		case nil:
			m.tell(event{Event: "committed", Offsets: offsets, Repeated: repeated})
			for _, each := range offsets {
				m.forget(each.topicPartition)
			}
			continue
		case kerr.UnknownMemberID, kerr.FencedMemberEpoch, kerr.FencedInstanceID:
			fenced = true
		}
		m.tell(event{Event: "refused", Offsets: offsets, Error: err.Message, Repeated: repeated})
	}
	return fenced
}

func (m *member) offsets() []partitionOffset {
	var all []partitionOffset
	for topic, partitions := range m.uncommitted {
		for partition, at := range partitions {
			all = append(all, partitionOffset{topicPartition{topic, partition}, at.Offset})
		}
	}
	slices.SortFunc(all, func(a, b partitionOffset) int {
		return compareTopicPartitions(a.topicPartition, b.topicPartition)
	})
	return all
}

func (m *member) forget(tp topicPartition) {
	delete(m.uncommitted[tp.topic], tp.partition)
	if len(m.uncommitted[tp.topic]) == 0 {
		delete(m.uncommitted, tp.topic)
	}
}

// Callbacks --------------------------------------------------------------------------------------

// franz-go also calls these when nothing changes for this member; that is not told.

func (m *member) onAssigned(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
	if partitions := flat(assigned); len(partitions) > 0 {
		m.tell(event{Event: "assigned", Partitions: partitions})
	}
}

func (m *member) onRevoked(_ context.Context, _ *kgo.Client, revoked map[string][]int32) {
	partitions := flat(revoked)
	if len(partitions) == 0 {
		return
	}
	m.commit()
	m.drop("revoked", partitions)
}

func (m *member) onLost(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	if partitions := flat(lost); len(partitions) > 0 {
		m.drop("lost", partitions)
	}
}

func (m *member) drop(how string, partitions []topicPartition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, each := range partitions {
		m.forget(each)
	}
	m.tell(event{Event: how, Partitions: partitions})
	select {
	case m.dropped <- struct{}{}:
	default:
	}
}
