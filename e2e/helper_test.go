// Package e2e tests whole shops of real processes while things go wrong.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/cmd/shop/setup"
	"onceshop/e2e/harness"
	"onceshop/pkg/broker"
	"onceshop/pkg/events"
	"onceshop/pkg/postgres"
)

var binaries string

func TestMain(m *testing.M) {
	dir, err := harness.Build()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaries = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// operator returns a channel, in confirm mode, of the broker user that may do everything.
func operator(t *testing.T, s *harness.Shop) *amqp.Channel {
	t.Helper()
	url, err := s.AMQPURL(setup.Operator)
	require.NoError(t, err)
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	return ch
}

// publish sends a message straight to the exchange, and waits until the broker has it.
func publish(t *testing.T, ch *amqp.Channel, exchange string, msg amqp.Publishing) {
	t.Helper()
	confirmation, err := ch.PublishWithDeferredConfirm(exchange, msg.Type, false, false, msg)
	require.NoError(t, err)
	require.True(t, confirmation.Wait())
}

// listen returns what is published from now on under the name.
func listen(t *testing.T, ch *amqp.Channel, exchange, name string) <-chan amqp.Delivery {
	t.Helper()
	queue, err := ch.QueueDeclare("", false, true, true, false, nil)
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind(queue.Name, name, exchange, false, nil))
	deliveries, err := ch.Consume(queue.Name, "", true, true, false, false, nil)
	require.NoError(t, err)
	return deliveries
}

// depth returns how many messages wait in the queue.
func depth(t *testing.T, s *harness.Shop, queue string) int {
	t.Helper()
	url, err := s.AMQPURL(setup.Operator)
	require.NoError(t, err)
	depths, err := broker.Depth(url, queue)
	require.NoError(t, err)
	return depths[queue]
}

func message(t *testing.T, event events.Event) amqp.Publishing {
	t.Helper()
	body, err := json.Marshal(event)
	require.NoError(t, err)
	return amqp.Publishing{
		MessageId: uuid.NewString(), Type: event.Name(), Timestamp: time.Now(), DeliveryMode: amqp.Persistent, Body: body,
	}
}

// database opens a service's database as the service itself, to look into it or to be in its way.
func database(t *testing.T, s *harness.Shop, service string) *sqlx.DB {
	t.Helper()
	url, err := s.DatabaseURL(service)
	require.NoError(t, err)
	db, err := postgres.Open(postgres.Config{URL: url, MaxConnections: 2, ApplicationName: "test", IdleLimit: 10 * time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// number returns what the query counts.
func number(t *testing.T, db *sqlx.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.Get(&n, query))
	return n
}

// status returns what the URL answers, or 0 if nobody is there.
func status(t *testing.T, url string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	require.NoError(t, response.Body.Close())
	return response.StatusCode
}

// metrics returns what the service's /metrics says.
func metrics(t *testing.T, s *harness.Shop, service string) string {
	t.Helper()
	response, err := http.Get(s.AdminURL(service) + "/metrics")
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(text)
}

// command returns the operator's tool, to be run on the shop.
func command(s *harness.Shop, args ...string) *exec.Cmd {
	c := exec.CommandContext(s.Context(), filepath.Join(binaries, "shop"), append([]string{"--name", s.Name}, args...)...)
	c.Env = append(os.Environ(), "SHOP_PASSWORD="+s.Password)
	return c
}

// tool runs the operator's tool on the shop, and returns its output and its complaints.
func tool(s *harness.Shop, args ...string) (stdout, stderr string, err error) {
	c := command(s, args...)
	var out, complaints strings.Builder
	c.Stdout, c.Stderr = &out, &complaints
	err = c.Run()
	return out.String(), complaints.String(), err
}
