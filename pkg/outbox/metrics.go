package outbox

import (
	"context"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics of a relay. The gauges are those of the database, and set by the active relay alone.
type metrics struct {
	published                              prometheus.Counter
	seconds                                prometheus.Histogram
	pending, oldest, held, dead, oldestTxn prometheus.Gauge
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
		pending:   gauge("outbox_pending", "Rows that wait, counted up to 100,000."),
		oldest:    gauge("outbox_oldest_seconds", "Age of the first row that waits."),
		held:      gauge("outbox_held_keys", "Keys that are held, because the broker refused a message of theirs."),
		dead:      gauge("outbox_dead_rows", "Deleted rows that vacuum has not removed, as PostgreSQL estimates."),
		oldestTxn: gauge("outbox_oldest_transaction_seconds", "Age of the database's oldest transaction, which keeps vacuum from removing rows."),
	}
	if registerer != nil {
		registerer.MustRegister(m.published, m.seconds, m.pending, m.oldest, m.held, m.dead, m.oldestTxn)
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
    (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'outbox') AS dead,
    coalesce((SELECT extract(epoch FROM now() - min(xact_start)) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend'), 0) AS transaction`

// observe sets the gauges until ctx ends.
func (r *Relay) observe(ctx context.Context, db *sqlx.DB) error {
	for {
		var g struct {
			Pending, Oldest, Held, Dead, Transaction float64
		}
		if err := db.GetContext(ctx, &g, readGauges); err != nil && ctx.Err() == nil {
			r.cfg.Logger.Warn("the outbox's gauges are not up to date", "error", err)
		}
		r.metrics.pending.Set(g.Pending)
		r.metrics.oldest.Set(g.Oldest)
		r.metrics.held.Set(g.Held)
		r.metrics.dead.Set(g.Dead)
		r.metrics.oldestTxn.Set(g.Transaction)
		if err := sleep(ctx, observeEvery); err != nil {
			return err
		}
	}
}
