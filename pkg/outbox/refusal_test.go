package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/outbox"
)

// writeAll commits the messages in one transaction.
func (s *shop) writeAll(t testing.TB, messages ...*message.Message) {
	t.Helper()
	require.NoError(t, s.box.InTx(context.Background(), func(tx *sqlx.Tx) error {
		return outbox.PublishMessagesTx(context.Background(), tx, messages...)
	}))
}

// typed returns newMessage's message under another type.
func typed(name, key string, n int) *message.Message {
	msg := newMessage(key, n)
	msg.Metadata.Set(events.Type, name)
	return msg
}

// unknown is the type of a message that no exchange takes: the broker closes the channel on it.
const unknown = "nobody.knows.v1"

// run returns the bodies of a key's messages.
func run(key string, from, to int) (bodies []string) {
	for n := from; n < to; n++ {
		bodies = append(bodies, fmt.Sprintf("%s/%d", key, n))
	}
	return bodies
}

// of returns the first deliveries of the key among the bodies.
func of(key string, bodies []string) (first []string) {
	for _, body := range bodies {
		if strings.HasPrefix(body, key+"/") && !slices.Contains(first, body) {
			first = append(first, body)
		}
	}
	return first
}

// held returns the keys that are held now.
func (s *shop) held(t testing.TB) []string {
	t.Helper()
	var keys []string
	require.NoError(t, s.db.Select(&keys, `SELECT key FROM outbox_held ORDER BY key`))
	return keys
}

func (s *shop) awaitHeld(t testing.TB, keys ...string) {
	t.Helper()
	require.Eventually(t, func() bool { return slices.Equal(keys, s.held(t)) }, 30*time.Second, 10*time.Millisecond)
}

// awaitGivenUp waits until there is no next try for the key.
func (s *shop) awaitGivenUp(t testing.TB, key string) {
	t.Helper()
	require.Eventually(t, func() bool {
		var keys []string
		require.NoError(t, s.db.Select(&keys, `SELECT key FROM outbox_held WHERE next_try IS NULL`))
		return slices.Contains(keys, key)
	}, 30*time.Second, 10*time.Millisecond)
}

const noteHeld = `
CREATE TABLE refusals (key text NOT NULL);
CREATE FUNCTION note_held() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO refusals VALUES (NEW.key); RETURN NEW; END';
CREATE TRIGGER note_held BEFORE INSERT ON outbox_held FOR EACH ROW EXECUTE FUNCTION note_held()`

// noteRefusals has the database note each refusal, so that one which is soon forgotten is seen too. The
// function returned counts them by key.
func (s *shop) noteRefusals(t testing.TB) func() map[string]int {
	t.Helper()
	_, err := s.db.Exec(noteHeld)
	require.NoError(t, err)
	return func() map[string]int {
		var keys []string
		require.NoError(t, s.db.Select(&keys, `SELECT key FROM refusals`))
		counts := map[string]int{}
		for _, key := range keys {
			counts[key]++
		}
		return counts
	}
}

// declared is a shop in which exchange and queue are there and no relay runs.
func declared(t testing.TB, arguments amqp.Table) *shop {
	t.Helper()
	s := newShop(t)
	stop := s.start(t, outbox.RelayConfig{})
	s.awaitTopology(t)
	stop()
	s.declare(t, arguments)
	return s
}

// The queue takes a few and refuses the rest, again and again while it is emptied, so that nacks
// fall on any message of a key while later ones of it are there.
func TestNackLetsNoLaterMessageOfItsKeyOutFirst(t *testing.T) {
	t.Parallel()
	const keys, each = 20, 50
	s := declared(t, amqp.Table{"x-max-length": 5, "x-overflow": "reject-publish"})
	refusals := s.noteRefusals(t)
	_, err := s.db.Exec(backlog, each, keys)
	require.NoError(t, err)
	s.start(t, outbox.RelayConfig{Poll: 5 * time.Millisecond})
	require.Eventually(t, func() bool { return len(s.held(t)) == keys }, 30*time.Second, 10*time.Millisecond)

	arrivals := &arrivals{next: map[string]int{}}
	require.Eventually(t, func() bool {
		for { // room for one, then another, while all are tried
			msg, ok, err := s.ch.Get(queue, true)
			require.NoError(t, err)
			if !ok {
				break
			}
			arrivals.note(msg)
		}
		_, err := s.db.Exec(`UPDATE outbox_held SET next_try = now() WHERE next_try > now()`)
		require.NoError(t, err)
		return arrivals.first == keys*each || arrivals.err != nil
	}, 60*time.Second, 2*time.Millisecond)
	require.NoError(t, arrivals.err)
	s.awaitEmpty(t)
	require.Equal(t, keys*each, arrivals.deliveries(), "nothing went out twice")
	nacks := 0
	for _, n := range refusals() {
		nacks += n
	}
	t.Logf("%d nacks", nacks)
	require.Greater(t, nacks, 2*keys)
	require.Empty(t, s.held(t))
}

func TestReturnedMessageHoldsItsKeyAndNoOther(t *testing.T) {
	t.Parallel()
	s := declared(t, nil)
	refusals := s.noteRefusals(t)
	s.start(t, outbox.RelayConfig{})
	s.write(t, "other", 0, 1)
	s.awaitEmpty(t) // from here on the publisher declares nothing
	require.NoError(t, s.ch.ExchangeDelete("orders.unrouted", false, false))
	require.NoError(t, s.ch.QueueUnbind(queue, "orders.#", "orders", nil))
	require.NoError(t, s.ch.QueueBind(queue, events.OrderPlacedV1, "orders", false, nil))

	s.writeAll(t, typed(events.OrderConfirmedV1, "returned", 0), newMessage("returned", 1), newMessage("returned", 2))
	s.write(t, "other", 1, 20)
	require.Eventually(t, func() bool { return s.pending(t) == 3 }, 30*time.Second, 10*time.Millisecond)
	s.awaitHeld(t, "returned")
	require.Equal(t, run("other", 0, 20), s.take(t))
	held, err := outbox.ListHeld(context.Background(), s.db)
	require.NoError(t, err)
	require.Contains(t, held[0].Error, "returned the message")

	require.NoError(t, s.ch.QueueBind(queue, events.OrderConfirmedV1, "orders", false, nil))
	s.awaitEmpty(t)
	require.Equal(t, run("returned", 0, 3), s.take(t))
	require.Len(t, refusals(), 1)
}

// The channel dies while the messages of three hundred keys are under way on it. Two of them are the cause,
// and nobody else ever counts as refused.
func TestMessageThatClosesTheChannelHoldsItsKeyAndNoOther(t *testing.T) {
	t.Parallel()
	const keys = 300
	s := declared(t, nil)
	refusals := s.noteRefusals(t)
	var first, later []*message.Message
	for key := range keys {
		name := fmt.Sprintf("key%03d", key)
		if key == 100 || key == 200 {
			first = append(first, typed(unknown, name, 0))
		} else {
			first = append(first, newMessage(name, 0))
		}
		later = append(later, newMessage(name, 1), newMessage(name, 2))
	}
	s.writeAll(t, append(first, later...)...)
	s.start(t, outbox.RelayConfig{})
	require.Eventually(t, func() bool { return s.pending(t) == 6 }, 60*time.Second, 10*time.Millisecond)
	s.awaitHeld(t, "key100", "key200")
	s.write(t, "later", 0, 50) // while the two are tried again
	require.Eventually(t, func() bool { return refusals()["key100"] > 1 && refusals()["key200"] > 1 }, 30*time.Second, 10*time.Millisecond)

	// Once they go, the rest follows in order.
	require.NoError(t, s.ch.ExchangeDeclare("nobody", "topic", true, false, false, false, nil))
	require.NoError(t, s.ch.QueueBind(queue, "#", "nobody", false, nil))
	s.awaitEmpty(t)
	taken := s.take(t)
	for key := range keys {
		name := fmt.Sprintf("key%03d", key)
		require.Equal(t, run(name, 0, 3), of(name, taken))
	}
	require.Equal(t, run("later", 0, 50), of("later", taken))
	require.Len(t, refusals(), 2, "others were held")
	require.Empty(t, s.held(t))
}

const undecodable = `INSERT INTO outbox (message_id, topic, key, payload, metadata)
SELECT n::text, 'orders.order_placed.v1', $1 || n, '{}', $2 FROM generate_series(1, $3) AS n`

func TestRowThatCannotBeDecodedHoldsItsKeyAndNoOther(t *testing.T) {
	t.Parallel()
	s := declared(t, nil)
	refusals := s.noteRefusals(t)
	for i, metadata := range []string{`[1]`, `{"type": "orders.order_placed.v1", "n": 3}`, `null`} {
		_, err := s.db.Exec(undecodable, "bad"+string(rune('a'+i)), metadata, 1)
		require.NoError(t, err)
	}
	s.write(t, "bada1", 1, 3)
	s.write(t, "other", 0, 10)
	s.start(t, outbox.RelayConfig{})
	s.awaitHeld(t, "bada1", "badb1", "badc1")
	require.Eventually(t, func() bool { return s.pending(t) == 5 }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, run("other", 0, 10), s.take(t))
	require.Len(t, refusals(), 3)
}

// Held keys have more rows than a batch, and all stand before the others.
func TestThousandHeldKeysStarveNobody(t *testing.T) {
	t.Parallel()
	s := declared(t, nil)
	_, err := s.db.Exec(undecodable, "bad", `[]`, 1000)
	require.NoError(t, err)
	_, err = s.db.Exec(undecodable, "bad", `{"type": "orders.order_placed.v1"}`, 1000) // their later messages
	require.NoError(t, err)
	s.start(t, outbox.RelayConfig{BatchSize: 100, Tries: 1})
	s.write(t, "other", 0, 300)
	require.Eventually(t, func() bool { return s.pending(t) == 2000 }, 60*time.Second, 10*time.Millisecond)
	require.Equal(t, run("other", 0, 300), s.take(t))
	require.Eventually(t, func() bool { return len(s.held(t)) == 1000 }, 30*time.Second, 10*time.Millisecond)
}
