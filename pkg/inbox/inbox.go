// Package inbox makes a Watermill handler's effect in PostgreSQL happen once, however often its message is
// delivered.
//
// The middleware begins a transaction, writes the message's id into the inbox table, runs the handler with
// the transaction in its context, and commits; the ack follows the commit. A message whose id is there
// already was handled: it is acked, and the handler is not called.
//
//	box, err := inbox.New(inbox.Config{
//		Consumer: "billing.orders",
//		InTx: func(ctx context.Context, fn func(*sqlx.Tx) error) error {
//			return postgres.InTx(ctx, db, fn)
//		},
//	})
//	…
//	router.AddConsumerHandler("billing", "orders", subscriber, func(msg *message.Message) error {
//		ctx := msg.Context()
//		_, err := inbox.Tx(ctx).ExecContext(ctx, `UPDATE accounts SET balance = balance + $1 …`)
//		return err
//	}).AddMiddleware(box.Middleware)
//
// It works with any subscriber that delivers again what was not acked. Of a message it asks for an id
// (Config.Key) and for the time when its event occurred: the metadata "time" (events.Time, RFC 3339), the same
// in each delivery. Without these, or where nobody else can help, the error is of class fault.Permanent:
// whoever consumes has to set such a message aside, as package broker does, or it comes again for ever.
//
// # What it promises
//
// Delivery may be at least once, in any order, and to many processes at once: the effect in this database
// is exactly once for each consumer. It is not at least once by itself: a message that nobody delivers
// again after an error is lost. Nor is it better than the database's word: with synchronous_commit off, or
// after a failover to a standby that lags behind, a message was acked whose effect and row are gone.
//
// An effect elsewhere (a call to another server, a file, a published message) is not covered, because it
// can't be rolled back: record the intent here, in the transaction, and act on it after the commit. Events
// go to an outbox in the same transaction.
//
// The order of messages is not restored either. A handler needs an effect that commutes, such as a sum, or
// a guard of its own. Where that guard is a version in the message (`WHERE version < $1`), a status or a
// unique key, it stops repetitions too, and no inbox is needed.
//
// # How long it remembers
//
// A Cleaner deletes the rows of messages that were handled longer than Config.Window ago. A repetition that
// comes later finds no row; it is refused by its age instead (ErrTooOld), so it has no second effect. That
// rests on no assumption about the clock of whoever published it, only on the same time in each delivery:
//
//   - A message is handled only if its time is no more than Margin/2 ahead of the clock. Let h be when its
//     transaction began: the row's handled_at. So time ≤ h + Margin/2.
//   - The row is there until h + Window, by the clock of the database.
//   - A repetition is told by its row while that is there. The age is looked at after the claim has
//     found no row, so not before h + Window, and then the age is Window − Margin/2 or more. Only a
//     message younger than Window − Margin is handled.
//
// Margin/2 is left for what the clocks of the consumers and the database differ by, and for the
// handler's transaction to get from its begin to its claim: half an hour, by default.
package inbox

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"

	"onceshop/pkg/events"
	"onceshop/pkg/fault"
	"onceshop/pkg/postgres"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the inbox's table, for postgres.Migrate.
func Migrations() postgres.Migrations { return postgres.EmbeddedMigrations("inbox", migrations) }

// Config configures an Inbox. The zero value of each optional field is its default.
type Config struct {
	// Consumer names the handlers that share the inbox, required. The same message may have one effect for
	// each consumer. It must not change with a deployment.
	Consumer string
	// InTx begins, commits and rolls back the transaction, required: an outbox's InTx, so that the events
	// which the handler publishes wake the relay, or a closure over postgres.InTx. READ COMMITTED is
	// enough.
	InTx func(ctx context.Context, fn func(tx *sqlx.Tx) error) error
	// Key returns what all deliveries of one message have in common, and no other message has, in at most
	// MaxKey bytes. Default: the message's UUID.
	Key func(*message.Message) string
	// Window is how long a message is remembered after it was handled. Default DefaultWindow, 7 days. All
	// processes of a consumer must have the same one: stop them all to change it. After raising it, a
	// repetition whose row the shorter window deleted would be handled again, until the difference has
	// passed (docs/guarantees.md).
	Window time.Duration
	// Margin is what the window is longer than the age of the oldest message that is handled. Half of it
	// covers the publisher's clock, the other half the consumers' and the database's. Default
	// DefaultMargin, 1 hour.
	Margin time.Duration
	// RetrySpan is the longest time for which whoever delivers messages may try one again by itself, such
	// as broker.ConsumerConfig's RetrySpan. Default 0. Window must be longer than RetrySpan + Margin, or
	// New fails: a message would be too old when its last try comes.
	RetrySpan time.Duration
	// Registerer takes the counter inbox_messages_total{consumer,result}. Default: nobody. The results are
	// handled, duplicate, conflict (ErrConflict), too_old (ErrTooOld), and failed for all other errors.
	Registerer prometheus.Registerer
}

// The defaults of Config.
const (
	DefaultWindow = 7 * 24 * time.Hour
	DefaultMargin = time.Hour
)

func (c *Config) setDefaults() {
	if c.Key == nil {
		c.Key = func(msg *message.Message) string { return msg.UUID }
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if c.Margin == 0 {
		c.Margin = DefaultMargin
	}
}

func (c *Config) validate() error {
	if c.Consumer == "" || c.InTx == nil {
		return errors.New("inbox.Config: Consumer and InTx are required")
	}
	if c.Margin < 0 || c.RetrySpan < 0 {
		return fmt.Errorf("inbox.Config: Margin %s, RetrySpan %s: a time is not negative", c.Margin, c.RetrySpan)
	}
	if err := CheckWindow(c.Window, c.Margin, c.RetrySpan); err != nil {
		return fmt.Errorf("inbox.Config: %w", err)
	}
	return nil
}

// Inbox is a Watermill middleware. It is safe for concurrent use.
type Inbox struct {
	cfg     Config
	results *prometheus.CounterVec // result
}

// New returns an inbox, or an error if cfg is incomplete or its window too short, or if its counter is
// registered already: a consumer has one inbox per process.
func New(cfg Config) (*Inbox, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	results := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name:        "inbox_messages_total",
		Help:        "Messages by result: handled, duplicate, conflict, too_old, failed.",
		ConstLabels: prometheus.Labels{"consumer": cfg.Consumer},
	}, []string{"result"})
	for _, result := range []string{handled, duplicate, conflict, tooOld, failed} {
		results.WithLabelValues(result) // at 0 from the start
	}
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(results); err != nil {
			return nil, fmt.Errorf("inbox of %s: %w", cfg.Consumer, err)
		}
	}
	return &Inbox{cfg, results}, nil
}

// The results that are counted.
const (
	handled   = "handled"
	duplicate = "duplicate"
	conflict  = "conflict"
	tooOld    = "too_old"
	failed    = "failed"
)

func resultOf(err error) string {
	switch {
	case err == nil:
		return handled
	case errors.Is(err, errDuplicate):
		return duplicate
	case errors.Is(err, ErrConflict):
		return conflict
	case errors.Is(err, ErrTooOld):
		return tooOld
	}
	return failed
}

var errDuplicate = errors.New("handled before")

// Middleware runs next in a transaction that also holds the message's key, and commits both. It returns
// nil, which acks the message, once that is committed, and for a message that was handled before.
//
// An error or a panic of next rolls both back, and the message is to be delivered again. An error of the
// commit leaves it unknown whether both or neither are there; the next delivery finds out. Two copies
// handled at once: the second waits until the first has committed, and is then a duplicate, or has rolled
// back, and is then handled.
//
// What no repetition can help is an error of class fault.Permanent, for the dead letters: a key that is
// empty or longer than MaxKey; the key of a message that had another type or payload (ErrConflict); a
// message that is too old (ErrTooOld) or of unknown age, unless it is forced (events.Force); and messages returned
// by next, which would be published outside the transaction: write them to the outbox.
func (i *Inbox) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		result := failed // in a panic, too
		defer func() { i.results.WithLabelValues(result).Inc() }()
		ctx := msg.Context()
		defer msg.SetContext(ctx)
		key, fingerprint := i.cfg.Key(msg), Fingerprint(msg.Metadata.Get(events.Type), msg.Payload)
		err := i.cfg.InTx(ctx, func(tx *sqlx.Tx) error {
			fresh, err := Claim(ctx, tx, i.cfg.Consumer, key, fingerprint)
			if err != nil {
				return err
			}
			if !fresh {
				return errDuplicate
			}
			if err := i.cfg.checkAge(msg, time.Now()); err != nil {
				return err
			}
			msg.SetContext(context.WithValue(ctx, txKey{}, tx))
			produced, err := next(msg)
			if err == nil && len(produced) > 0 {
				return fault.AsPermanent(errors.New("inbox: the handler returned messages: write them to the outbox"))
			}
			return err
		})
		if result = resultOf(err); result == duplicate {
			return nil, nil
		}
		return nil, err
	}
}

type txKey struct{}

// Tx returns the transaction of the handler that runs under ctx. It panics where there is none, which
// means that the middleware is missing.
func Tx(ctx context.Context) *sqlx.Tx {
	tx, ok := ctx.Value(txKey{}).(*sqlx.Tx)
	if !ok {
		panic("inbox.Tx: no transaction in the context: the inbox middleware is missing")
	}
	return tx
}
