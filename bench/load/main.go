// Command load puts load on anything that speaks the Kafka protocol, and tells in one JSON object what came back.
//
// Two kinds of clients live here. `produce`, `consume` and `e2e` are a real client (franz-go): batches, linger, acks, as an
// application would see them. `raw-produce` and `raw-fetch` send requests that were built beforehand, each with exactly one
// batch of a given size, so that what is measured is the server's work per request and not the client's. `failover` writes
// one record after the other while it kills their leader.
//
// CPU time and memory of the servers named by -pids are read from /proc, at the beginning and at the end of the
// measured stretch only: warm-up is left out.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strings"
	"time"
)

// report is what a run prints.
type report map[string]any

// target holds the flags that every command has.
type target struct {
	addresses string
	topic     string
	pids      string
	authority string
	limit     time.Duration
}

func (t *target) flags(f *flag.FlagSet) {
	f.StringVar(&t.addresses, "b", "127.0.0.1:9092", "bootstrap addresses, comma separated")
	f.StringVar(&t.topic, "topic", "bench", "topic")
	f.StringVar(&t.pids, "pids", "", "process ids of the servers, comma separated")
	f.StringVar(&t.authority, "ca", "", "speak TLS, and trust the certificates in this file")
	f.DurationVar(&t.limit, "limit", 3*time.Minute, "give up after this long")
}

type command func(ctx context.Context, args []string) (report, error)

func main() {
	commands := map[string]command{
		"topic": runTopic, "produce": runProduce, "consume": runConsume, "e2e": runEndToEnd,
		"raw-produce": runRawProduce, "raw-fetch": runRawFetch, "failover": runFailover,
		"reassign": runReassign, "write-each": runWriteEach, "leads": runLeads, "first-read": runFirstRead, "connect": runConnect,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		names := make([]string, 0, len(commands))
		for name := range commands {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "usage: load %s [flags]; load COMMAND -h lists them\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	result, err := commands[os.Args[1]](ctx, os.Args[2:])
	if result == nil {
		result = report{}
	}
	if err != nil {
		result["error"] = err.Error()
	}
	if encodeErr := json.NewEncoder(os.Stdout).Encode(result); encodeErr != nil || err != nil {
		os.Exit(1)
	}
}
