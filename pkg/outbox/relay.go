package outbox

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"onceshop/pkg/broker"
	"onceshop/pkg/postgres"
)

// RelayConfig configures a Relay. The zero value of each optional field is its default.
type RelayConfig struct {
	Outbox *Outbox // what to publish, and who wakes the relay; required
	// URL of the same database, required: the relay has connections of its own, one for its lock and two
	// for its statements.
	URL       string
	Publisher *broker.Publisher // required; its Run runs elsewhere, and longer than the relay's
	BatchSize int               // rows that one read returns at most; default 2000
	BatchSum  int               // bytes of payload and metadata that one read returns at most; default 8 MiB
	// Poll is how often the table is looked at when nobody wakes the relay, such as for a message whose
	// next try is due. Default 500 ms.
	Poll time.Duration
	// Tries is how often a message that the broker refuses is sent, with growing pauses, before its key
	// waits for an operator. Default 10, which is about nine minutes.
	Tries      int
	Registerer prometheus.Registerer // for the metrics of metrics.go; default: nobody
	Logger     *slog.Logger          // default: discards
}

func (c *RelayConfig) setDefaults() {
	if c.BatchSize == 0 {
		c.BatchSize = 2000
	}
	if c.BatchSum == 0 {
		c.BatchSum = 8 << 20
	}
	if c.Poll == 0 {
		c.Poll = 500 * time.Millisecond
	}
	if c.Tries == 0 {
		c.Tries = 10
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func (c *RelayConfig) validate() error {
	if c.Outbox == nil || c.URL == "" || c.Publisher == nil {
		return errors.New("outbox.RelayConfig: Outbox, URL and Publisher are required")
	}
	if c.BatchSize < 1 || c.BatchSum < 1 || c.Poll < 0 || c.Tries < 1 {
		return errors.New("outbox.RelayConfig: BatchSize, BatchSum, Poll and Tries must be positive")
	}
	return nil
}

// Relay publishes what is in the outbox table. Any number may run on one database: one is active, the
// others stand by and take over when its lock is free, within a second of a stop or a kill, and within five
// seconds if the holder no longer moves. See the package comment for what it promises.
//
// It makes no broker call inside a transaction. While the broker is out of reach it keeps trying, and no
// message is at fault. A message that the broker refuses (a nack, a return, a closed channel) holds back
// the later ones of its key, and nobody else's: the key is in outbox_held with the time of the next try,
// which any relay sees. After the last try it waits for an operator (Redrive, Drop).
//
// Memory is bounded by two batches, whatever the backlog.
type Relay struct {
	cfg     RelayConfig
	metrics *metrics
}

// NewRelay returns a relay that starts once Run is called.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Relay{cfg, newMetrics(cfg.Registerer)}, nil
}

// Run publishes, or stands by, until ctx ends. Then it waits for the confirms of what is under way (the
// publisher's timeout bounds that), deletes what was confirmed, gives the lock back and returns nil. An
// error means that the URL can't be parsed.
func (r *Relay) Run(ctx context.Context) error {
	// A crash of the server may bring deleted rows back, which are then published again; that is what at
	// least once allows, and it saves a flush to disk for each delete.
	db, err := postgres.Open(postgres.Config{
		URL: r.cfg.URL, ApplicationName: "outbox relay", MaxConnections: 2,
		Parameters: map[string]string{"synchronous_commit": "off"},
	})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	heard := func() { signal(r.cfg.Outbox.wake) }
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		started := time.Now()
		err := lead(ctx, r.cfg.URL, r.cfg.Logger, heard, func(ctx context.Context) error { return r.publish(ctx, db) })
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(started) > 10*time.Second {
			wait = 100 * time.Millisecond
		}
		r.cfg.Logger.Warn("relay not active: trying again", "error", err, "pause", wait)
		if sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// publish is the active relay's work: one loop talks to the broker, one to the database. After ctx ends it
// settles what is under way.
func (r *Relay) publish(ctx context.Context, db *sqlx.DB) error {
	r.cfg.Outbox.leading.Store(true)
	defer r.cfg.Outbox.leading.Store(false)
	w := newWindow(r.cfg.BatchSize / 2)
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error { return r.send(both, w) })
	group.Go(func() error { return r.exchange(both, db, w) })
	group.Go(func() error { return r.observe(both, db) })
	err := group.Wait()
	// Deleting what is confirmed is right even if the lock is lost: rule 3.
	for !w.idle() {
		<-w.toSave
	}
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, r.save(finish, db, w))
}

// send sends what is ready until ctx ends.
func (r *Relay) send(ctx context.Context, w *window) error {
	for {
		if err := r.cfg.Publisher.Await(ctx); err != nil {
			return err
		}
		for _, next := range w.take() {
			switch {
			case ctx.Err() != nil:
				w.settle(next, broker.ErrNotSent)
			case next.err != nil:
				w.settle(next, next.err)
			default:
				sent := time.Now()
				r.cfg.Publisher.Send(next.msg, func(err error) {
					if err == nil {
						r.metrics.published.Inc()
						r.metrics.seconds.Observe(time.Since(sent).Seconds())
					}
					w.settle(next, err)
				})
			}
		}
		select {
		case <-w.toSend:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// exchange writes outcomes to the database and reads what comes next, until ctx ends.
func (r *Relay) exchange(ctx context.Context, db *sqlx.DB, w *window) error {
	poll := time.NewTicker(r.cfg.Poll)
	defer poll.Stop()
	hint, advanced := &hint{}, time.Now()
	for {
		if err := r.save(ctx, db, w); err != nil {
			return err
		}
		if time.Since(advanced) >= r.cfg.Poll {
			if err := hint.advance(ctx, db); err != nil {
				return err
			}
			advanced = time.Now()
		}
		known, unconfirmed, bytes := w.excluded()
		if unconfirmed < r.cfg.BatchSize && bytes < r.cfg.BatchSum {
			rows, err := r.read(ctx, db, hint.from, known)
			if err != nil {
				return err
			}
			w.add(rows)
			if len(rows) > 0 {
				continue // save what was confirmed meanwhile, and see whether there is room
			}
		}
		select {
		case <-w.toSave:
		case <-r.cfg.Outbox.wake:
		case <-poll.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
