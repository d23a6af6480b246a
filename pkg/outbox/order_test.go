package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/outbox"
)

func TestOrderHoldsWhileRelaysAreKilledAndStopped(t *testing.T) {
	t.Parallel()
	orderUnderFire(t)
}

// Order does not hang on the lock: here all four relays are active all the time.
func TestOrderHoldsWithoutTheLock(t *testing.T) {
	t.Parallel()
	orderUnderFire(t, "RELAY_WITHOUT_LOCK=1")
}

// orderUnderFire publishes through four relay processes that are killed, stopped and continued at random,
// and requires that each message arrives, and each key's first deliveries are in order.
func orderUnderFire(t *testing.T, settings ...string) {
	t.Helper()
	const messages, keys, relays = 20_000, 500, 4
	s := newShop(t)
	stop := s.start(t, outbox.RelayConfig{}) // declares the exchange
	s.awaitTopology(t)
	stop()
	s.declare(t, nil)
	arrivals := s.arrivals(t)

	var writers sync.WaitGroup
	for writer := range 4 {
		writers.Go(func() {
			for n := range messages / keys {
				for key := writer; key < keys; key += 4 {
					s.write(t, fmt.Sprint(key), n, n+1)
				}
			}
		})
	}
	fire, cease := context.WithCancel(context.Background())
	var firing sync.WaitGroup
	for range relays {
		firing.Go(func() { s.underFire(fire, t, settings) })
	}
	writers.Wait()
	arrivals.await(t, messages)
	cease()
	firing.Wait()
	s.startProcess(t) // one that lives deletes what is left
	s.awaitEmpty(t)
	t.Logf("%d messages, %d deliveries", messages, arrivals.deliveries())
}

// underFire keeps a relay process running, which is killed and started again, or stopped and continued.
func (s *shop) underFire(ctx context.Context, t *testing.T, settings []string) {
	for ctx.Err() == nil {
		p := s.startProcess(t, settings...)
		pause(ctx, rand.N(3*time.Second))
		if rand.N(2) == 0 {
			p.signal(syscall.SIGSTOP)
			pause(ctx, rand.N(6*time.Second)) // more than the lock's idle limit, or less
			p.signal(syscall.SIGCONT)
			pause(ctx, rand.N(2*time.Second))
		}
		p.kill()
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// arrivals notes what arrives in the queue, and fails the test at the first disorder.
type arrivals struct {
	mu    sync.Mutex
	next  map[string]int // by key, the number expected next
	first int            // first deliveries
	all   int
	err   error
}

func (s *shop) arrivals(t *testing.T) *arrivals {
	t.Helper()
	deliveries, err := s.ch.Consume(queue, "", true, true, false, false, nil)
	require.NoError(t, err)
	a := &arrivals{next: map[string]int{}}
	go func() {
		for delivery := range deliveries {
			a.note(delivery)
		}
	}()
	return a
}

// note takes a message whose body is "<key>/<n>".
func (a *arrivals) note(delivery amqp.Delivery) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key, text, _ := strings.Cut(string(delivery.Body), "/")
	n, _ := strconv.Atoi(text)
	a.all++
	switch next := a.next[key]; {
	case n == next:
		a.next[key]++
		a.first++
	case n > next && a.err == nil:
		a.err = fmt.Errorf("key %s: message %d came before %d", key, n, next)
	}
}

// await waits until so many messages have arrived for the first time.
func (a *arrivals) await(t *testing.T, messages int) {
	t.Helper()
	require.Eventually(t, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.first == messages || a.err != nil
	}, 3*time.Minute, 50*time.Millisecond)
	a.mu.Lock()
	defer a.mu.Unlock()
	require.NoError(t, a.err)
}

func (a *arrivals) deliveries() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all
}

// lockHolder returns the server process that holds the relay's lock, or 0.
func (s *shop) lockHolder() (pid int) {
	_ = s.db.Get(&pid, `SELECT coalesce(max(pid), 0) FROM pg_locks WHERE locktype = 'advisory' AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	return pid
}

func TestStoppedHolderLosesTheLock(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := s.startProcess(t)
	require.Eventually(t, func() bool { return s.lockHolder() != 0 }, 20*time.Second, 10*time.Millisecond)
	p.signal(syscall.SIGSTOP)
	stopped := time.Now()
	require.Eventually(t, func() bool { return s.lockHolder() == 0 }, 5*time.Second, 10*time.Millisecond)
	t.Logf("free after %s", time.Since(stopped))
}

func TestSuccessorIsActiveAtOnceAfterAStop(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	stopFirst := s.start(t, outbox.RelayConfig{})
	s.awaitTopology(t)
	s.declare(t, nil)
	s.write(t, "a", 0, 1)
	s.awaitEmpty(t)
	s.start(t, outbox.RelayConfig{})
	s.write(t, "a", 1, 100)
	stopFirst()
	s.write(t, "a", 100, 101)
	require.Eventually(t, func() bool { return s.pending(t) == 0 }, 5*time.Second, 10*time.Millisecond)
	require.Len(t, s.take(t), 101, "nothing went out twice")
}

func TestLateCommitIsPublished(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.start(t, outbox.RelayConfig{BatchSize: 50})
	s.awaitTopology(t)
	s.declare(t, nil)
	late, err := s.db.Beginx()
	require.NoError(t, err)
	require.NoError(t, outbox.PublishMessagesTx(context.Background(), late, newMessage("late", 0)))
	for range 20 { // enough for the scan hint to move, were it not for the late one
		require.NoError(t, s.box.InTx(context.Background(), func(tx *sqlx.Tx) error {
			for key := range 200 {
				if err := outbox.PublishMessagesTx(context.Background(), tx, newMessage(fmt.Sprint(key), 0)); err != nil {
					return err
				}
			}
			return nil
		}))
		s.awaitEmpty(t)
	}
	require.NoError(t, late.Commit())
	s.awaitEmpty(t)
	require.Contains(t, s.take(t), "late/0")
}
