package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const lookEach = 20 * time.Millisecond

// runReassign places the replicas of a topic on other nodes, as Kafka does it, and waits until nothing is being copied
// and each partition is led by the first of its nodes.
func runReassign(ctx context.Context, args []string) (report, error) {
	var t target
	f := flag.NewFlagSet("reassign", flag.ExitOnError)
	t.flags(f)
	to := f.String("to", "", "ids of the nodes, comma separated")
	replicas := f.Int("replicas", 1, "replicas of each partition")
	_ = f.Parse(args)
	ctx, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	nodes, err := numbers(*to)
	if err != nil || len(nodes) < *replicas {
		return nil, fmt.Errorf("-to %q names too few nodes for %d replicas: %w", *to, *replicas, err)
	}
	client, err := t.client(kgo.MetadataMinAge(lookEach))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(ctx, t.topic)
	if err != nil {
		return nil, err
	}
	var wanted kadm.AlterPartitionAssignmentsReq
	leaders := map[int32]int32{}
	for number, partition := range topics[t.topic].Partitions.Sorted() {
		chosen := make([]int32, 0, *replicas)
		for offset := range *replicas {
			chosen = append(chosen, nodes[(number+offset)%len(nodes)])
		}
		wanted.Assign(t.topic, partition.Partition, chosen)
		leaders[partition.Partition] = chosen[0]
	}
	start := time.Now()
	answers, err := admin.AlterPartitionAssignments(ctx, wanted)
	if err != nil {
		return nil, err
	}
	if err := answers.Error(); err != nil {
		return nil, err
	}
	if err := moved(ctx, admin, t.topic, leaders); err != nil {
		return nil, err
	}
	return report{"seconds": rounded(time.Since(start).Seconds(), 3)}, nil
}

// moved returns once no replica is being added or removed, and all wanted leaders lead.
func moved(ctx context.Context, admin *kadm.Client, topic string, leaders map[int32]int32) error {
	set := kadm.TopicsSet{}
	for partition := range leaders {
		set.Add(topic, partition)
	}
	for ; ; time.Sleep(lookEach) {
		under, err := admin.ListPartitionReassignments(ctx, set)
		if err != nil {
			return err
		}
		if len(under[topic]) > 0 {
			continue
		}
		if _, err := admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, set); err != nil {
			return err
		}
		topics, err := admin.ListTopics(ctx, topic)
		if err != nil {
			return err
		}
		left := 0
		for partition, leader := range leaders {
			if topics[topic].Partitions[partition].Leader != leader {
				left++
			}
		}
		if left == 0 {
			return nil
		}
	}
}

// runWriteEach writes one record to each partition of a topic, and tells when the last was acknowledged.
func runWriteEach(ctx context.Context, args []string) (report, error) {
	var t target
	f := flag.NewFlagSet("write-each", flag.ExitOnError)
	t.flags(f)
	patience := f.Duration("patience", time.Second, "of the client with one request")
	ledBy := f.Int("led-by", -1, "only partitions that this node leads now")
	_ = f.Parse(args)
	ctx, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	client, err := t.client(
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
		kgo.ProduceRequestTimeout(*patience), kgo.RequestTimeoutOverhead(*patience), kgo.DialTimeout(*patience),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.UnknownTopicRetries(-1), kgo.DisableIdempotentWrite(),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	topics, err := kadm.NewClient(client).ListTopics(ctx, t.topic)
	if err != nil {
		return nil, err
	}
	var probes []*kgo.Record
	for _, partition := range topics[t.topic].Partitions.Sorted() {
		if *ledBy < 0 || int(partition.Leader) == *ledBy {
			probes = append(probes, &kgo.Record{Topic: t.topic, Partition: partition.Partition, Value: make([]byte, 16)})
		}
	}
	if len(probes) == 0 {
		return nil, errors.New("no such partition")
	}
	start := time.Now()
	if err := client.ProduceSync(ctx, probes...).FirstErr(); err != nil {
		return nil, err
	}
	return report{"seconds": rounded(time.Since(start).Seconds(), 3), "partitions": len(probes)}, nil
}

// runLeads waits until a node leads a partition of the topic and has acknowledged a record in it.
func runLeads(ctx context.Context, args []string) (report, error) {
	var t target
	f := flag.NewFlagSet("leads", flag.ExitOnError)
	t.flags(f)
	node := f.Int("node", 0, "the node")
	_ = f.Parse(args)
	ctx, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	client, err := t.client(
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
		kgo.RetryBackoffFn(func(int) time.Duration { return lookEach }), kgo.MetadataMinAge(lookEach),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	for start := time.Now(); ; time.Sleep(lookEach) {
		topics, err := admin.ListTopics(ctx, t.topic)
		if err != nil {
			return nil, err
		}
		for _, partition := range topics[t.topic].Partitions.Sorted() {
			if int(partition.Leader) != *node {
				continue
			}
			record := &kgo.Record{Topic: t.topic, Partition: partition.Partition, Value: make([]byte, 1024)}
			if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
				return nil, err
			}
			return report{"seconds": rounded(time.Since(start).Seconds(), 3)}, nil
		}
	}
}

// runFirstRead reads one record at an offset of each partition, again and again until each has given one.
func runFirstRead(ctx context.Context, args []string) (report, error) {
	var t target
	f := flag.NewFlagSet("first-read", flag.ExitOnError)
	t.flags(f)
	_ = f.Parse(args)
	ctx, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	plain, err := t.client()
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	starts, err := kadm.NewClient(plain).ListStartOffsets(ctx, t.topic)
	if err != nil {
		return nil, err
	}
	if err := starts.Error(); err != nil {
		return nil, err
	}
	start := time.Now()
	client, err := t.client(
		kgo.ConsumePartitions(starts.KOffsets()), kgo.FetchMaxPartitionBytes(64<<10), kgo.MetadataMinAge(lookEach),
		kgo.RetryBackoffFn(func(int) time.Duration { return lookEach }),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	missing := map[int32]bool{}
	for partition := range starts[t.topic] {
		missing[partition] = true
	}
	count := len(missing)
	for len(missing) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%d of %d partitions gave nothing", len(missing), count)
		}
		fetches.EachRecord(func(record *kgo.Record) { delete(missing, record.Partition) })
	}
	return report{"seconds": rounded(time.Since(start).Seconds(), 3), "partitions": count}, nil
}

func numbers(list string) ([]int32, error) {
	var found []int32
	for word := range strings.SplitSeq(list, ",") {
		number, err := strconv.ParseInt(word, 10, 32)
		if err != nil {
			return nil, err
		}
		found = append(found, int32(number))
	}
	return found, nil
}
