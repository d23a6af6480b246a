package outbox_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/outbox"
)

// mend lets messages of the unknown type go to the queue.
func (s *shop) mend(t testing.TB) {
	t.Helper()
	require.NoError(t, s.ch.ExchangeDeclare("nobody", "topic", true, false, false, false, nil))
	require.NoError(t, s.ch.QueueBind(queue, "#", "nobody", false, nil))
}

func (s *shop) listHeld(t testing.TB) []outbox.Held {
	t.Helper()
	held, err := outbox.ListHeld(context.Background(), s.db)
	require.NoError(t, err)
	return held
}

func TestGivenUpKeyWaitsUntilItIsRedriven(t *testing.T) {
	t.Parallel()
	s := declared(t, nil)
	s.start(t, outbox.RelayConfig{Tries: 2, Poll: 10 * time.Millisecond})
	bad := typed(unknown, "a", 0)
	s.writeAll(t, bad)
	s.write(t, "a", 1, 3)
	s.awaitGivenUp(t, "a")
	s.mend(t)
	s.write(t, "a", 3, 5)
	s.write(t, "other", 0, 20)
	require.Eventually(t, func() bool { return s.pending(t) == 5 }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, run("other", 0, 20), s.take(t), "the key waits, though its message would go now")

	held := s.listHeld(t)
	require.Len(t, held, 1)
	require.Contains(t, held[0].Error, "no exchange 'nobody'")
	require.WithinDuration(t, time.Now(), held[0].Since, time.Minute)
	held[0].Error, held[0].Since = "", time.Time{}
	require.Equal(t, []outbox.Held{{Key: "a", Attempts: 2, MessageID: bad.UUID, Topic: unknown, Waiting: 5}}, held)

	require.NoError(t, outbox.Redrive(t.Context(), s.db, "a"))
	s.awaitEmpty(t)
	require.Equal(t, run("a", 0, 5), s.take(t))
	require.Empty(t, s.listHeld(t))
}

func TestRedrivenMessageHasAllItsTriesAgain(t *testing.T) {
	t.Parallel()
	s := declared(t, nil)
	s.start(t, outbox.RelayConfig{Tries: 2, Poll: 10 * time.Millisecond})
	s.writeAll(t, typed(unknown, "a", 0))
	s.awaitGivenUp(t, "a")
	require.NoError(t, outbox.Redrive(t.Context(), s.db, "a"))
	require.Eventually(t, func() bool { return s.listHeld(t)[0].Attempts == 1 }, 30*time.Second, 5*time.Millisecond)
	s.awaitGivenUp(t, "a")
	require.Equal(t, 2, s.listHeld(t)[0].Attempts)
}

func TestDropLetsTheLaterMessagesOut(t *testing.T) {
	t.Parallel()
	s := declared(t, nil)
	s.start(t, outbox.RelayConfig{Tries: 1})
	bad := typed(unknown, "a", 0)
	s.writeAll(t, bad)
	s.write(t, "a", 1, 4)
	s.awaitGivenUp(t, "a")
	dropped, err := outbox.Drop(t.Context(), s.db, "a")
	require.NoError(t, err)
	s.awaitEmpty(t)
	require.Equal(t, run("a", 1, 4), s.take(t))

	var kept struct {
		MessageID string            `json:"message_id"`
		Topic     string            `json:"topic"`
		Key       string            `json:"key"`
		Payload   string            `json:"payload"`
		Metadata  map[string]string `json:"metadata"`
	}
	require.NoError(t, json.Unmarshal(dropped, &kept))
	require.Equal(t, bad.UUID, kept.MessageID)
	require.Equal(t, unknown, kept.Topic)
	require.Equal(t, "a", kept.Key)
	require.Equal(t, "a/0", kept.Payload)
	require.Equal(t, unknown, kept.Metadata[events.Type])
}

func TestDropKeepsAnyPayload(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for payload, want := range map[string]string{
		"a\x00b":   `"payload":"a\u0000b"`,
		"\xff\xfe": `"payload_base64":"//4="`,
	} {
		msg := newMessage("a", 0)
		msg.Payload = []byte(payload)
		s.writeAll(t, msg)
		_, err := s.db.Exec(`INSERT INTO outbox_held (key, attempts, error) VALUES ('a', 1, 'refused')`)
		require.NoError(t, err)
		dropped, err := outbox.Drop(t.Context(), s.db, "a")
		require.NoError(t, err)
		require.Contains(t, string(dropped), want)
		require.Zero(t, s.pending(t))
	}
}

func TestOnlyHeldKeysAreRedrivenOrDropped(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.write(t, "a", 0, 1)
	require.ErrorIs(t, outbox.Redrive(t.Context(), s.db, "a"), outbox.ErrNotHeld)
	_, err := outbox.Drop(t.Context(), s.db, "a")
	require.ErrorIs(t, err, outbox.ErrNotHeld)
	require.Equal(t, 1, s.pending(t))
	require.Empty(t, s.listHeld(t))
}

func TestSuccessorKnowsWhatIsHeld(t *testing.T) {
	t.Parallel()
	s := declared(t, nil)
	refusals := s.noteRefusals(t)
	stop := s.start(t, outbox.RelayConfig{})
	s.writeAll(t, typed(unknown, "a", 0))
	s.write(t, "a", 1, 3)
	s.awaitHeld(t, "a")
	stop()
	_, err := s.db.Exec(`UPDATE outbox_held SET attempts = 7, next_try = now() + interval '1 hour'`)
	require.NoError(t, err)
	before, noted := s.listHeld(t), refusals()
	s.mend(t)

	s.startProcess(t)
	s.write(t, "other", 0, 20)
	require.Eventually(t, func() bool { return s.pending(t) == 3 }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, run("other", 0, 20), s.take(t), "neither the message nor a later one of its key")
	require.Equal(t, before, s.listHeld(t))
	_, err = s.db.Exec(`UPDATE outbox_held SET next_try = now()`)
	require.NoError(t, err)
	s.awaitEmpty(t)
	require.Equal(t, run("a", 0, 3), s.take(t))
	require.Equal(t, noted, refusals(), "the successor did not try before its time")
}
