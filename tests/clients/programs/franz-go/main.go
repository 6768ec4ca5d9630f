// A Kafka client as tests/support/client_programs.py describes it, by franz-go.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
	given := map[string]string{}
	for _, pair := range os.Args[1:] {
		key, value, _ := strings.Cut(pair, "=")
		given[key] = value
	}
	run := keepWriting
	if given["action"] == "copy" {
		run = copyInGroup
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := run(ctx, given); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

func options(given map[string]string) ([]kgo.Opt, error) {
	pem, err := os.ReadFile(given["ca"])
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: trusted}
	if given["certificate"] != "" {
		own, err := tls.LoadX509KeyPair(given["certificate"], given["key"])
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	found := []kgo.Opt{
		kgo.SeedBrokers(given["bootstrap"]),
		kgo.DialTLSConfig(config),
		kgo.RequestRetries(0),
		kgo.RecordRetries(0),
		kgo.RecordDeliveryTimeout(20 * time.Second),
	}
	if login := login(given); login != nil {
		found = append(found, kgo.SASL(login))
	}
	return found, nil
}

func login(given map[string]string) sasl.Mechanism {
	user, password := given["user"], given["password"]
	switch given["mechanism"] {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := os.ReadFile(given["token"])
			return oauth.Auth{Token: string(token)}, err
		})
	}
	return nil
}

func client(given map[string]string, more ...kgo.Opt) (*kgo.Client, error) {
	base, err := options(given)
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(append(base, more...)...)
}

func copyInGroup(ctx context.Context, given map[string]string) error {
	count, _ := strconv.Atoi(given["count"])
	writer, err := client(given)
	if err != nil {
		return err
	}
	for number := range count {
		record := &kgo.Record{Topic: given["topic"], Value: fmt.Appendf(nil, "value %d", number)}
		if err := writer.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
	}
	writer.Close()
	reader, err := client(
		given,
		kgo.ConsumeTopics(given["topic"]),
		kgo.ConsumerGroup(given["group"]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer reader.Close()
	for read := 0; read < count; {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			fmt.Println("read", string(record.Value))
			read++
		}
	}
	return nil
}

func keepWriting(ctx context.Context, given map[string]string) error {
	seconds, _ := strconv.Atoi(given["seconds"])
	writer, err := client(given)
	if err != nil {
		return err
	}
	defer writer.Close()
	count := 0
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); count++ {
		record := &kgo.Record{Topic: given["topic"], Value: fmt.Appendf(nil, "value %d", count)}
		if err := writer.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Println("wrote", count)
	return nil
}
