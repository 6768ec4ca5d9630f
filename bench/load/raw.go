package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// pipelined holds the flags of commands that keep a number of requests in flight on each of several connections.
type pipelined struct {
	target
	connections int
	inFlight    int
	partitions  int
	size        int
	seconds     float64
	warm        float64
	rate        float64
	check       bool
	echoed      bool
	spread      bool
	each        int64
}

func (p *pipelined) flags(f *flag.FlagSet) {
	p.target.flags(f)
	f.IntVar(&p.connections, "conns", 8, "connections")
	f.IntVar(&p.inFlight, "inflight", 5, "requests in flight on each connection")
	f.IntVar(&p.partitions, "partitions", 6, "partitions, used in turn")
	f.IntVar(&p.size, "size", 65536, "bytes of the batch in each request")
	f.Float64Var(&p.seconds, "secs", 5, "measured seconds")
	f.Float64Var(&p.warm, "warm", 1, "seconds before the measured ones")
	f.Float64Var(&p.rate, "rate", 0, "requests per second over all connections; 0: as fast as they are answered")
	f.Int64Var(&p.each, "n", 0, "send so many requests on each connection, instead of for so many seconds")
	f.BoolVar(&p.echoed, "echoed", false, "the peer sends each request back as it is: no answer of its own to look at")
	f.BoolVar(&p.spread, "spread", false, "ask who leads: each connection goes to one of the leaders, and to its partitions alone")
	f.BoolVar(&p.check, "check", true, "look at the error code of each answer (off for a peer that only echoes)")
}

// lane is one connection. Its writer sends as many requests as are free in one call; its reader frees them.
type lane struct {
	run     *pipelinedRun
	number  int
	conn    net.Conn
	free    chan int
	sentAt  []int64 // by correlation id modulo inFlight
	request frame
	shards  []uint32 // used in turn
}

type pipelinedRun struct {
	*pipelined
	counting  atomic.Bool
	stopping  atomic.Bool
	answered  atomic.Int64
	measured  latencies
	firstErr  atomic.Pointer[string]
	origin    time.Time
	offsetOf  func(sequence uint32) int64
	minAnswer int
	judge     func(answer []byte) error
}

func (r *pipelinedRun) fail(err error) {
	if !r.stopping.Load() {
		text := err.Error()
		r.firstErr.CompareAndSwap(nil, &text)
		r.stopping.Store(true)
	}
}

// correlationAt is where the correlation id stands behind the size: a request has its key and version before it.
func (r *pipelinedRun) correlationAt() int {
	if r.echoed {
		return 4
	}
	return 0
}

const smallFrame = 8 << 10

func (l *lane) write() {
	var sequence uint32
	size := len(l.request.bytes)
	together := 1
	if size <= smallFrame {
		together = l.run.inFlight
	}
	buffer := make([]byte, 0, together*size)
	perLane := l.run.rate / float64(l.run.connections)
	for !l.run.stopping.Load() {
		granted, ok := <-l.free
		if !ok {
			return
		}
		for more := true; more; { // take every slot that is free by now
			select {
			case n := <-l.free:
				granted += n
			default:
				more = false
			}
		}
		for granted > 0 {
			now := time.Since(l.run.origin).Nanoseconds()
			if perLane > 0 {
				due := int64(float64(sequence) / perLane * 1e9)
				if ahead := time.Duration(due - now); ahead > 0 {
					time.Sleep(ahead)
				}
				now = due
			}
			n := min(granted, together)
			if l.run.each > 0 {
				n = min(n, int(l.run.each-int64(sequence)))
			}
			if n == 0 {
				return
			}
			if perLane > 0 {
				n = 1
			}
			buffer = buffer[:0]
			for range n {
				atomic.StoreInt64(&l.sentAt[sequence%uint32(l.run.inFlight)], now)
				partition := l.shards[(uint32(l.number)+sequence)%uint32(len(l.shards))]
				l.request.stamp(sequence, partition, l.run.offsetOf(sequence))
				buffer = append(buffer, l.request.bytes...)
				sequence++
			}
			if _, err := l.conn.Write(buffer); err != nil {
				l.run.fail(fmt.Errorf("write: %w", err))
				return
			}
			granted -= n
		}
	}
}

func (l *lane) read(done *sync.WaitGroup) {
	defer done.Done()
	defer close(l.free)
	in := bufio.NewReaderSize(l.conn, 256<<10)
	head := make([]byte, 4)
	body := make([]byte, 256)
	freed := 0
	for answers := int64(0); l.run.each == 0 || answers < l.run.each; answers++ {
		if in.Buffered() < 4 && freed > 0 {
			l.free <- freed // nothing more to take without waiting: hand over what was gathered
			freed = 0
		}
		if _, err := io.ReadFull(in, head); err != nil {
			l.run.fail(fmt.Errorf("read: %w", err))
			return
		}
		size := int(binary.BigEndian.Uint32(head))
		part := min(size, len(body))
		if _, err := io.ReadFull(in, body[:part]); err != nil {
			l.run.fail(fmt.Errorf("read: %w", err))
			return
		}
		if _, err := in.Discard(size - part); err != nil {
			l.run.fail(fmt.Errorf("read: %w", err))
			return
		}
		if size < l.run.minAnswer {
			l.run.fail(fmt.Errorf("an answer of %d bytes where %d were expected: %x", size, l.run.minAnswer, body[:min(part, 64)]))
			return
		}
		if l.run.check && !l.run.echoed {
			if err := l.run.judge(body[:part]); err != nil {
				l.run.fail(err)
				return
			}
		}
		if l.run.counting.Load() {
			correlation := binary.BigEndian.Uint32(body[l.run.correlationAt():])
			sent := atomic.LoadInt64(&l.sentAt[correlation%uint32(l.run.inFlight)])
			l.run.measured.add(time.Duration(time.Since(l.run.origin).Nanoseconds() - sent))
			l.run.answered.Add(1)
		}
		freed++
	}
}

// drive runs all lanes, and measures after the warm-up.
func (r *pipelinedRun) drive(ctx context.Context, request frame) (report, error) {
	var readers sync.WaitGroup
	r.origin = time.Now()
	r.counting.Store(r.each > 0)
	servers := []served{{r.addresses, nil}}
	for partition := range r.partitions {
		servers[0].shards = append(servers[0].shards, uint32(partition))
	}
	if r.spread {
		var err error
		if servers, err = r.leaders(ctx); err != nil {
			return nil, err
		}
	}
	lanes := make([]*lane, r.connections)
	for i := range lanes {
		server := servers[i%len(servers)]
		conn, err := r.dial(server.address)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		own := request
		own.bytes = append([]byte(nil), request.bytes...)
		lanes[i] = &lane{run: r, number: i, conn: conn, free: make(chan int, r.inFlight+1), sentAt: make([]int64, r.inFlight), request: own, shards: server.shards}
		lanes[i].free <- r.inFlight
	}
	for _, l := range lanes {
		readers.Add(1)
		go l.read(&readers)
		go l.write()
	}
	wait := func(seconds float64) {
		for end := time.Now().Add(time.Duration(seconds * 1e9)); time.Now().Before(end) && ctx.Err() == nil && !r.stopping.Load(); {
			time.Sleep(min(time.Until(end), 20*time.Millisecond))
		}
	}
	if r.each == 0 {
		wait(r.warm)
	}
	from := r.target.read()
	r.counting.Store(true)
	if r.each > 0 {
		done := make(chan struct{})
		go func() { readers.Wait(); close(done) }()
		for running := true; running && ctx.Err() == nil && !r.stopping.Load(); {
			select {
			case <-done:
				running = false
			case <-time.After(50 * time.Millisecond):
			}
		}
	} else {
		wait(r.seconds)
	}
	r.counting.Store(false)
	to, answered := r.target.read(), r.answered.Load()
	r.stopping.Store(true)
	for _, l := range lanes {
		_ = l.conn.Close()
	}
	readers.Wait()
	seconds := to.at.Sub(from.at).Seconds()
	result := report{
		"requests": answered, "per_s": rounded(float64(answered)/seconds, 1),
		"mib_per_s": rounded(float64(answered)*float64(r.size)/seconds/(1<<20), 2),
	}
	r.measured.into(result)
	r.costInto(result, from, to, answered)
	if text := r.firstErr.Load(); text != nil {
		return result, errors.New(*text)
	}
	return result, nil
}

func runRawProduce(ctx context.Context, args []string) (report, error) {
	var p pipelined
	f := flag.NewFlagSet("raw-produce", flag.ExitOnError)
	p.flags(f)
	acks := f.Int("acks", 1, "1 or -1")
	_ = f.Parse(args)
	batch, _ := batchOf(p.size)
	run := &pipelinedRun{pipelined: &p, offsetOf: func(uint32) int64 { return 0 }, minAnswer: 4}
	run.judge = func(answer []byte) error {
		if code := produceError(answer, p.topic); code != 0 {
			return fmt.Errorf("error %d in an answer to Produce", code)
		}
		return nil
	}
	return run.drive(ctx, produceFrame(p.topic, int16(*acks), batch))
}

func runRawFetch(ctx context.Context, args []string) (report, error) {
	var p pipelined
	f := flag.NewFlagSet("raw-fetch", flag.ExitOnError)
	p.flags(f)
	batches := f.Int64("batches", 1, "batches of -size that raw-produce left in each partition, read in turn")
	first := f.Int64("first", 0, "offset of the first of them")
	_ = f.Parse(args)
	batch, records := batchOf(p.size)
	run := &pipelinedRun{pipelined: &p, judge: func([]byte) error { return nil }}
	run.offsetOf = func(sequence uint32) int64 {
		return *first + int64(sequence)/int64(p.partitions)%*batches*int64(records)
	}
	if p.check {
		run.minAnswer = len(batch)
	}
	return run.drive(ctx, fetchFrame(p.topic, len(batch)))
}
