package inbox_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
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
	_, err = db.Exec(`
ALTER TABLE accounts ADD PRIMARY KEY (id);
CREATE TABLE payments (id uuid PRIMARY KEY, order_id uuid UNIQUE, status text, created_at timestamptz DEFAULT now())`)
	require.NoError(b, err)
	box, err := inbox.New(inbox.Config{Consumer: "billing.orders", InTx: inTx(db)})
	require.NoError(b, err)
	return &ledger{db, box}
}

// effect is what a handler does in its transaction.
type effect func(ctx context.Context, tx *sqlx.Tx) error

// update does as little as a handler can.
func update(ctx context.Context, tx *sqlx.Tx) error {
	_, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance + $1 WHERE id = $2`, 1, 1+rand.N(accounts))
	return err
}

// payment does what billing does about an order: it makes a payment, locks it, and changes the balance.
func payment(ctx context.Context, tx *sqlx.Tx) error {
	order, status := uuid.New(), ""
	if _, err := tx.ExecContext(ctx, `INSERT INTO payments (id, order_id, status) VALUES ($1, $2, 'new') ON CONFLICT (order_id) DO NOTHING`,
		uuid.Must(uuid.NewV7()), order); err != nil {
		return err
	}
	if err := tx.GetContext(ctx, &status, `SELECT status FROM payments WHERE order_id = $1 FOR UPDATE`, order); err != nil {
		return err
	}
	return update(ctx, tx)
}

// once handles a message inside the inbox.
func (l *ledger) once(do effect) func(context.Context, *message.Message) error {
	handle := l.box.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		return nil, do(msg.Context(), inbox.Tx(msg.Context()))
	})
	return func(_ context.Context, msg *message.Message) error {
		_, err := handle(msg)
		return err
	}
}

// plain handles a message in the same transaction without the inbox.
func (l *ledger) plain(do effect) func(context.Context, *message.Message) error {
	return func(ctx context.Context, _ *message.Message) error {
		return postgres.InTx(ctx, l.db, func(tx *sqlx.Tx) error { return do(ctx, tx) })
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
func BenchmarkInbox(b *testing.B) { benchmarkInbox(b, update) }

// BenchmarkInboxPayment is BenchmarkInbox with a handler of the shop's size.
func BenchmarkInboxPayment(b *testing.B) { benchmarkInbox(b, payment) }

func benchmarkInbox(b *testing.B, do effect) {
	b.Helper()
	l := newLedger(b)
	for _, n := range inFlight {
		b.Run(fmt.Sprintf("inflight=%d", n), func(b *testing.B) {
			compare(b, contender{l.once(do), n, fresh}, contender{l.plain(do), n, fresh})
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
			compare(b, contender{full.once(update), n, fresh}, contender{empty.once(update), n, fresh})
		})
	}
}

// BenchmarkDuplicates compares turning away what was handled before with handling.
func BenchmarkDuplicates(b *testing.B) {
	l := newLedger(b)
	known := make([]*message.Message, 1000)
	for i := range known {
		known[i] = fresh()
		require.NoError(b, l.once(update)(b.Context(), known[i]))
	}
	again := func() *message.Message { return known[rand.N(len(known))].Copy() }
	for _, n := range inFlight {
		b.Run(fmt.Sprintf("inflight=%d", n), func(b *testing.B) {
			compare(b, contender{l.once(update), n, again}, contender{l.once(update), n, fresh})
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
			compare(b, contender{cleaned.once(update), n, fresh}, contender{alone.once(update), n, fresh})
			var left int
			require.NoError(b, cleaned.db.Get(&left, `SELECT count(*) FROM inbox WHERE handled_at < now() - $1 * interval '1 second'`, inbox.DefaultWindow.Seconds()))
			b.ReportMetric(float64(left), "left")
		})
	}
}

// BenchmarkMemory reports what a process that consumes from RabbitMQ has resident after a tenth of the
// messages, and what after all of them.
func BenchmarkMemory(b *testing.B) {
	const messages, batch = 50_000, 500
	for b.Loop() {
		bank := newBank(b)
		process := bank.start(b, "one")
		for handled := 0; handled < messages; {
			published := make([]*message.Message, batch)
			for i := range published {
				published[i] = messageOf(b, orderOf("ada"))
			}
			require.NoError(b, bank.publisher.Publish("", published...))
			for range published {
				process.line(b)
			}
			switch handled += batch; handled {
			case messages / 10:
				b.ReportMetric(process.resident(b), "first-MiB")
			case messages:
				b.ReportMetric(process.resident(b), "last-MiB")
			}
		}
		process.stop(b)
	}
	b.ReportMetric(0, "ns/op")
}

// resident returns the process's resident memory in MiB.
func (c *consumer) resident(t testing.TB) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(status), "VmRSS:")
	require.True(t, found)
	var kB float64
	_, err = fmt.Sscan(rest, &kB)
	require.NoError(t, err)
	return kB / 1024
}
