package outbox_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/events"
	"onceshop/pkg/outbox"
)

var huge = flag.Bool("outbox.5m", false, "benchmark a backlog of 5 million rows too")

const (
	bodySize = 400 // bytes
	inFlight = 1024
)

// BenchmarkDrain measures how fast a backlog gets from the outbox into a quorum queue, from the commit that
// makes it visible to the delete of the last row. Beside it: the same messages sent without any outbox, as
// fast as one channel takes them with pipelined confirms (raw); by watermill-amqp's publisher with a pool of
// channels; by Watermill's forwarder from watermill-sql's table. One run of each sub-benchmark is a whole
// backlog: use -benchtime=1x.
func BenchmarkDrain(b *testing.B) {
	type run struct {
		name string
		of   func(b *testing.B, rows int) time.Duration
	}
	relay := func(keys, standby int) func(*testing.B, int) time.Duration {
		return func(b *testing.B, rows int) time.Duration { return drain(b, rows, keys, standby) }
	}
	backlogs := []struct {
		name string
		rows int
		runs []run
	}{
		{"20k", 20_000, []run{{"forwarder", forward}, {"pooled", sendPooled}, {"raw", sendRaw}, {"relay", relay(1000, 0)}}},
		{"50k", 50_000, []run{
			{"raw", sendRaw},
			{"relay", relay(1000, 0)},
			{"relay-100-keys", relay(100, 0)},
			{"relay-1-standby", relay(1000, 1)},
			{"relay-3-standby", relay(1000, 3)},
		}},
		{"1M", 1_000_000, []run{{"raw", sendRaw}, {"relay", relay(1000, 0)}}},
	}
	if *huge {
		backlogs = append(backlogs, backlogs[len(backlogs)-1])
		backlogs[len(backlogs)-1].name, backlogs[len(backlogs)-1].rows = "5M", 5_000_000
	}
	for _, backlog := range backlogs {
		for _, run := range backlog.runs {
			b.Run(backlog.name+"/"+run.name, func(b *testing.B) {
				var took time.Duration
				for b.Loop() {
					took += run.of(b, backlog.rows)
				}
				b.ReportMetric(float64(b.N*backlog.rows)/took.Seconds(), "msg/s")
			})
		}
	}
}

// BenchmarkOldSnapshot fills and drains the table six times while a transaction holds an old
// snapshot, so that vacuum can remove no dead row. It reports the first round and the last.
func BenchmarkOldSnapshot(b *testing.B) {
	const rows, rounds = 50_000, 6
	for b.Loop() {
		s := newBench(b)
		s.startActive(b)
		old, err := s.db.Beginx()
		require.NoError(b, err)
		_, err = old.Exec(`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET LOCAL idle_in_transaction_session_timeout = 0; SELECT count(*) FROM outbox`)
		require.NoError(b, err)
		for round := range rounds {
			took := s.fillAndDrain(b, rows, 1000)
			switch round {
			case 0:
				b.ReportMetric(rows/took.Seconds(), "first-msg/s")
			case rounds - 1:
				b.ReportMetric(rows/took.Seconds(), "last-msg/s")
			}
		}
		require.NoError(b, old.Rollback())
	}
}

// newBench is newShop with the exchange and the queue of a running shop.
func newBench(b *testing.B) *shop {
	b.Helper()
	s := newShop(b)
	stop := s.start(b, outbox.RelayConfig{})
	s.awaitTopology(b)
	stop()
	s.declare(b, nil)
	return s
}

// drain runs relays in processes of their own, one active and the others standing by, when the backlog becomes
// visible.
func drain(b *testing.B, rows, keys, standby int) time.Duration {
	s := newBench(b)
	active := s.startActive(b)
	for range standby {
		s.startProcess(b)
	}
	took := s.fillAndDrain(b, rows, keys)
	b.ReportMetric(active.memory(b), "MiB")
	return took
}

const fill = `
INSERT INTO outbox (message_id, topic, key, payload, metadata)
SELECT gen_random_uuid(), $3, key, $4, json_build_object('type', $3::text, 'subject', key,
    'source', '/onceshop/orders', 'time', '2026-01-02T03:04:05.678901Z', 'correlation_id', gen_random_uuid())
FROM (SELECT 'key-' || (random() * $2)::int AS key FROM generate_series(1, $1)) AS keys`

// fillAndDrain writes rows in one transaction, and returns how long after its commit all of them are in the
// queue and none is in the table.
func (s *shop) fillAndDrain(b *testing.B, rows, keys int) time.Duration {
	b.Helper()
	_, err := s.ch.QueuePurge(queue, false)
	require.NoError(b, err)
	tx, err := s.db.Begin()
	require.NoError(b, err)
	_, err = tx.Exec(`SET LOCAL statement_timeout = 0`)
	require.NoError(b, err)
	_, err = tx.Exec(fill, rows, keys, events.OrderPlacedV1, body())
	require.NoError(b, err)
	_, err = tx.Exec(`NOTIFY outbox`)
	require.NoError(b, err)
	require.NoError(b, tx.Commit())
	committed := time.Now()
	s.awaitDepth(b, rows)
	for s.pending(b) > 0 {
		time.Sleep(time.Millisecond)
	}
	return time.Since(committed)
}

// awaitDepth waits until so many messages are in the queue.
func (s *shop) awaitDepth(b *testing.B, messages int) {
	b.Helper()
	for {
		q, err := s.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		require.NoError(b, err)
		if q.Messages >= messages {
			return
		}
		time.Sleep(20 * time.Millisecond) // asking costs the broker, too
	}
}

// memory returns the most memory that the process has had, as the kernel counts it.
func (p *process) memory(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	require.NoError(b, err)
	_, after, found := strings.Cut(string(status), "VmHWM:")
	require.True(b, found)
	var kib float64
	_, err = fmt.Sscan(after, &kib)
	require.NoError(b, err)
	return kib / 1024
}

func body() []byte { return bytes.Repeat([]byte("x"), bodySize) }

// eventMessage is a message as the relay's are.
func eventMessage(key string) *message.Message {
	msg := message.NewMessage(uuid.NewString(), body())
	for name, value := range map[string]string{
		events.Type: events.OrderPlacedV1, events.Subject: key, events.Source: "/onceshop/orders",
		events.Time: "2026-01-02T03:04:05.678901Z", events.CorrelationID: uuid.NewString(),
	} {
		msg.Metadata.Set(name, value)
	}
	return msg
}

// sendRaw is the physical limit: nothing but the broker, and the amqp library.
func sendRaw(b *testing.B, rows int) time.Duration {
	s := newBench(b)
	publishings := make([]amqp.Publishing, 1000)
	for i := range publishings {
		var err error
		publishings[i], err = broker.Marshaler{}.Marshal(eventMessage(fmt.Sprint("key-", i)))
		require.NoError(b, err)
	}
	require.NoError(b, s.ch.Confirm(false))
	confirms := s.ch.NotifyPublish(make(chan amqp.Confirmation, inFlight))
	started, slots, done := time.Now(), make(chan struct{}, inFlight), make(chan int)
	go func() {
		acked := 0
		for range rows {
			if confirm := <-confirms; confirm.Ack {
				acked++
			}
			<-slots
		}
		done <- acked
	}()
	for i := range rows {
		slots <- struct{}{}
		require.NoError(b, s.ch.Publish("orders", events.OrderPlacedV1, true, false, publishings[i%len(publishings)]))
	}
	require.Equal(b, rows, <-done)
	return time.Since(started)
}
