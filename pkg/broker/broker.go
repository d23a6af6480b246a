// Package broker is the only package that knows the broker is RabbitMQ. It declares what the services
// publish to and consume from, turns Watermill messages into AMQP ones and back, publishes with confirms,
// and runs consumers that retry, set aside what can't be handled, and stop without handling twice.
//
// Topology, for a service called billing that consumes orders' events:
//
//	orders (topic) ──orders.order_placed.v1──▶ billing.orders ──▶ handlers
//	   │ no queue bound                           │ can't be handled
//	   ▼                                          ▼
//	orders.unrouted                            billing.orders.dead-letters
//
// Every exchange and queue begins with its owner's name, so that one permission pattern per service is
// enough. Queues are quorum queues; topology.go holds their arguments and the order of declaration.
package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"onceshop/pkg/fault"
)

// heartbeat is how often the peers assure each other; a silent connection is dead after two of them.
const heartbeat = 5 * time.Second

// connection is an AMQP connection that can be cut at once. amqp091's own Close sends a frame first, which
// blocks for as long as the broker does not read, such as during a memory or disk alarm.
type connection struct {
	*amqp.Connection
	socket atomic.Pointer[gatheringConn]
}

func dial(url, name string) (*connection, error) {
	c := &connection{}
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	conn, err := amqp.DialConfig(url, amqp.Config{
		Heartbeat:  heartbeat,
		Properties: properties,
		Dial: func(network, address string) (net.Conn, error) {
			conn, err := amqp.DefaultDial(5*time.Second)(network, address)
			if err != nil {
				return nil, err
			}
			socket := newGatheringConn(conn)
			c.socket.Store(socket)
			return socket, nil
		},
	})
	if err != nil {
		if socket := c.socket.Load(); socket != nil {
			_ = socket.Close() // amqp091 leaves it open where the credentials are refused
		}
		return nil, fault.AsOutage(fmt.Errorf("connect to broker: %w", err))
	}
	c.Connection = conn
	return c, nil
}

// cut ends the connection without asking the broker.
func (c *connection) cut() {
	if socket := c.socket.Load(); socket != nil {
		_ = socket.Close()
	}
	_ = c.CloseDeadline(time.Now().Add(time.Second))
}

// Ping returns nil if the broker at url takes connections and the credentials.
func Ping(ctx context.Context, url string) error {
	answered := make(chan error, 1)
	go func() {
		conn, err := dial(url, "ping")
		if err == nil {
			err = conn.Close()
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refused says whether the broker answered and turned us away for good: wrong credentials, or a
// declaration that contradicts what exists. Anything else may pass.
func refused(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && (e.Code == amqp.AccessRefused || e.Code == amqp.PreconditionFailed)
}

// notFound says whether err is the broker's answer that what was asked for does not exist.
func notFound(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == amqp.NotFound
}

// pause waits for d, or less if ctx ends first, which it reports.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
