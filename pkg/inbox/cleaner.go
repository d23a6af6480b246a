package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"

	"onceshop/pkg/postgres"
)

// batch is how many rows are deleted in one transaction: a few milliseconds of work.
const batch = 1000

// CleanerConfig configures a Cleaner. The zero value of each optional field is its default.
type CleanerConfig struct {
	// Inbox says whose rows are deleted, and after how long: its Consumer's, after its Window. Required.
	Inbox *Inbox
	// DB is the inbox's database, required.
	DB *sqlx.DB
	// Interval is the pause when there is nothing left to delete, or the database is away; default 10 s.
	Interval   time.Duration
	Logger     *slog.Logger          // default: discards
	Registerer prometheus.Registerer // takes the counter inbox_swept_total{consumer}; default: nobody
}

func (c *CleanerConfig) setDefaults() {
	if c.Interval == 0 {
		c.Interval = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func (c *CleanerConfig) validate() error {
	if c.Inbox == nil || c.DB == nil {
		return errors.New("inbox.CleanerConfig: Inbox and DB are required")
	}
	return nil
}

// Cleaner deletes the rows of messages that were handled longer ago than the inbox's window. Any number
// may run; one at a time deletes. It is safe for concurrent use.
type Cleaner struct {
	cfg   CleanerConfig
	swept prometheus.Counter
}

// NewCleaner returns a cleaner that works once Run is called.
func NewCleaner(cfg CleanerConfig) (*Cleaner, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	swept := prometheus.NewCounter(prometheus.CounterOpts{
		Name:        "inbox_swept_total",
		Help:        "Rows deleted because the window had passed.",
		ConstLabels: prometheus.Labels{"consumer": cfg.Inbox.cfg.Consumer},
	})
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(swept); err != nil {
			return nil, fmt.Errorf("cleaner of %s: %w", cfg.Inbox.cfg.Consumer, err)
		}
	}
	return &Cleaner{cfg, swept}, nil
}

// Run deletes until ctx ends, then returns nil. After each full batch it pauses for four times as long as
// that took, so that it has a fifth of one connection at most, and less the slower the database is (some
// 20,000 rows a second on an idle one). While the database is away it logs that, and tries again.
func (c *Cleaner) Run(ctx context.Context) error {
	for {
		started, pause := time.Now(), c.cfg.Interval
		deleted, err := c.Sweep(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			c.cfg.Logger.Warn("inbox not cleaned: trying again", "error", err)
		case deleted == batch:
			pause = 4 * time.Since(started)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// The lock is the transaction's: it is given back with the commit, and with the connection of a process
// that dies.
const lockSweep = `SELECT pg_try_advisory_xact_lock(hashtextextended('inbox cleaner of ' || $1, 0))`

// The database's clock has set handled_at, and decides here.
const sweep = `
DELETE FROM inbox WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM inbox WHERE consumer = $1 AND handled_at < now() - $2 * interval '1 second'
    ORDER BY handled_at LIMIT $3))`

// Sweep deletes one batch of at most 1,000 rows, the oldest, in a transaction of its own, and returns how
// many. It returns 0 while another cleaner of the same consumer deletes.
func (c *Cleaner) Sweep(ctx context.Context) (int, error) {
	var deleted int64
	err := postgres.InTx(ctx, c.cfg.DB, func(tx *sqlx.Tx) error {
		deleted = 0
		of := c.cfg.Inbox.cfg
		var locked bool
		if err := tx.GetContext(ctx, &locked, lockSweep, of.Consumer); err != nil || !locked {
			return err
		}
		result, err := tx.ExecContext(ctx, sweep, of.Consumer, of.Window.Seconds(), batch)
		if err != nil {
			return err
		}
		deleted, err = result.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("clean inbox of %s: %w", c.cfg.Inbox.cfg.Consumer, err)
	}
	c.swept.Add(float64(deleted))
	return int(deleted), nil
}
