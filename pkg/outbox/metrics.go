package outbox

import (
	"context"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics of a relay. The gauges are those of the database. The active relay alone sets them, and one that
// stands by shows 0 for all, so the largest of all instances' values is the right one.
type metrics struct {
	published                                      prometheus.Counter
	seconds                                        prometheus.Histogram
	active, pending, oldest, held, dead, oldestTxn prometheus.Gauge
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		published: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outbox_published_total", Help: "Messages that the broker has confirmed.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "outbox_publish_seconds", Help: "Time from a message's sending to its confirm.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		active:    gauge("outbox_relay_active", "1 for the relay that is active, 0 for one that stands by."),
		pending:   gauge("outbox_pending", "Rows that wait, counted up to 100,000."),
		oldest:    gauge("outbox_oldest_seconds", "Age of the first row that waits."),
		held:      gauge("outbox_held_keys", "Keys that are held, because the broker refused a message of theirs."),
		dead:      gauge("outbox_dead_rows", "Deleted rows that vacuum has not removed, as PostgreSQL estimates."),
		oldestTxn: gauge("outbox_oldest_transaction_seconds", "Age of the database's oldest transaction, which keeps vacuum from removing rows."),
	}
	if registerer != nil {
		registerer.MustRegister(m.published, m.seconds, m.active, m.pending, m.oldest, m.held, m.dead, m.oldestTxn)
	}
	return m
}

// observeEvery is how old a gauge may be.
const observeEvery = 5 * time.Second

// Sessions of other roles are seen where the role has pg_read_all_stats (`shop setup` grants it).
const readGauges = `
SELECT (SELECT count(*) FROM (SELECT FROM outbox LIMIT 100000) AS counted) AS pending,
    coalesce((SELECT extract(epoch FROM now() - min(created_at)) FROM (SELECT created_at FROM outbox ORDER BY id LIMIT 1) AS head), 0) AS oldest,
    (SELECT count(*) FROM outbox_held) AS held,
    (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'outbox'::regclass) AS dead,
    coalesce((SELECT extract(epoch FROM now() - min(xact_start)) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend'), 0) AS transaction`

// gauges are the values of one reading.
type gauges struct {
	Pending, Oldest, Held, Dead, Transaction float64
}

func (m *metrics) show(g gauges) {
	m.pending.Set(g.Pending)
	m.oldest.Set(g.Oldest)
	m.held.Set(g.Held)
	m.dead.Set(g.Dead)
	m.oldestTxn.Set(g.Transaction)
}

// observe sets the gauges until ctx ends, and then to 0. Where they can't be read they keep their values.
func (r *Relay) observe(ctx context.Context, db *sqlx.DB) error {
	r.metrics.active.Set(1)
	defer func() {
		r.metrics.active.Set(0)
		r.metrics.show(gauges{})
	}()
	for {
		var read gauges
		if err := db.GetContext(ctx, &read, readGauges); err == nil {
			r.metrics.show(read)
		} else if ctx.Err() == nil {
			r.cfg.Logger.Warn("the outbox's gauges are not up to date", "error", err)
		}
		if err := sleep(ctx, observeEvery); err != nil {
			return err
		}
	}
}
