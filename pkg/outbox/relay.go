package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/errgroup"

	"onceshop/pkg/broker"
)

// RelayConfig configures a Relay. The zero value of each optional field is its default.
type RelayConfig struct {
	Outbox    *Outbox           // what to publish, and who wakes the relay; required
	URL       string            // of the same database, for the lock's own connection; required
	Publisher *broker.Publisher // required; its Run runs elsewhere, and longer than the relay's
	BatchSize int               // rows that one read returns at most; default 1000
	BatchSum  int               // bytes of payload and metadata that one read returns at most; default 8 MiB
	// Poll is how often the table is looked at when nobody wakes the relay: another process may have
	// written to it. Default 500 ms.
	Poll time.Duration
	// Tries is how often a message that the broker refuses is sent, with growing pauses, before its key
	// waits for an operator. Default 10, which is about 17 minutes.
	Tries  int
	Logger *slog.Logger // default: discards
}

func (c *RelayConfig) setDefaults() {
	if c.BatchSize == 0 {
		c.BatchSize = 1000
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
	return nil
}

// Relay publishes what is in the outbox table. Any number may run on one database: one is active, the
// others stand by and take over when its lock is free. See the package comment for what it promises.
//
// It makes no broker call inside a transaction. While the broker is out of reach it keeps trying, and no
// message is at fault. A message that the broker refuses (a nack, a return, a closed channel) holds back
// the later ones of its key, and nobody else's: the key is in outbox_held with the time of the next try.
type Relay struct {
	cfg RelayConfig
}

// NewRelay returns a relay that starts once Run is called.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Relay{cfg}, nil
}

// Run publishes, or stands by, until ctx ends. Then it waits for the confirms of what is under way (the
// publisher's timeout bounds that), deletes what was confirmed, gives the lock back and returns nil.
func (r *Relay) Run(ctx context.Context) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		started := time.Now()
		err := lead(ctx, r.cfg.URL, r.cfg.Logger, r.publish)
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

// publish is the active relay's work: one loop talks to the broker, the other to the database. After ctx
// ends it settles what is under way.
func (r *Relay) publish(ctx context.Context) error {
	w := newWindow(r.cfg.BatchSize / 2)
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error { return r.send(both, w) })
	group.Go(func() error { return r.exchange(both, w) })
	err := group.Wait()
	// Deleting what is confirmed is right even if the lock is lost: rule 3.
	for !w.idle() {
		<-w.toSave
	}
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, r.save(finish, w))
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
				r.cfg.Publisher.Send(next.msg, func(err error) { w.settle(next, err) })
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
func (r *Relay) exchange(ctx context.Context, w *window) error {
	poll := time.NewTicker(r.cfg.Poll)
	defer poll.Stop()
	for {
		if err := r.save(ctx, w); err != nil {
			return err
		}
		known, unconfirmed, bytes := w.excluded()
		if unconfirmed < r.cfg.BatchSize && bytes < r.cfg.BatchSum {
			rows, err := r.read(ctx, known)
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

// readBatch returns the first rows that the relay doesn't know and whose key isn't held. It starts at the
// lowest id each time: a row whose transaction committed late has a low id, and rule 2 wants it first.
const readBatch = `
SELECT id, message_id, key, payload, metadata
FROM outbox
WHERE id <> ALL ($1)
  AND NOT EXISTS (
    SELECT FROM outbox_held held
    WHERE held.key = outbox.key AND (held.next_try IS NULL OR held.next_try > now()))
ORDER BY id
LIMIT $2`

func (r *Relay) read(ctx context.Context, known []int64) ([]row, error) {
	rows, err := r.cfg.Outbox.db.QueryContext(ctx, readBatch, known, r.cfg.BatchSize)
	if err != nil {
		return nil, fmt.Errorf("read outbox: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var batch []row
	for sum := 0; sum < r.cfg.BatchSum && rows.Next(); {
		var next row
		var id string
		var payload, metadata []byte
		if err := rows.Scan(&next.id, &id, &next.key, &payload, &metadata); err != nil {
			return nil, fmt.Errorf("read outbox: %w", err)
		}
		next.msg = message.NewMessage(id, payload)
		next.err = json.Unmarshal(metadata, &next.msg.Metadata)
		next.bytes = len(payload) + len(metadata)
		sum += next.bytes
		batch = append(batch, next)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read outbox: %w", err)
	}
	return batch, nil
}

// A key whose message went through is held no longer.
const deleteConfirmed = `
WITH gone AS (DELETE FROM outbox WHERE id = ANY ($1) RETURNING key)
DELETE FROM outbox_held USING gone WHERE outbox_held.key = gone.key`

// The pauses are 1, 2, 4 … seconds, at most five minutes, each times 0.5 to 1.5.
const holdKey = `
INSERT INTO outbox_held AS held (key, attempts, next_try, error)
VALUES ($1, 1, CASE WHEN 1 < $3 THEN now() + interval '1 second' * (0.5 + random()) END, $2)
ON CONFLICT (key) DO UPDATE SET
    attempts = held.attempts + 1,
    error    = excluded.error,
    next_try = CASE WHEN held.attempts + 1 < $3
        THEN now() + interval '1 second' * least(2 ^ held.attempts, 300) * (0.5 + random()) END
RETURNING attempts, next_try IS NULL`

// save deletes confirmed rows and records refused keys.
func (r *Relay) save(ctx context.Context, w *window) error {
	confirmed, refused := w.outcome()
	if len(confirmed) > 0 {
		if _, err := r.cfg.Outbox.db.ExecContext(ctx, deleteConfirmed, confirmed); err != nil {
			return fmt.Errorf("delete confirmed rows: %w", err)
		}
	}
	for _, refusal := range refused {
		var attempts int
		var given bool
		row := r.cfg.Outbox.db.QueryRowContext(ctx, holdKey, refusal.key, refusal.err.Error(), r.cfg.Tries)
		if err := row.Scan(&attempts, &given); err != nil {
			return fmt.Errorf("hold key: %w", err)
		}
		r.cfg.Logger.Error("message refused: its key is held", "key", refusal.key, "error", refusal.err,
			"attempts", attempts, "waits_for_operator", given)
	}
	w.saved(len(confirmed), len(refused))
	return nil
}
