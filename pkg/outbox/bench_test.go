package outbox_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/outbox"
)

func fillTable(b *testing.B, s *shop, rows, keys int) {
	b.Helper()
	_, err := s.db.Exec(`INSERT INTO outbox (message_id, topic, key, payload, metadata)
SELECT gen_random_uuid()::text, 'orders.order_placed.v1', k, convert_to(repeat('x', 400), 'UTF8'),
  jsonb_build_object('type', 'orders.order_placed.v1', 'subject', k, 'source', '/onceshop/orders', 'time', '2026-01-02T03:04:05.678Z', 'correlation_id', gen_random_uuid()::text)
FROM (SELECT 'key-' || (random() * $2)::int AS k FROM generate_series(1, $1)) g`, rows, keys)
	require.NoError(b, err)
	_, err = s.db.Exec(`VACUUM ANALYZE outbox`)
	require.NoError(b, err)
}

func BenchmarkQuick(b *testing.B) {
	const rows = 50_000
	b.Run("raw", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s := newShop(b)
			require.NoError(b, s.ch.ExchangeDeclare("orders", "topic", true, false, false, false, nil))
			s.declare(b, nil)
			require.NoError(b, s.ch.Confirm(false))
			confirms := s.ch.NotifyPublish(make(chan amqp.Confirmation, 1024))
			body := bytes.Repeat([]byte("x"), 400)
			b.StartTimer()
			start := time.Now()
			slots := make(chan struct{}, 1024)
			done := make(chan struct{})
			go func() {
				for range rows {
					<-confirms
					<-slots
				}
				close(done)
			}()
			for range rows {
				slots <- struct{}{}
				require.NoError(b, s.ch.Publish("orders", "orders.order_placed.v1", true, false, amqp.Publishing{DeliveryMode: 2, MessageId: "01a234f2-1259-7351-83b3-74e9dd5d54dc", Type: "orders.order_placed.v1", Body: body}))
			}
			<-done
			b.ReportMetric(rows/time.Since(start).Seconds(), "msg/s")
		}
	})
	b.Run("relay", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s := newShop(b)
			require.NoError(b, s.ch.ExchangeDeclare("orders.unrouted", "fanout", true, false, false, false, nil))
			require.NoError(b, s.ch.ExchangeDeclare("orders", "topic", true, false, false, false, amqp.Table{"alternate-exchange": "orders.unrouted"}))
			s.declare(b, nil)
			fillTable(b, s, rows, 1000)
			b.StartTimer()
			start := time.Now()
			stop := s.start(b, outbox.RelayConfig{})
			for {
				var n int
				require.NoError(b, s.db.GetContext(context.Background(), &n, `SELECT count(*) FROM (SELECT 1 FROM outbox LIMIT 1) x`))
				if n == 0 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			b.ReportMetric(rows/time.Since(start).Seconds(), "msg/s")
			stop()
		}
	})
}
