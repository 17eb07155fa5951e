package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type description struct {
	State           string              `json:"state"`
	Epoch           int32               `json:"epoch"`
	AssignmentEpoch int32               `json:"assignment_epoch"`
	Assignor        string              `json:"assignor"`
	Members         []memberDescription `json:"members"`
}

type memberDescription struct {
	ID         string           `json:"id"`
	Instance   *string          `json:"instance"`
	Epoch      int32            `json:"epoch"`
	Regex      *string          `json:"regex"`
	Assignment []topicPartition `json:"assignment"`
	Target     []topicPartition `json:"target"`
}

// ConsumerGroupDescribe as one JSON document: the group in the broker's words.
func describeGroup(o options) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(o.bootstrap))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request := kmsg.NewPtrConsumerGroupDescribeRequest()
	request.Groups = []string{o.group}
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	group := response.Groups[0]
	if err := kerr.ErrorForCode(group.ErrorCode); err != nil {
		return err
	}
	described := description{
		State:           group.State,
		Epoch:           group.Epoch,
		AssignmentEpoch: group.AssignmentEpoch,
		Assignor:        group.AssignorName,
		Members:         []memberDescription{},
	}
	for _, each := range group.Members {
		described.Members = append(described.Members, memberDescription{
			ID:         each.MemberID,
			Instance:   each.InstanceID,
			Epoch:      each.MemberEpoch,
			Regex:      each.SubscribedTopicRegex,
			Assignment: assigned(each.Assignment),
			Target:     assigned(each.TargetAssignment),
		})
	}
	return json.NewEncoder(os.Stdout).Encode(described)
}

func assigned(assignment kmsg.Assignment) []topicPartition {
	partitions := make(map[string][]int32)
	for _, each := range assignment.TopicPartitions {
		partitions[each.Topic] = each.Partitions
	}
	all := flat(partitions)
	if all == nil {
		all = []topicPartition{}
	}
	return all
}
