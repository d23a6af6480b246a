package inbox_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/inbox"
	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
)

var benchRows = flag.Int("inbox.rows", 1_000_000, "rows of the benchmarks' full inbox")

// Each figure is of benchTime, in slices that change places with those of what it is compared with: other
// work on the machine then hits both alike.
const (
	benchTime = 4 * time.Second
	slice     = 250 * time.Millisecond
	accounts  = 10_000
)

// ledger is a database of accounts with an inbox.
type ledger struct {
	db  *sqlx.DB
	box *inbox.Inbox
}

func newLedger(b *testing.B) *ledger {
	b.Helper()
	db, err := postgres.Open(postgres.Config{URL: postgrestest.URL(b, inbox.Migrations()), MaxConnections: 70, StatementLimit: time.Hour})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, db.Close()) })
	_, err = db.Exec(`CREATE TABLE accounts AS SELECT id, 0::bigint AS balance FROM generate_series(1, $1::int) id`, accounts)
	require.NoError(b, err)
	_, err = db.Exec(`ALTER TABLE accounts ADD PRIMARY KEY (id)`)
	require.NoError(b, err)
	box, err := inbox.New(inbox.Config{Consumer: "billing.orders", InTx: inTx(db)})
	require.NoError(b, err)
	return &ledger{db, box}
}

const addToBalance = `UPDATE accounts SET balance = balance + $1 WHERE id = $2`

// once handles a message inside the inbox.
func (l *ledger) once() func(context.Context, *message.Message) error {
	handle := l.box.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, err := inbox.Tx(msg.Context()).ExecContext(msg.Context(), addToBalance, 1, 1+rand.N(accounts))
		return nil, err
	})
	return func(_ context.Context, msg *message.Message) error {
		_, err := handle(msg)
		return err
	}
}

// plain handles a message in the same transaction without the inbox.
func (l *ledger) plain() func(context.Context, *message.Message) error {
	return func(ctx context.Context, _ *message.Message) error {
		return postgres.InTx(ctx, l.db, func(tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, addToBalance, 1, 1+rand.N(accounts))
			return err
		})
	}
}

// contender is one of those whose rates are compared.
type contender struct {
	handle   func(context.Context, *message.Message) error
	inFlight int
	next     func() *message.Message
}

func fresh() *message.Message { return newMessage(fixedPayload) }

// fixedPayload has the size of the shop's events.
var fixedPayload = fmt.Sprintf("%400s", "")

// run handles messages for a slice and returns how many, and how long it took.
func (c contender) run(b *testing.B) (int, time.Duration) {
	var count atomic.Int64
	var workers sync.WaitGroup
	started := time.Now()
	for range c.inFlight {
		workers.Go(func() {
			for time.Since(started) < slice {
				if err := c.handle(context.Background(), c.next()); err != nil {
					b.Error(err)
					return
				}
				count.Add(1)
			}
		})
	}
	workers.Wait()
	return int(count.Load()), time.Since(started)
}

// compare reports the first one's rate as msg/s, and what it is of the second's as ratio.
func compare(b *testing.B, contenders ...contender) {
	b.Helper()
	rates := make([]float64, len(contenders))
	for b.Loop() {
		counts, times := make([]int, len(contenders)), make([]time.Duration, len(contenders))
		for _, c := range contenders {
			c.run(b) // connects, and prepares the statements
		}
		for times[0] < benchTime/time.Duration(len(contenders)) {
			for i, c := range contenders {
				n, took := c.run(b)
				counts[i] += n
				times[i] += took
			}
		}
		for i := range rates {
			rates[i] = float64(counts[i]) / times[i].Seconds()
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(rates[0], "msg/s")
	if len(rates) > 1 {
		b.ReportMetric(rates[1], "other-msg/s")
		b.ReportMetric(rates[0]/rates[1], "ratio")
	}
}

var inFlight = []int{1, 16, 64}

// BenchmarkInbox compares a handler inside the inbox with the same one in the same transaction without.
func BenchmarkInbox(b *testing.B) {
	l := newLedger(b)
	for _, n := range inFlight {
		b.Run(fmt.Sprintf("inflight=%d", n), func(b *testing.B) {
			compare(b, contender{l.once(), n, fresh}, contender{l.plain(), n, fresh})
		})
	}
}

// fill adds rows that were handled evenly over the time from window before now until now.
func (l *ledger) fill(b *testing.B, rows int, from time.Duration) {
	b.Helper()
	_, err := l.db.Exec(`
INSERT INTO inbox (consumer, message_id, fingerprint, handled_at)
SELECT 'billing.orders', lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || gen_random_uuid(), sha256(n::text::bytea), at
FROM (SELECT n, now() - $2 * interval '1 second' * (1 - n / $1::float8) AS at FROM generate_series(1, $1::int) n) t`, rows, from.Seconds())
	require.NoError(b, err)
	_, err = l.db.Exec(`VACUUM (ANALYZE) inbox`)
	require.NoError(b, err)
	_, err = l.db.Exec(`CHECKPOINT`)
	require.NoError(b, err)
}

// BenchmarkFullInbox compares an inbox that holds many rows (-inbox.rows) with an empty one.
func BenchmarkFullInbox(b *testing.B) {
	full, empty := newLedger(b), newLedger(b)
	full.fill(b, *benchRows, inbox.DefaultWindow)
	for _, n := range inFlight {
		b.Run(fmt.Sprintf("inflight=%d", n), func(b *testing.B) {
			compare(b, contender{full.once(), n, fresh}, contender{empty.once(), n, fresh})
		})
	}
}

// BenchmarkDuplicates compares turning away what was handled before with handling.
func BenchmarkDuplicates(b *testing.B) {
	l := newLedger(b)
	known := make([]*message.Message, 1000)
	for i := range known {
		known[i] = fresh()
		require.NoError(b, l.once()(b.Context(), known[i]))
	}
	again := func() *message.Message { return known[rand.N(len(known))].Copy() }
	for _, n := range inFlight {
		b.Run(fmt.Sprintf("inflight=%d", n), func(b *testing.B) {
			compare(b, contender{l.once(), n, again}, contender{l.once(), n, fresh})
		})
	}
}

// BenchmarkCleaner compares an inbox whose cleaner is at work all the time with one that has none.
func BenchmarkCleaner(b *testing.B) {
	cleaned, alone := newLedger(b), newLedger(b)
	cleaned.fill(b, *benchRows, 2*inbox.DefaultWindow) // half of them, too old
	alone.fill(b, *benchRows, inbox.DefaultWindow)
	cleaner, err := inbox.NewCleaner(inbox.CleanerConfig{Inbox: cleaned.box, DB: cleaned.db})
	require.NoError(b, err)
	start(b, cleaner)
	for _, n := range inFlight {
		b.Run(fmt.Sprintf("inflight=%d", n), func(b *testing.B) {
			compare(b, contender{cleaned.once(), n, fresh}, contender{alone.once(), n, fresh})
			var left int
			require.NoError(b, cleaned.db.Get(&left, `SELECT count(*) FROM inbox WHERE handled_at < now() - $1 * interval '1 second'`, inbox.DefaultWindow.Seconds()))
			b.ReportMetric(float64(left), "left")
		})
	}
}
