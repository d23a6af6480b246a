package inbox_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/fault"
	"onceshop/pkg/inbox"
	"onceshop/pkg/postgres"
)

func TestRepeatedMessageHasOneEffect(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	msg := newMessage("")
	for range 3 {
		require.NoError(t, c.handle(msg))
	}
	require.NoError(t, c.handle(newMessage("")))
	require.Equal(t, 2, c.n(t))
}

func TestCopiesAtOnceHaveOneEffect(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	var copies sync.WaitGroup
	for range 100 {
		msg := newMessage("")
		for range 4 {
			copies.Go(func() { require.NoError(t, c.handle(msg)) })
		}
	}
	copies.Wait()
	require.Equal(t, 100, c.n(t))
}

func TestEachConsumerHasItsOwnEffect(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	other, err := inbox.New(inbox.Config{Consumer: "other", InTx: inTx(c.db)})
	require.NoError(t, err)
	msg := newMessage("")
	for range 2 {
		require.NoError(t, c.handle(msg))
		_, err := other.Middleware(increment)(msg.Copy())
		require.NoError(t, err)
	}
	require.Equal(t, 2, c.n(t))
}

func TestKeyMayBeElsewhere(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, func(cfg *inbox.Config) {
		cfg.Key = func(msg *message.Message) string { return msg.Metadata.Get("request") }
	})
	for _, request := range []string{"a", "b", "a"} {
		msg := newMessage("")
		msg.Metadata.Set("request", request)
		require.NoError(t, c.handle(msg))
	}
	require.Equal(t, 2, c.n(t))
	require.Equal(t, fault.Permanent, fault.ClassOf(c.handle(newMessage(""))), "an empty key")
}

// What PostgreSQL or an index can't hold must not be tried again and again.
func TestKeyThatCanNotBeStoredIsPoison(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	for _, key := range []string{"", "nul\x00", "\xff", incompressible(inbox.MaxKey + 1), incompressible(10_000)} {
		msg := newMessage("")
		msg.UUID = key
		err := c.handle(msg)
		require.Equal(t, fault.Permanent, fault.ClassOf(err), "%.20q: %v", key, err)
	}
	msg := newMessage("")
	msg.UUID = incompressible(inbox.MaxKey)
	require.NoError(t, c.handle(msg))
	require.Equal(t, 1, c.n(t))
}

// incompressible returns a text of that length which PostgreSQL can't make much shorter.
func incompressible(length int) string {
	var text strings.Builder
	for text.Len() < length {
		text.WriteString(uuid.NewString())
	}
	return text.String()[:length]
}

func TestMessagesOfTheHandlerAreRefused(t *testing.T) {
	t.Parallel()
	c := newCounter(t, func(msg *message.Message) ([]*message.Message, error) {
		_, err := increment(msg)
		return []*message.Message{newMessage("")}, err
	}, nil)
	require.Equal(t, fault.Permanent, fault.ClassOf(c.handle(newMessage(""))))
	require.Zero(t, c.n(t))
	require.Zero(t, c.rows(t))
}

func TestSameIDWithAnotherContentIsAConflict(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	msg := newMessage("50")
	require.NoError(t, c.handle(msg))
	for _, change := range []func(*message.Message){
		func(msg *message.Message) { msg.Payload = []byte("5") },
		func(msg *message.Message) { msg.Payload = nil },
		func(msg *message.Message) { msg.Metadata.Set(events.Type, "test.withdrawn.v1") },
		func(msg *message.Message) { // the same bytes one after the other
			msg.Metadata.Set(events.Type, msg.Metadata.Get(events.Type)+"5")
			msg.Payload = []byte("0")
		},
		func(msg *message.Message) { msg.Payload = []byte("5"); msg.Metadata.Set(events.Force, "why not") },
	} {
		other := msg.Copy()
		change(other)
		err := c.handle(other)
		require.ErrorIs(t, err, inbox.ErrConflict)
		require.Equal(t, fault.Permanent, fault.ClassOf(err))
	}
	msg.Metadata.Set("shop-attempts", "1") // what a retry adds changes nothing
	require.NoError(t, c.handle(msg))
	require.Equal(t, 1, c.n(t))
}

// The second waits on the first one's claim, which commits in between.
func TestConflictWithACopyUnderWay(t *testing.T) {
	t.Parallel()
	claimed, goOn := make(chan struct{}), make(chan struct{})
	c := newCounter(t, func(msg *message.Message) ([]*message.Message, error) {
		close(claimed)
		<-goOn
		return increment(msg)
	}, nil)
	first := newMessage("50")
	second := first.Copy()
	second.Payload = []byte("5")
	errs := make(chan error, 2)
	go func() { errs <- c.handle(first) }()
	<-claimed
	waiting := make(chan error, 1)
	go func() { waiting <- c.handle(second) }()
	eventually(t, "the second waits", func() bool { return waiters(t, c.db) == 1 })
	close(goOn)
	require.NoError(t, <-errs)
	require.ErrorIs(t, <-waiting, inbox.ErrConflict)
	require.Equal(t, 1, c.n(t))
}

// waiters returns how many sessions of the database wait for a lock.
func waiters(t *testing.T, db *sqlx.DB) (n int) {
	t.Helper()
	require.NoError(t, db.Get(&n, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`))
	return n
}

func TestClaimNeedsNoWatermill(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	claim := func(body string) (fresh bool, err error) {
		err = postgres.InTx(t.Context(), c.db, func(tx *sqlx.Tx) (err error) {
			fresh, err = inbox.Claim(t.Context(), tx, "webhook", "evt_1", inbox.Fingerprint("charge.succeeded", []byte(body)))
			return err
		})
		return fresh, err
	}
	for _, want := range []bool{true, false} {
		fresh, err := claim("body")
		require.NoError(t, err)
		require.Equal(t, want, fresh)
	}
	fresh, err := claim("another body")
	require.ErrorIs(t, err, inbox.ErrConflict)
	require.False(t, fresh)
}

func TestResultsAreCounted(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	c := newCounter(t, func(msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) == "panic" {
			panic("not today")
		}
		return increment(msg)
	}, func(cfg *inbox.Config) { cfg.Registerer = registry })
	msg := newMessage("50")
	require.NoError(t, c.handle(msg))
	require.NoError(t, c.handle(msg))
	require.NoError(t, c.handle(msg))
	msg.Payload = nil
	require.Error(t, c.handle(msg))
	require.Error(t, c.handle(occurred("", time.Now().Add(-inbox.DefaultWindow))))
	require.Panics(t, func() { _ = c.handle(newMessage("panic")) })
	require.Error(t, c.handle(message.NewMessage("", nil)))
	require.Equal(t, map[string]float64{"handled": 1, "duplicate": 2, "conflict": 1, "too_old": 1, "failed": 2}, counted(t, registry))
	_, err := inbox.New(inbox.Config{Consumer: "other", InTx: inTx(c.db), Registerer: registry})
	require.NoError(t, err, "two consumers in one process")
	_, err = inbox.New(inbox.Config{Consumer: "test", InTx: inTx(c.db), Registerer: registry})
	require.ErrorContains(t, err, "inbox of test: duplicate metrics collector registration")
}

// counted returns inbox_messages_total by result.
func counted(t *testing.T, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	results := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := metric.GetLabel() // sorted by name
			require.Equal(t, "inbox_messages_total", family.GetName())
			require.Equal(t, "consumer test", labels[0].GetName()+" "+labels[0].GetValue())
			require.Equal(t, "result", labels[1].GetName())
			results[labels[1].GetValue()] = metric.GetCounter().GetValue()
		}
	}
	return results
}

func TestTxWithoutTheMiddlewarePanics(t *testing.T) {
	t.Parallel()
	require.PanicsWithValue(t, "inbox.Tx: no transaction in the context: the inbox middleware is missing",
		func() { inbox.Tx(context.Background()) })
	c := newCounter(t, nil, nil)
	msg := newMessage("")
	_, err := c.HandlerFunc(msg)
	require.NoError(t, err)
	require.Panics(t, func() { inbox.Tx(msg.Context()) }, "the transaction is over")
}
