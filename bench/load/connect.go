package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// trust is how the client checks the server's certificate.
func (t *target) trust() (*tls.Config, error) {
	content, err := os.ReadFile(t.authority)
	if err != nil {
		return nil, err
	}
	known := x509.NewCertPool()
	if !known.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("no certificate in %s", t.authority)
	}
	return &tls.Config{RootCAs: known, MinVersion: tls.VersionTLS12}, nil
}

// dial opens a connection of TCP, or of TLS where the target has an authority; its handshake is done.
func (t *target) dial(address string) (net.Conn, error) {
	if t.authority == "" {
		return net.Dial("tcp", address)
	}
	config, err := t.trust()
	if err != nil {
		return nil, err
	}
	return tls.Dial("tcp", address, config)
}

// apiVersions asks by the oldest version, which every server answers, and waits for the answer.
func apiVersions(conn net.Conn) error {
	request := binary.BigEndian.AppendUint32(nil, 15)
	request = binary.BigEndian.AppendUint16(request, 18)
	request = binary.BigEndian.AppendUint16(request, 0)
	request = binary.BigEndian.AppendUint32(request, 1)
	request = binary.BigEndian.AppendUint16(request, 5)
	if _, err := conn.Write(append(request, "bench"...)); err != nil {
		return err
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(head)))
	return err
}

// runConnect opens connections one after the other on several lanes: each asks one question and is closed.
func runConnect(ctx context.Context, args []string) (report, error) {
	var t target
	f := flag.NewFlagSet("connect", flag.ExitOnError)
	t.flags(f)
	lanes := f.Int("lanes", 16, "connections that are opened at the same time")
	seconds := f.Float64("secs", 5, "measured seconds")
	warm := f.Float64("warm", 1, "seconds before the measured ones")
	_ = f.Parse(args)
	var config *tls.Config
	if t.authority != "" {
		var err error
		if config, err = t.trust(); err != nil {
			return nil, err
		}
	}
	var counting, stopping atomic.Bool
	var opened atomic.Int64
	var took latencies
	var firstError atomic.Pointer[string]
	one := func() error {
		var conn net.Conn
		var err error
		if config == nil {
			conn, err = net.Dial("tcp", t.addresses)
		} else {
			conn, err = tls.Dial("tcp", t.addresses, config)
		}
		if err != nil {
			return err
		}
		defer conn.Close()
		return apiVersions(conn)
	}
	var running sync.WaitGroup
	for range *lanes {
		running.Add(1)
		go func() {
			defer running.Done()
			for !stopping.Load() && ctx.Err() == nil {
				begin := time.Now()
				if err := one(); err != nil {
					text := err.Error()
					firstError.CompareAndSwap(nil, &text)
					return
				}
				if counting.Load() {
					opened.Add(1)
					took.add(time.Since(begin))
				}
			}
		}()
	}
	time.Sleep(time.Duration(*warm * 1e9))
	from := t.read()
	counting.Store(true)
	time.Sleep(time.Duration(*seconds * 1e9))
	counting.Store(false)
	to, count := t.read(), opened.Load()
	stopping.Store(true)
	running.Wait()
	r := report{"connections": count, "per_s": rounded(float64(count)/to.at.Sub(from.at).Seconds(), 1)}
	took.into(r)
	t.costInto(r, from, to, count)
	if text := firstError.Load(); text != nil {
		return r, errors.New(*text)
	}
	return r, nil
}
