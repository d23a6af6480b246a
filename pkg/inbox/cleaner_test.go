package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/inbox"
	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
	"onceshop/pkg/stack"
)

func newCleaner(t testing.TB, c *counter, change func(*inbox.CleanerConfig)) *inbox.Cleaner {
	t.Helper()
	cfg := inbox.CleanerConfig{Inbox: c.box, DB: c.db, Interval: 10 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	cleaner, err := inbox.NewCleaner(cfg)
	require.NoError(t, err)
	return cleaner
}

// start runs the cleaner until the function returned is called.
func start(t testing.TB, cleaner *inbox.Cleaner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- cleaner.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); require.NoError(t, <-ended) })
	t.Cleanup(stop)
	return stop
}

// remember adds rows of messages that the consumer handled that long ago.
func (c *counter) remember(t testing.TB, consumer string, rows int, age time.Duration) {
	t.Helper()
	_, err := c.db.Exec(`
INSERT INTO inbox (consumer, message_id, fingerprint, handled_at)
SELECT $1, gen_random_uuid(), '', now() - $3 * interval '1 second' FROM generate_series(1, $2)`, consumer, rows, age.Seconds())
	require.NoError(t, err)
}

func TestSweepDeletesWhatIsOlderThanTheWindowInBatches(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	c := newCounter(t, nil, nil)
	c.remember(t, "test", 2500, inbox.DefaultWindow+time.Minute)
	c.remember(t, "test", 30, inbox.DefaultWindow-time.Minute)
	c.remember(t, "other", 40, inbox.DefaultWindow+time.Minute) // its window may be longer
	cleaner := newCleaner(t, c, func(cfg *inbox.CleanerConfig) { cfg.Registerer = registry })
	for _, want := range []int{1000, 1000, 500, 0} {
		deleted, err := cleaner.Sweep(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, deleted)
	}
	require.Equal(t, 70, c.rows(t))
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Equal(t, "inbox_swept_total", families[0].GetName())
	require.InDelta(t, 2500, families[0].GetMetric()[0].GetCounter().GetValue(), 0)
}

func TestSweepReadsNoMoreThanItDeletes(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	c.remember(t, "test", 50_000, time.Hour)
	_, err := c.db.Exec(`ANALYZE inbox`)
	require.NoError(t, err)
	var plan []string
	require.NoError(t, c.db.Select(&plan, `EXPLAIN `+inbox.SweepSQL, "test", inbox.DefaultWindow.Seconds(), 1000))
	require.Contains(t, fmt.Sprint(plan), "Index Scan using inbox_handled_at")
	require.NotContains(t, fmt.Sprint(plan), "Sort")
}

func TestOneCleanerAtATime(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	c.remember(t, "test", 10, 2*inbox.DefaultWindow)
	// The first stops within its batch.
	held, err := c.db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	_, err = held.Exec(`SELECT FROM inbox FOR UPDATE`)
	require.NoError(t, err)
	first, cleaner := make(chan int, 1), newCleaner(t, c, nil)
	go func() {
		deleted, _ := cleaner.Sweep(context.Background())
		first <- deleted
	}()
	eventually(t, "the first waits", func() bool { return waiters(t, c.db) == 1 })

	// Another does not wait for it, nor for the rows.
	deleted, err := newCleaner(t, c, nil).Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, deleted)
	require.Equal(t, 1, waiters(t, c.db))
	require.NoError(t, held.Rollback())
	require.Equal(t, 10, <-first)

	// One of another consumer is not held up.
	c.remember(t, "test", 10, 2*inbox.DefaultWindow)
	require.NoError(t, postgres.InTx(t.Context(), c.db, func(tx *sqlx.Tx) error {
		_, err := tx.Exec(`SELECT pg_advisory_xact_lock(hashtextextended('inbox cleaner of other', 0))`)
		require.NoError(t, err)
		deleted, err = newCleaner(t, c, nil).Sweep(t.Context())
		return err
	}))
	require.Equal(t, 10, deleted)
}

// Two cleaners work on an inbox in use whose window passes after 0.3 seconds. A trigger sees what they
// delete; the messages come again and again until they are too old, and each has one effect.
func TestCleanersUnderLoadDeleteNothingInsideTheWindow(t *testing.T) {
	t.Parallel()
	const window, margin, load, messages = 300 * time.Millisecond, 100 * time.Millisecond, 8, 96
	c := newCounter(t, nil, func(cfg *inbox.Config) { cfg.Window, cfg.Margin = window, margin })
	_, err := c.db.Exec(`
CREATE TABLE swept (age interval);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO swept VALUES (now() - old.handled_at); RETURN NULL; END $$;
CREATE TRIGGER note AFTER DELETE ON inbox FOR EACH ROW EXECUTE FUNCTION note();`)
	require.NoError(t, err)
	start(t, newCleaner(t, c, nil))
	start(t, newCleaner(t, c, nil))
	var handled, tooOld atomic.Int32
	var workers sync.WaitGroup
	for range load {
		workers.Go(func() {
			for range messages / load {
				handledOnce(t, c, &handled, &tooOld)
			}
		})
	}
	workers.Wait()
	eventually(t, "all is swept", func() bool { return c.rows(t) == 0 })
	var early, swept int
	require.NoError(t, c.db.QueryRow(`SELECT count(*) FILTER (WHERE age <= $1 * interval '1 second'), count(*) FROM swept`, window.Seconds()).Scan(&early, &swept))
	require.Zero(t, early, "deleted inside the window")
	require.Equal(t, int(handled.Load()), swept)
	require.Equal(t, int(handled.Load()), c.n(t))
	require.NotZero(t, tooOld.Load())
}

// handledOnce delivers a message until it is too old.
func handledOnce(t *testing.T, c *counter, handled, tooOld *atomic.Int32) {
	msg := newMessage("")
	before, started := true, time.Now()
	for {
		if time.Since(started) > 30*time.Second {
			t.Error("the message never became too old")
			return
		}
		err := c.handle(msg)
		switch {
		case errors.Is(err, inbox.ErrTooOld):
			tooOld.Add(1)
			return
		case err != nil:
			t.Errorf("handle: %v", err)
			return
		case before:
			handled.Add(1)
			before = false
		}
	}
}

// The row is gone, and the same message comes once more.
func TestDuplicateAfterTheSweepIsTooOld(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, func(cfg *inbox.Config) { cfg.Window, cfg.Margin = 2*time.Second, time.Second })
	msg := newMessage("")
	require.NoError(t, c.handle(msg))
	cleaner := newCleaner(t, c, nil)
	eventually(t, "the row is deleted", func() bool {
		deleted, err := cleaner.Sweep(t.Context())
		require.NoError(t, err)
		return deleted == 1
	})
	for range 2 {
		require.ErrorIs(t, c.handle(msg), inbox.ErrTooOld)
	}
	require.Equal(t, 1, c.n(t))
}

func TestCleanerOutlivesAnOutage(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	c := newCounter(t, nil, nil)
	start(t, newCleaner(t, c, func(cfg *inbox.CleanerConfig) { cfg.Logger = slog.New(slog.NewTextHandler(&log, nil)) }))
	c.remember(t, "test", 10, 2*inbox.DefaultWindow)
	eventually(t, "it works", func() bool { return c.rows(t) == 0 })

	var name string
	require.NoError(t, c.db.Get(&name, `SELECT current_database()`))
	found, err := stack.Find()
	require.NoError(t, err)
	admin := postgrestest.Open(t, found.DatabaseURL)
	_, err = admin.Exec(`ALTER DATABASE "` + name + `" WITH ALLOW_CONNECTIONS false`)
	require.NoError(t, err)
	_, err = admin.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, name)
	require.NoError(t, err)
	eventually(t, "it notices", func() bool { return strings.Count(log.String(), "inbox not cleaned") > 2 })
	_, err = admin.Exec(`ALTER DATABASE "` + name + `" WITH ALLOW_CONNECTIONS true`)
	require.NoError(t, err)

	c.remember(t, "test", 10, 2*inbox.DefaultWindow)
	eventually(t, "it works again", func() bool { return c.rows(t) == 0 })
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestCleanerNeedsAnInboxAndADatabase(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	for _, cfg := range []inbox.CleanerConfig{{Inbox: c.box}, {DB: c.db}} {
		_, err := inbox.NewCleaner(cfg)
		require.ErrorContains(t, err, "required")
	}
}
