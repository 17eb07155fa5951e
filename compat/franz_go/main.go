// One member of a group in a process of its own, which tells what happens to it as JSON lines.
//
//	member [flags] TOPIC...                    a member, until SIGTERM or the end of stdin
//	member -describe -group G -bootstrap B     what the broker says about a consumer group
//	member -walk N -bootstrap B TOPIC          the first N records of all its partitions, and more
//	                                           if there are any
//
// With -regex every TOPIC is a regular expression. -protocol consumer asks for KIP-848 with the
// server's assignor of the same name as -balancer; -protocol classic uses the client's balancer.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type options struct {
	bootstrap   string
	group       string
	protocol    string
	balancer    string
	instance    string
	regex       bool
	sessionMs   int
	heartbeatMs int
	staticLeave bool
	holdAfter   int
	walk        int
	committed   bool
	fetchBytes  int
	topics      []string
}

func main() {
	var o options
	flag.StringVar(&o.bootstrap, "bootstrap", "", "HOST:PORT of a broker")
	flag.StringVar(&o.group, "group", "", "the group to be a member of")
	flag.StringVar(&o.protocol, "protocol", "consumer", "consumer (KIP-848) or classic")
	flag.StringVar(&o.balancer, "balancer", "sticky", "sticky, cooperative-sticky or range")
	flag.StringVar(&o.instance, "instance", "", "group.instance.id of a static member")
	flag.BoolVar(&o.staticLeave, "static-leave", false, "leave with the instance id, which franz-go forgets")
	flag.BoolVar(&o.regex, "regex", false, "the topics are regular expressions")
	flag.IntVar(&o.sessionMs, "session-ms", 3000, "session timeout of the classic protocol")
	flag.IntVar(&o.heartbeatMs, "heartbeat-ms", 300, "heartbeat interval of the classic protocol")
	flag.IntVar(&o.holdAfter, "hold-after", 0, "after so many records, wait for a line before the commit")
	flag.IntVar(&o.walk, "walk", 0, "print so many records of a topic, without a group")
	flag.BoolVar(&o.committed, "committed", false, "walk with read_committed")
	flag.IntVar(&o.fetchBytes, "fetch-bytes", 0, "walk with this limit for each partition")
	describe := flag.Bool("describe", false, "print the broker's description of the group")
	flag.Parse()
	o.topics = flag.Args()

	run := runMember
	if *describe {
		run = describeGroup
	} else if o.walk > 0 {
		run = walkTopic
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "member:", err)
		os.Exit(1)
	}
}

func clientOptions(o options) ([]kgo.Opt, error) {
	balancers := map[string]kgo.GroupBalancer{
		"sticky":             kgo.StickyBalancer(),
		"cooperative-sticky": kgo.CooperativeStickyBalancer(),
		"range":              kgo.RangeBalancer(),
	}
	balancer, known := balancers[o.balancer]
	if !known {
		return nil, fmt.Errorf("no balancer has the name %q", o.balancer)
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.bootstrap),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelInfo, timestamp)),
		// New topics have to be found while a check waits for them.
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.ConsumerGroup(o.group),
		kgo.ConsumeTopics(o.topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(balancer),
		kgo.DisableAutoCommit(),
		// What was polled is processed and committed before a partition can be taken away.
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.SessionTimeout(time.Duration(o.sessionMs) * time.Millisecond),
		kgo.HeartbeatInterval(time.Duration(o.heartbeatMs) * time.Millisecond),
	}
	switch o.protocol {
	case "consumer":
		opts = append(opts, kgo.ServerSideBalancer())
	case "classic":
	default:
		return nil, fmt.Errorf("no group protocol has the name %q", o.protocol)
	}
	if o.instance != "" {
		opts = append(opts, kgo.InstanceID(o.instance))
	}
	if o.regex {
		opts = append(opts, kgo.ConsumeRegex())
	}
	return opts, nil
}

// The client's log has the clock of the history.
func timestamp() string { return fmt.Sprintf("%.3f ", monotonicSeconds()) }
