package broker_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/broker/brokertest"
	"onceshop/pkg/events"
)

// interrupted returns a URL by which the broker is reached, except that the second connection is cut once it
// opens its third channel.
func interrupted(t *testing.T, to string) string {
	t.Helper()
	through, err := url.Parse(to)
	require.NoError(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	host := through.Host
	through.Host = listener.Addr().String()
	go func() {
		for connection := 1; ; connection++ {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", host)
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(client, server)
				_ = client.Close()
			}()
			go func() {
				forwardChannels(server, client, connection == 2)
				_ = client.Close()
				_ = server.Close()
			}()
		}
	}()
	return through.String()
}

func forwardChannels(server io.Writer, client io.Reader, interrupt bool) {
	channelOpen := []byte{0, 20, 0, 10} // class and method, AMQP 0-9-1
	opened, data := 0, make([]byte, 64<<10)
	for {
		n, err := client.Read(data)
		opened += bytes.Count(data[:n], channelOpen)
		if err != nil || interrupt && opened >= 3 {
			return
		}
		if _, err := server.Write(data[:n]); err != nil {
			return
		}
	}
}

// Of a consumer's subscriptions, some are made when the connection is lost. They hold no message back.
func TestConsumerSubscribesAgainWhereItWasInterrupted(t *testing.T) {
	t.Parallel()
	direct := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: direct})
	var handled atomic.Int32
	cfg := broker.ConsumerConfig{Handlers: on(func(context.Context, events.OrderPlaced) error { handled.Add(1); return nil })}
	cfg.URL = direct
	require.NoError(t, startConsumer(t, cfg)()) // declares the queue
	const messages = 100
	ch := channel(t, direct)
	for range messages {
		deliver(t, ch, nil)
	}
	cfg.URL = interrupted(t, direct)
	stop := startConsumer(t, cfg)
	require.Eventually(t, func() bool { return handled.Load() == messages }, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, stop())
	require.EqualValues(t, messages, handled.Load())
	require.Zero(t, depth(t, direct, "billing.orders"))
}
