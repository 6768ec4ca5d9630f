package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func (t *target) client(options ...kgo.Opt) (*kgo.Client, error) {
	base := []kgo.Opt{kgo.SeedBrokers(strings.Split(t.addresses, ",")...), kgo.ClientID("bench")}
	if t.authority != "" {
		config, err := t.trust()
		if err != nil {
			return nil, err
		}
		base = append(base, kgo.DialTLSConfig(config))
	}
	return kgo.NewClient(append(base, options...)...)
}

func runTopic(ctx context.Context, args []string) (report, error) {
	var t target
	f := flag.NewFlagSet("topic", flag.ExitOnError)
	t.flags(f)
	partitions := f.Int("partitions", 6, "partitions")
	replicas := f.Int("replicas", 1, "replication factor")
	prove := f.Bool("prove", false, "write to each partition, however many: up to 64 always are")
	remove := f.Bool("delete", false, "delete the topic")
	config := f.String("config", "", "settings: key=value,key=value")
	_ = f.Parse(args)
	ctx, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if *remove {
		_, err := admin.DeleteTopics(ctx, t.topic)
		return report{"deleted": t.topic}, err
	}
	settings := map[string]*string{}
	for pair := range strings.SplitSeq(*config, ",") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			settings[key] = &value
		}
	}
	start := time.Now()
	if _, err := admin.CreateTopic(ctx, int32(*partitions), int16(*replicas), settings, t.topic); err != nil {
		return nil, err
	}
	created := time.Since(start)
	// Metadata promises leaders early; a write to each partition proves them, and with several replicas all of these.
	acks := kgo.LeaderAck()
	if *replicas > 1 {
		acks = kgo.AllISRAcks()
	}
	writer, err := t.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RequiredAcks(acks), kgo.DisableIdempotentWrite())
	if err != nil {
		return nil, err
	}
	defer writer.Close()
	if *partitions <= 64 || *prove {
		probes := make([]*kgo.Record, *partitions)
		for partition := range probes {
			probes[partition] = &kgo.Record{Topic: t.topic, Partition: int32(partition), Value: make([]byte, 16)}
		}
		if err := writer.ProduceSync(ctx, probes...).FirstErr(); err != nil {
			return nil, fmt.Errorf("first write to each partition: %w", err)
		}
	}
	return report{
		"topic": t.topic, "created_s": rounded(created.Seconds(), 3), "seconds": rounded(time.Since(start).Seconds(), 3),
	}, nil
}

// writing holds the flags of commands that produce as an application does.
type writing struct {
	target
	acks    string
	batch   int
	linger  time.Duration
	size    int
	rate    float64
	seconds float64
	warm    float64
	records int64
	skip    int64
}

func (w *writing) flags(f *flag.FlagSet) {
	w.target.flags(f)
	f.StringVar(&w.acks, "acks", "1", "0, 1 or all (all is idempotent, as clients are by default)")
	f.IntVar(&w.batch, "batch", 16384, "largest batch in bytes")
	f.DurationVar(&w.linger, "linger", 5*time.Millisecond, "wait for a batch to fill")
	f.IntVar(&w.size, "size", 1024, "bytes of a record's value, at least 16")
	f.Float64Var(&w.rate, "rate", 0, "records per second; 0: as fast as it goes")
	f.Float64Var(&w.seconds, "secs", 10, "measured seconds")
	f.Float64Var(&w.warm, "warm", 1, "seconds before the measured ones")
	f.Int64Var(&w.records, "n", 0, "send so many records instead of so many seconds")
	f.Int64Var(&w.skip, "skip", 0, "with -n: so many of them before the measured ones")
}

func (w *writing) options() ([]kgo.Opt, error) {
	options := []kgo.Opt{
		kgo.ProducerBatchMaxBytes(int32(w.batch)), kgo.ProducerLinger(w.linger), kgo.MaxBufferedRecords(32768),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.StickyPartitioner()),
		kgo.RecordDeliveryTimeout(30 * time.Second),
	}
	plain := []kgo.Opt{kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(5)}
	switch w.acks {
	case "all":
		return append(options, kgo.RequiredAcks(kgo.AllISRAcks())), nil
	case "1":
		return append(append(options, plain...), kgo.RequiredAcks(kgo.LeaderAck())), nil
	case "0":
		return append(append(options, plain...), kgo.RequiredAcks(kgo.NoAck())), nil
	}
	return nil, fmt.Errorf("acks is 0, 1 or all, not %q", w.acks)
}

// noise is incompressible, and there is little of it, so that making records costs nothing while time runs.
func noise(size int) [][]byte {
	source := rand.New(rand.NewPCG(3, 5))
	values := make([][]byte, 64)
	for i := range values {
		values[i] = make([]byte, max(size, 16))
		for j := range values[i] {
			values[i][j] = byte(source.Uint32())
		}
	}
	return values
}

// pace hands out the moment each record is due: at a fixed rate by the clock (a stalled server does not delay what is due
// next, so its stall is seen in full), otherwise at once.
type pace struct {
	start time.Time
	rate  float64
}

func (p pace) next(i int64) time.Time {
	if p.rate <= 0 {
		return time.Now()
	}
	due := p.start.Add(time.Duration(float64(i) / p.rate * 1e9))
	if ahead := time.Until(due); ahead > 0 {
		time.Sleep(max(ahead, 500*time.Microsecond))
	}
	return due
}

func runProduce(ctx context.Context, args []string) (report, error) {
	var w writing
	f := flag.NewFlagSet("produce", flag.ExitOnError)
	w.flags(f)
	_ = f.Parse(args)
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	options, err := w.options()
	if err != nil {
		return nil, err
	}
	client, err := w.client(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	values := noise(w.size)
	if w.acks != "0" {
		if err := client.ProduceSync(ctx, &kgo.Record{Topic: w.topic, Value: values[0]}).FirstErr(); err != nil {
			return nil, err
		}
	}
	var measured latencies
	var acked, failed atomic.Int64
	var firstError atomic.Pointer[string]
	var counting atomic.Bool
	var flying sync.WaitGroup
	begin := pace{time.Now(), w.rate}
	warmUntil := begin.start.Add(time.Duration(w.warm * 1e9))
	until := warmUntil.Add(time.Duration(w.seconds * 1e9))
	from := w.read()
	for i := int64(0); ctx.Err() == nil; i++ {
		due := begin.next(i)
		if w.records > 0 && i >= w.records || w.records == 0 && due.After(until) {
			break
		}
		if !counting.Load() && (w.records == 0 && due.After(warmUntil) || w.records > 0 && i >= w.skip) {
			from = w.read()
			counting.Store(true)
		}
		flying.Add(1)
		client.Produce(ctx, &kgo.Record{Topic: w.topic, Value: values[i%int64(len(values))]}, func(_ *kgo.Record, err error) {
			defer flying.Done()
			if err != nil {
				text := err.Error()
				firstError.CompareAndSwap(nil, &text)
				failed.Add(1)
			} else if counting.Load() {
				acked.Add(1)
				measured.add(time.Since(due))
			}
		})
	}
	// What is acknowledged counts up to here: draining what is still buffered belongs to no rate.
	to, records := w.read(), acked.Load()
	if w.records > 0 {
		flying.Wait()
		to, records = w.read(), acked.Load()
	}
	flying.Wait()
	r := report{"records": records, "failed": failed.Load()}
	seconds := to.at.Sub(from.at).Seconds()
	r["per_s"] = rounded(float64(records)/seconds, 1)
	r["mib_per_s"] = rounded(float64(records)*float64(w.size)/seconds/(1<<20), 2)
	measured.into(r)
	w.costInto(r, from, to, records)
	if text := firstError.Load(); text != nil {
		return r, errors.New(*text)
	}
	return r, nil
}

func runConsume(ctx context.Context, args []string) (report, error) {
	var t target
	f := flag.NewFlagSet("consume", flag.ExitOnError)
	t.flags(f)
	fetch := f.Int("fetch", 50<<20, "largest answer in bytes (the Java client's default)")
	partitionFetch := f.Int("partition-fetch", 1<<20, "largest answer of one partition in bytes (the Java client's default)")
	seconds := f.Float64("secs", 0, "stop after this long; 0: at the end of the topic")
	_ = f.Parse(args)
	ctx, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	asking, err := t.client()
	if err != nil {
		return nil, err
	}
	ends, err := kadm.NewClient(asking).ListEndOffsets(ctx, t.topic)
	asking.Close()
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	left := map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			left[end.Partition] = end.Offset
		}
	})
	if len(left) == 0 {
		return nil, errors.New("nothing to read")
	}
	client, err := t.client(
		kgo.ConsumeTopics(t.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxBytes(int32(*fetch)), kgo.FetchMaxPartitionBytes(int32(*partitionFetch)),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	from := t.read()
	var records, size int64
	var first time.Duration
	for len(left) > 0 && (*seconds == 0 || time.Since(from.at).Seconds() < *seconds) {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return report{"records": records}, err
		}
		for _, e := range fetches.Errors() {
			return report{"records": records}, fmt.Errorf("partition %d: %w", e.Partition, e.Err)
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if first == 0 && len(p.Records) > 0 {
				first = time.Since(from.at)
			}
			for _, record := range p.Records {
				size += int64(len(record.Value))
			}
			records += int64(len(p.Records))
			if n := len(p.Records); n > 0 && p.Records[n-1].Offset+1 >= left[p.Partition] {
				delete(left, p.Partition)
			}
		})
	}
	to := t.read()
	took := to.at.Sub(from.at).Seconds()
	r := report{
		"records": records, "per_s": rounded(float64(records)/took, 1), "mib_per_s": rounded(float64(size)/took/(1<<20), 2),
		"first_ms": rounded(float64(first.Microseconds())/1000, 2),
	}
	t.costInto(r, from, to, records)
	return r, nil
}

// runEndToEnd produces at a fixed rate and measures until the same process has consumed the record.
func runEndToEnd(ctx context.Context, args []string) (report, error) {
	var w writing
	f := flag.NewFlagSet("e2e", flag.ExitOnError)
	w.flags(f)
	_ = f.Parse(args)
	if w.rate <= 0 {
		w.rate = 1000
	}
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	options, err := w.options()
	if err != nil {
		return nil, err
	}
	writer, err := w.client(options...)
	if err != nil {
		return nil, err
	}
	defer writer.Close()
	reader, err := w.client(kgo.ConsumeTopics(w.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var acked, delivered latencies
	var got, sent, failed atomic.Int64
	var measureFrom atomic.Int64 // nanoseconds of the clock; records due before are warm-up
	measureFrom.Store(1<<63 - 1)
	go func() {
		for ctx.Err() == nil {
			fetches := reader.PollFetches(ctx)
			now := time.Now()
			fetches.EachRecord(func(record *kgo.Record) {
				if due := int64(binary.BigEndian.Uint64(record.Value)); due >= measureFrom.Load() {
					delivered.add(now.Sub(time.Unix(0, due)))
					got.Add(1)
				}
			})
		}
	}()
	value := noise(w.size)[0]
	begin := pace{time.Now(), w.rate}
	warmUntil := begin.start.Add(time.Duration(w.warm * 1e9))
	until := warmUntil.Add(time.Duration(w.seconds * 1e9))
	from := w.read()
	warming := true
	var flying sync.WaitGroup
	for i := int64(0); ctx.Err() == nil; i++ {
		due := begin.next(i)
		if due.After(until) {
			break
		}
		if warming && due.After(warmUntil) {
			from, warming = w.read(), false
			measureFrom.Store(due.UnixNano())
		}
		stamped := append([]byte(nil), value...)
		binary.BigEndian.PutUint64(stamped, uint64(due.UnixNano()))
		counted := !warming
		if counted {
			sent.Add(1)
		}
		flying.Add(1)
		writer.Produce(ctx, &kgo.Record{Topic: w.topic, Value: stamped}, func(_ *kgo.Record, err error) {
			defer flying.Done()
			if err != nil {
				failed.Add(1)
			} else if counted {
				acked.add(time.Since(due))
			}
		})
	}
	flying.Wait()
	for deadline := time.Now().Add(10 * time.Second); got.Load() < sent.Load()-failed.Load() && time.Now().Before(deadline); {
		time.Sleep(2 * time.Millisecond)
	}
	to := w.read()
	r := report{"sent": sent.Load(), "failed": failed.Load(), "received": got.Load(), "rate": w.rate}
	r["ack_p50_ms"], r["ack_p99_ms"] = acked.quantileMs(0.5), acked.quantileMs(0.99)
	delivered.into(r)
	w.costInto(r, from, to, sent.Load())
	if got.Load() < sent.Load() {
		return r, fmt.Errorf("%d of %d records were not delivered", sent.Load()-got.Load(), sent.Load())
	}
	return r, nil
}
