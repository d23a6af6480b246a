package outbox_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/outbox"
)

// proxied puts a proxy between the shop's relays and the broker. The test's own channel goes past it.
func (s *shop) proxied(t testing.TB) *toxiproxy.Proxy {
	t.Helper()
	parsed, err := url.Parse(s.amqpURL)
	require.NoError(t, err)
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, t.Name(), "127.0.0.1:0", parsed.Host)
	require.NoError(t, proxy.Start())
	t.Cleanup(proxy.Stop)
	parsed.Host = proxy.Listen
	s.amqpURL = parsed.String()
	return proxy
}

const backlog = `
INSERT INTO outbox (message_id, topic, key, payload, metadata)
SELECT gen_random_uuid(), 'orders.order_placed.v1', key, convert_to(key || '/' || n, 'UTF8'),
    json_build_object('type', 'orders.order_placed.v1', 'subject', key)
FROM generate_series(0, $1 - 1) AS n, (SELECT k::text AS key FROM generate_series(1, $2) AS k) AS keys
ORDER BY n`

// The connection is lost three times in the middle of one large batch. What was confirmed does not go out
// again, though its rows are still in the table.
func TestCutConnectionRepeatsOnlyWhatWasUnconfirmed(t *testing.T) {
	t.Parallel()
	const keys, each, cuts, maxInFlight = 1000, 20, 3, 1024
	s := declared(t, nil)
	refusals := s.noteRefusals(t)
	_, err := s.db.Exec(backlog, each, keys)
	require.NoError(t, err)
	arrivals := s.arrivals(t)
	proxy := s.proxied(t)
	s.start(t, outbox.RelayConfig{BatchSize: keys * each})
	for cut := range cuts {
		require.Eventually(t, func() bool { return arrivals.deliveries() >= (cut+1)*keys*each/(cuts+2) }, time.Minute, time.Millisecond)
		proxy.Stop()
		require.Less(t, arrivals.deliveries(), keys*each, "it was in the middle")
		require.NoError(t, proxy.Start())
	}
	arrivals.await(t, keys*each)
	s.awaitEmpty(t)
	repeated := arrivals.deliveries() - keys*each
	t.Logf("%d messages, %d repeated", keys*each, repeated)
	require.LessOrEqual(t, repeated, cuts*maxInFlight)
	require.Empty(t, refusals(), "no message is at fault")
}

// While the broker is away, messages are tried and wait, and none of them is to blame.
func TestBrokerThatIsDownCountsNoTry(t *testing.T) {
	t.Parallel()
	s := declared(t, nil)
	refusals := s.noteRefusals(t)
	arrivals := s.arrivals(t)
	proxy := s.proxied(t)
	s.start(t, outbox.RelayConfig{Tries: 1})
	next := 0
	write := func(n int) { s.write(t, "a", next, next+n); s.write(t, "b", next, next+n); next += n }
	for range 3 {
		write(50) // some are under way
		proxy.Stop()
		write(50) // nobody is there
		require.NotZero(t, s.pending(t))
		require.NoError(t, proxy.Start())
		write(50)
	}
	arrivals.await(t, 2*next)
	s.awaitEmpty(t)
	require.Empty(t, refusals())
}
