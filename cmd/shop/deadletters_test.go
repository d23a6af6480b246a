package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/cmd/shop/setup"
	"onceshop/pkg/broker"
	"onceshop/pkg/events"
	"onceshop/pkg/stack"
)

const dead = "billing.orders.dead-letters"

// shopWithLetters returns the name of a shop with a virtual host, whose billing has refused four messages:
// "young", "ahead", "old" and "timeless"; and a channel to it.
func shopWithLetters(t *testing.T) (name string, ch *amqp.Channel) {
	t.Helper()
	found, err := stack.Find()
	require.NoError(t, err)
	shop := setup.Shop{Stack: found, Name: "test_" + uuid.NewString()[:13], Password: "development"}
	require.NoError(t, shop.Run(t.Context()))
	t.Cleanup(func() { require.NoError(t, shop.Drop(context.Background())) })
	url, err := shop.AMQPURL(setup.Operator)
	require.NoError(t, err)
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err = conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	require.NoError(t, ch.ExchangeDeclare("billing.queues", amqp.ExchangeDirect, true, false, false, false, nil))
	for _, queue := range []string{"billing.orders", dead} {
		_, err = ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		require.NoError(t, err)
		require.NoError(t, ch.QueueBind(queue, queue, "billing.queues", false, nil))
	}
	now := time.Now()
	for id, at := range map[string]time.Time{"young": now, "ahead": now.Add(2 * time.Hour), "old": now.Add(-7 * 24 * time.Hour), "timeless": {}} {
		confirmation, err := ch.PublishWithDeferredConfirm("billing.queues", dead, true, false, amqp.Publishing{
			MessageId: id, Type: "orders.order_placed.v1", Timestamp: at, Body: []byte(`{"of":"` + id + `"}`),
			Headers: amqp.Table{broker.LastError: "a bug in " + id, broker.Attempts: "4"},
		})
		require.NoError(t, err)
		require.True(t, confirmation.Wait())
	}
	return shop.Name, ch
}

// shop runs the command and returns what it prints.
func shop(t *testing.T, name string, arguments ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	command := newCommand()
	command.SetOut(&out)
	command.SetArgs(append([]string{"--name", name, "dead-letters"}, arguments...))
	err := command.ExecuteContext(t.Context())
	return out.String(), err
}

func TestDeadLettersAreListedShownRedrivenAndDropped(t *testing.T) {
	t.Parallel()
	name, ch := shopWithLetters(t)
	awaitDepth := func(want int) {
		t.Helper()
		require.Eventually(t, func() bool {
			letters, err := ch.QueueDeclarePassive(dead, true, false, false, false, nil)
			require.NoError(t, err)
			return letters.Messages == want
		}, 20*time.Second, 20*time.Millisecond)
	}

	listed, err := shop(t, name, "list")
	require.NoError(t, err)
	require.Len(t, strings.Split(strings.TrimSpace(listed), "\n"), 5)
	require.Contains(t, listed, "a bug in timeless")
	awaitDepth(4)

	listed, err = shop(t, name, "list", "--json", "--reason", "in old", "--queue", "billing.orders")
	require.NoError(t, err)
	var line map[string]any
	require.NoError(t, json.Unmarshal([]byte(listed), &line))
	require.Equal(t, []any{"old", dead, "a bug in old", 4.0}, []any{line["id"], line["queue"], line["reason"], line["attempts"]})
	awaitDepth(4)

	shown, err := shop(t, name, "show", "--id", "young")
	require.NoError(t, err)
	require.Contains(t, shown, `"of": "young"`)
	require.Contains(t, shown, `"shop-error": "a bug in young"`)
	awaitDepth(4)

	_, err = shop(t, name, "redrive", "--id", "nobody's")
	require.ErrorContains(t, err, "no message fits")
	_, err = shop(t, name, "redrive")
	require.ErrorContains(t, err, "say which messages")
	_, err = shop(t, name, "drop")
	require.ErrorContains(t, err, "say which messages")
	_, err = shop(t, name, "redrive", "--id", "ahead", "--force", "it had no effect")
	require.NoError(t, err)
	awaitDepth(3)

	tried, err := shop(t, name, "redrive", "--queue", dead, "--dry-run")
	require.ErrorContains(t, err, "2 refused")
	require.Contains(t, tried, "would be redriven: "+dead+` "young"`)
	awaitDepth(3)

	done, err := shop(t, name, "redrive", "--queue", dead)
	require.ErrorContains(t, err, "2 refused")
	require.Contains(t, done, "redriven: "+dead+` "young"`)
	require.Contains(t, done, `"old" orders.order_placed.v1: too old to be recognised as a repetition: it occurred 168h0m0s ago, and the inbox handles nothing older than 167h0m0s`)
	require.Contains(t, done, `"timeless" orders.order_placed.v1: too old to be recognised as a repetition: it does not say when it occurred`)
	awaitDepth(2)

	_, err = shop(t, name, "redrive", "--id", "old", "--force", "it had no effect")
	require.NoError(t, err)
	awaitDepth(1)

	dropped, err := shop(t, name, "drop", "--id", "timeless", "--dry-run")
	require.NoError(t, err)
	awaitDepth(1)
	_, err = shop(t, name, "drop", "--id", "timeless")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(dropped), &line))
	require.Equal(t, map[string]any{"of": "timeless"}, line["body"])
	awaitDepth(0)

	_, err = shop(t, name, "list", "--queue", "nobody.orders")
	require.ErrorIs(t, err, broker.ErrNoQueue)

	forced := map[string]any{}
	for range 3 {
		redriven, ok, err := ch.Get("billing.orders", true)
		require.NoError(t, err)
		require.True(t, ok)
		forced[redriven.MessageId] = redriven.Headers[events.Force]
	}
	require.Equal(t, map[string]any{"young": nil, "old": "it had no effect", "ahead": "it had no effect"}, forced)
}
