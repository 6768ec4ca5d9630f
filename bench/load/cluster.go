package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// served is a server and the partitions of the topic that it leads.
type served struct {
	address string
	shards  []uint32
}

// leaders are those of the topic's partitions, in the order of their ids.
func (t *target) leaders(ctx context.Context) ([]served, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found, err := kadm.NewClient(client).Metadata(ctx, t.topic)
	if err != nil {
		return nil, err
	}
	byNode := map[int32]*served{}
	for _, partition := range found.Topics[t.topic].Partitions.Sorted() {
		if partition.Err != nil {
			return nil, fmt.Errorf("partition %d: %w", partition.Partition, partition.Err)
		}
		if byNode[partition.Leader] == nil {
			for _, broker := range found.Brokers {
				if broker.NodeID == partition.Leader {
					byNode[partition.Leader] = &served{address: net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port)))}
				}
			}
		}
		if byNode[partition.Leader] == nil {
			return nil, fmt.Errorf("partition %d has no leader", partition.Partition)
		}
		byNode[partition.Leader].shards = append(byNode[partition.Leader].shards, uint32(partition.Partition))
	}
	ids := make([]int32, 0, len(byNode))
	for id := range byNode {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	servers := make([]served, 0, len(ids))
	for _, id := range ids {
		servers = append(servers, *byNode[id])
	}
	return servers, nil
}

// runFailover writes one record at a time with acks=all, as a client with short patience would, kills the leader, and
// tells how long it was until a write that began after the kill was acknowledged.
func runFailover(ctx context.Context, args []string) (report, error) {
	var t target
	f := flag.NewFlagSet("failover", flag.ExitOnError)
	t.flags(f)
	processes := f.String("kill", "", "node=process id, comma separated: the leader among them is killed")
	warm := f.Duration("warm", 2*time.Second, "write this long before the kill")
	patience := f.Duration("patience", 500*time.Millisecond, "of the client with one request")
	_ = f.Parse(args)
	ctx, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	client, err := t.client(
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
		kgo.ProduceRequestTimeout(*patience), kgo.RequestTimeoutOverhead(*patience), kgo.DialTimeout(*patience),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.MetadataMinAge(50*time.Millisecond), kgo.MetadataMaxAge(5*time.Second),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	value := noise(1024)[0]
	write := func() error {
		return client.ProduceSync(ctx, &kgo.Record{Topic: t.topic, Partition: 0, Value: value}).FirstErr()
	}
	for end := time.Now().Add(*warm); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if err := write(); err != nil {
			return nil, fmt.Errorf("before the kill: %w", err)
		}
	}
	leader, pid, err := t.leaderAmong(ctx, *processes)
	if err != nil {
		return nil, err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return nil, fmt.Errorf("kill: %w", err)
	}
	killed, failed := time.Now(), 0
	for {
		err := write()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("no write was acknowledged after the kill: %w", err)
		}
		failed++
	}
	return report{"killed": leader, "failed": failed, "seconds": rounded(time.Since(killed).Seconds(), 3)}, nil
}

func (t *target) leaderAmong(ctx context.Context, processes string) (int, int, error) {
	asking, err := t.client()
	if err != nil {
		return 0, 0, err
	}
	defer asking.Close()
	topics, err := kadm.NewClient(asking).ListTopics(ctx, t.topic)
	if err != nil {
		return 0, 0, err
	}
	leader := int(topics[t.topic].Partitions[0].Leader)
	for pair := range strings.SplitSeq(processes, ",") {
		if node, process, ok := strings.Cut(pair, "="); ok && node == strconv.Itoa(leader) {
			pid, err := strconv.Atoi(process)
			return leader, pid, err
		}
	}
	return 0, 0, errors.New("-kill names no process of node " + strconv.Itoa(leader))
}
