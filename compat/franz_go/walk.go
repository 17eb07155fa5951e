package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	walkTimeout = 30 * time.Second
	// So long it looks for records beyond those that it was asked for.
	extraTimeout = 400 * time.Millisecond
)

// A record as the client gave it; keys and values are base64, and null is not the empty one.
type shownRecord struct {
	Partition     int32    `json:"partition"`
	Offset        int64    `json:"offset"`
	Key           []byte   `json:"key"`
	Value         []byte   `json:"value"`
	Headers       []string `json:"headers"`
	TimestampMs   int64    `json:"timestamp_ms"`
	TimestampType int8     `json:"timestamp_type"`
	LeaderEpoch   int32    `json:"leader_epoch"`
	ProducerID    int64    `json:"producer_id"`
	ProducerEpoch int16    `json:"producer_epoch"`
}

// Prints every record of a topic, by manual assignment from the beginning of each partition.
func walkTopic(o options) error {
	ctx, cancel := context.WithTimeout(context.Background(), walkTimeout)
	defer cancel()
	topic := o.topics[0]
	starts, err := startsOf(ctx, o.bootstrap, topic)
	if err != nil {
		return err
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.bootstrap),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts}),
	}
	if o.committed {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if o.fetchBytes > 0 {
		opts = append(opts, kgo.FetchMaxPartitionBytes(int32(o.fetchBytes)))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	encoder := json.NewEncoder(os.Stdout)
	for count := 0; count < o.walk; {
		if count, err = show(ctx, client, encoder, count); err != nil {
			return fmt.Errorf("after %d of %d records: %w", count, o.walk, err)
		}
	}
	extra, cancelExtra := context.WithTimeout(ctx, extraTimeout)
	defer cancelExtra()
	for extra.Err() == nil {
		if _, err = show(extra, client, encoder, 0); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return nil
}

func startsOf(ctx context.Context, bootstrap, topic string) (map[int32]kgo.Offset, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	request := kmsg.NewPtrMetadataRequest()
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = &topic
	request.Topics = append(request.Topics, asked)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	starts := make(map[int32]kgo.Offset)
	for _, partition := range response.Topics[0].Partitions {
		starts[partition.Partition] = kgo.NewOffset().AtStart()
	}
	if len(starts) == 0 {
		return nil, fmt.Errorf("topic %s has no partitions", topic)
	}
	return starts, nil
}

func show(ctx context.Context, client *kgo.Client, encoder *json.Encoder, count int) (int, error) {
	fetches := client.PollFetches(ctx)
	if problems := fetches.Errors(); len(problems) > 0 {
		return count, problems[0].Err
	}
	for _, record := range fetches.Records() {
		count++
		headers := []string{}
		for _, header := range record.Headers {
			headers = append(headers, fmt.Sprintf("%s=%q %t", header.Key, header.Value, header.Value == nil))
		}
		if err := encoder.Encode(shownRecord{
			Partition:     record.Partition,
			Offset:        record.Offset,
			Key:           record.Key,
			Value:         record.Value,
			Headers:       headers,
			TimestampMs:   record.Timestamp.UnixMilli(),
			TimestampType: record.Attrs.TimestampType(),
			LeaderEpoch:   record.LeaderEpoch,
			ProducerID:    record.ProducerID,
			ProducerEpoch: record.ProducerEpoch,
		}); err != nil {
			return count, err
		}
	}
	return count, nil
}
