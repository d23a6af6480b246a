package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/events"
	"onceshop/pkg/outbox"
	"onceshop/pkg/postgres"
)

const latencySeconds = 5 // of each rate

// BenchmarkLatency measures the time from the return of a commit until the message is handed to a consumer
// of the queue, with the relay in the writer's process and in another one, at two rates; and, as the physical
// limit, the time from sending one message until its confirm, with nothing else under way.
func BenchmarkLatency(b *testing.B) {
	b.Run("raw-confirm", func(b *testing.B) {
		for b.Loop() {
			reportPercentiles(b, rawConfirms(b, 100))
		}
	})
	for _, rate := range []int{100, 1000} {
		for _, other := range []bool{false, true} {
			name := fmt.Sprintf("%d-per-second", rate)
			if other {
				name += "-other-process"
			}
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
					reportPercentiles(b, commitToConsumer(b, rate, other))
				}
			})
		}
	}
}

func reportPercentiles(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	for _, percentile := range []int{50, 95, 99} {
		b.ReportMetric(float64(took[len(took)*percentile/100].Microseconds())/1000, fmt.Sprintf("p%d-ms", percentile))
	}
}

// atRate calls do so many times a second, for latencySeconds.
func atRate(perSecond int, do func(n int)) {
	ticks := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticks.Stop()
	for n := range perSecond * latencySeconds {
		<-ticks.C
		do(n)
	}
}

func rawConfirms(b *testing.B, perSecond int) (took []time.Duration) {
	s := newBench(b)
	publishing, err := broker.Marshaler{}.Marshal(eventMessage("key"))
	require.NoError(b, err)
	require.NoError(b, s.ch.Confirm(false))
	confirms := s.ch.NotifyPublish(make(chan amqp.Confirmation, 1))
	atRate(perSecond, func(int) {
		sent := time.Now()
		require.NoError(b, s.ch.Publish("orders", events.OrderPlacedV1, true, false, publishing))
		require.True(b, (<-confirms).Ack)
		took = append(took, time.Since(sent))
	})
	return took
}

func commitToConsumer(b *testing.B, perSecond int, otherProcess bool) []time.Duration {
	s := newBench(b)
	if otherProcess {
		s.startActive(b)
	} else {
		s.start(b, outbox.RelayConfig{})
	}
	deliveries, err := s.ch.Consume(queue, "", true, true, false, false, nil)
	require.NoError(b, err)
	arrived := make(map[string]time.Time)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for delivery := range deliveries {
			arrived[delivery.MessageId] = time.Now()
			if len(arrived) == perSecond*latencySeconds+1 {
				return
			}
		}
	}()
	s.write(b, "first", 0, 1)
	s.awaitEmpty(b)
	committed := make(map[string]time.Time)
	var mu sync.Mutex
	var writers sync.WaitGroup
	atRate(perSecond, func(n int) {
		writers.Go(func() { // a commit that takes longer than a tick must not slow the rate
			msg := eventMessage(fmt.Sprint("key-", n%1000))
			require.NoError(b, s.box.InTx(context.Background(), func(tx *sqlx.Tx) error {
				return outbox.PublishMessagesTx(context.Background(), tx, msg)
			}))
			mu.Lock()
			defer mu.Unlock()
			committed[msg.UUID] = time.Now()
		})
	})
	writers.Wait()
	<-done
	var took []time.Duration
	for id, at := range committed {
		took = append(took, arrived[id].Sub(at))
	}
	return took
}

// BenchmarkInsert measures what the outbox costs the transaction that writes: one row of the domain, without
// and with its event. The two take turns, so that what else the machine does slows both.
func BenchmarkInsert(b *testing.B) {
	const transactions = 3000 // of each kind
	for b.Loop() {
		s := newWriters(b, 1)
		var took [2][]time.Duration
		for range transactions {
			for i, event := range []bool{false, true} {
				started := time.Now()
				require.NoError(b, s.commit(event, false))
				took[i] = append(took[i], time.Since(started))
			}
		}
		slices.Sort(took[0])
		slices.Sort(took[1])
		b.ReportMetric(float64(took[0][transactions/2].Microseconds()), "row-µs")
		b.ReportMetric(float64(took[1][transactions/2].Microseconds()), "row-and-event-µs")
	}
}

// BenchmarkWakeUp shows that commits are as fast with the NOTIFY for a relay in another process as without:
// 32 writers take turns, by the thousand.
func BenchmarkWakeUp(b *testing.B) {
	const writers, turns, transactions = 32, 8, 1024
	for b.Loop() {
		s := newWriters(b, writers)
		var took [2]time.Duration
		for turn := range 2 * turns {
			started := time.Now()
			var group sync.WaitGroup
			for range writers {
				group.Go(func() {
					for range transactions / writers {
						require.NoError(b, s.commit(true, turn%2 == 1))
					}
				})
			}
			group.Wait()
			took[turn%2] += time.Since(started)
		}
		b.ReportMetric(turns*transactions/took[0].Seconds(), "without-commits/s")
		b.ReportMetric(turns*transactions/took[1].Seconds(), "with-commits/s")
	}
}

// newWriters returns a shop with a table of the domain and a connection for each writer.
func newWriters(b *testing.B, writers int) *shop {
	b.Helper()
	s := newBench(b)
	_, err := s.db.Exec(`CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state text)`)
	require.NoError(b, err)
	s.db.SetMaxOpenConns(writers + 1) // one for the NOTIFY
	s.db.SetMaxIdleConns(writers + 1)
	return s
}

func (s *shop) commit(event, notify bool) error {
	ctx := context.Background()
	inTx := s.box.InTx
	if !notify {
		inTx = func(ctx context.Context, fn func(*sqlx.Tx) error) error { return postgres.InTx(ctx, s.db, fn) }
	}
	return inTx(ctx, func(tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (state) VALUES ($1)`, string(body())); err != nil || !event {
			return err
		}
		return outbox.PublishMessagesTx(ctx, tx, eventMessage("key"))
	})
}

// startActive starts a relay process and waits until it publishes.
func (s *shop) startActive(b *testing.B) *process {
	b.Helper()
	p := s.startProcess(b)
	s.write(b, "first", 0, 1)
	s.awaitEmpty(b)
	s.take(b)
	return p
}
