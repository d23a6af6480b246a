package outbox_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/outbox"
	"onceshop/pkg/postgres"
)

// TestMain is also the main function of the relay processes that tests start: this very program.
func TestMain(m *testing.M) {
	if os.Getenv("RELAY_DATABASE_URL") != "" {
		if err := relayProcess(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Long interleavings: what goes wrong needs several relays to be in the middle of something.
	_ = flag.Set("rapid.steps", "150")
	_ = flag.Set("rapid.checks", "400")
	os.Exit(m.Run())
}

// relayProcess runs a relay until SIGTERM.
func relayProcess() error {
	databaseURL := os.Getenv("RELAY_DATABASE_URL")
	db, err := postgres.Open(postgres.Config{URL: databaseURL})
	if err != nil {
		return err
	}
	box, err := outbox.New(db, "/onceshop/orders")
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	publisher, err := broker.NewPublisher(broker.PublisherConfig{URL: os.Getenv("RELAY_AMQP_URL"), Service: "orders", Logger: logger})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(outbox.RelayConfig{Outbox: box, URL: databaseURL, Publisher: publisher, Logger: logger})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	publishing, endPublishing := context.WithCancel(context.Background())
	var publishers sync.WaitGroup
	publishers.Go(func() { _ = publisher.Run(publishing) })
	defer func() { endPublishing(); publishers.Wait() }()
	if os.Getenv("RELAY_WITHOUT_LOCK") != "" {
		return relay.RunWithoutLock(ctx)
	}
	return relay.Run(ctx)
}

// process is a relay in a process of its own.
type process struct {
	*exec.Cmd
	ended chan struct{}
}

// startProcess starts a relay process on the shop, which is killed when the test ends.
func (s *shop) startProcess(t testing.TB, settings ...string) *process {
	t.Helper()
	p := &process{exec.Command(os.Args[0]), make(chan struct{})}
	p.Env = append(os.Environ(), append(settings, "RELAY_DATABASE_URL="+s.databaseURL, "RELAY_AMQP_URL="+s.amqpURL)...)
	p.Stderr = t.Output()
	require.NoError(t, p.Start())
	go func() { _ = p.Wait(); close(p.ended) }()
	t.Cleanup(p.kill)
	return p
}

func (p *process) signal(s syscall.Signal) { _ = p.Process.Signal(s) }

func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}
