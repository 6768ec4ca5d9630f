package main

import (
	"math"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// latencies counts nanoseconds in buckets that grow by powers of two, each split in 64, so that a quantile is wrong by less
// than 1.6 %. Safe for concurrent use.
type latencies struct {
	counts [64 * 48]atomic.Int64
	total  atomic.Int64
}

const perPower = 64

func bucketOf(ns int64) int {
	if ns < perPower {
		return int(max(ns, 0))
	}
	shift := bits.Len64(uint64(ns)) - 7 // ns>>shift is in [64, 128)
	return min(perPower*(shift+1)+int(ns>>shift)-perPower, perPower*48-1)
}

func upperEdge(bucket int) int64 {
	if bucket < perPower {
		return int64(bucket)
	}
	shift := bucket/perPower - 1
	return (int64(bucket%perPower+perPower)+1)<<shift - 1
}

func (l *latencies) add(d time.Duration) {
	l.counts[bucketOf(d.Nanoseconds())].Add(1)
	l.total.Add(1)
}

func (l *latencies) quantileMs(q float64) float64 {
	wanted := int64(math.Ceil(q * float64(l.total.Load())))
	var seen int64
	for bucket := range l.counts {
		if seen += l.counts[bucket].Load(); seen >= wanted && seen > 0 {
			return rounded(float64(upperEdge(bucket))/1e6, 3)
		}
	}
	return 0
}

func (l *latencies) into(r report) {
	if l.total.Load() > 0 {
		r["p50_ms"], r["p99_ms"], r["p999_ms"] = l.quantileMs(0.5), l.quantileMs(0.99), l.quantileMs(0.999)
		r["max_ms"] = l.quantileMs(1)
	}
}

func rounded(x float64, digits int) float64 {
	power := math.Pow10(digits)
	return math.Round(x*power) / power
}

// reading is a moment with the CPU seconds spent until then.
type reading struct {
	at                       time.Time
	client, servers, machine float64
}

const clockTicks = 100 // USER_HZ, fixed on Linux

func fields(path string) []string {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	text := string(content)
	return strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // a process name may hold blanks
}

func numberAt(values []string, index int) float64 {
	if index >= len(values) {
		return 0
	}
	value, _ := strconv.ParseFloat(values[index], 64)
	return value
}

func (t *target) serverPids() []string {
	return strings.FieldsFunc(t.pids, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' })
}

func (t *target) read() reading {
	now := reading{at: time.Now()}
	var own syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &own) == nil {
		now.client = float64(own.Utime.Nano()+own.Stime.Nano()) / 1e9
	}
	for _, pid := range t.serverPids() {
		stat := fields("/proc/" + pid + "/stat")
		now.servers += (numberAt(stat, 11) + numberAt(stat, 12)) / clockTicks
	}
	if content, err := os.ReadFile("/proc/stat"); err == nil {
		first, _, _ := strings.Cut(string(content), "\n")
		all := strings.Fields(first) // cpu user nice system idle iowait irq softirq steal
		for _, index := range []int{1, 2, 3, 6, 7, 8} {
			now.machine += numberAt(all, index) / clockTicks
		}
	}
	return now
}

// costInto adds seconds, CPU per unit of work (in microseconds) and the servers' memory. `other_cores` is what anybody else on the
// machine took: above about 0.3 the run was disturbed.
func (t *target) costInto(r report, from, to reading, units int64) {
	seconds := to.at.Sub(from.at).Seconds()
	client, servers := to.client-from.client, to.servers-from.servers
	each := 1e6 / math.Max(float64(units), 1)
	r["seconds"] = rounded(seconds, 3)
	r["client_cpu_us"] = rounded(client*each, 3)
	if len(t.serverPids()) == 0 {
		return
	}
	r["server_cpu_us"] = rounded(servers*each, 3)
	r["server_cpu_s"] = rounded(servers, 2)
	r["other_cores"] = rounded(math.Max(0, to.machine-from.machine-client-servers)/seconds, 2)
	var pages float64
	for _, pid := range t.serverPids() {
		pages += numberAt(fields("/proc/"+pid+"/statm"), 1)
	}
	r["server_rss_mib"] = rounded(pages*float64(os.Getpagesize())/(1<<20), 1)
}
