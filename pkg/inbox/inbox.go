// Package inbox makes a Watermill handler's effect in PostgreSQL happen once, however often its message is
// delivered.
//
// The middleware begins a transaction, writes the message's id into the inbox table, runs the handler with
// the transaction in its context, and commits; the ack follows the commit. A message whose id is there
// already was handled: it is acked, and the handler is not called.
//
//	func (s *Service) onOrderPlaced(ctx context.Context, order events.OrderPlaced) error {
//		tx := inbox.Tx(ctx)
//		_, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance + $1 …`)
//		return err
//	}
//
// What that promises, and what not: delivery may be at least once and in any order; the effect in this
// database is exactly once. An effect elsewhere (a call to another server, a file) is not covered, because
// it can't be rolled back: record the intent here, and act on it after the commit.
//
// Not every handler needs one. Where a message carries whole state and a version, `WHERE version < $1` is
// guard enough; where the domain has a status or a unique key, that is.
package inbox

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"

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
	// Registerer takes the counter inbox_messages_total{consumer,result}. Default: nobody.
	Registerer prometheus.Registerer
}

func (c *Config) validate() error {
	if c.Consumer == "" || c.InTx == nil {
		return errors.New("inbox.Config: Consumer and InTx are required")
	}
	return nil
}

// Inbox is a Watermill middleware. It is safe for concurrent use.
type Inbox struct {
	cfg                        Config
	handled, duplicate, failed prometheus.Counter
}

// New returns an inbox.
func New(cfg Config) (*Inbox, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	results := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inbox_messages_total", Help: "Messages by result: handled, duplicate, failed.",
	}, []string{"consumer", "result"})
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(results)
	}
	counter := func(result string) prometheus.Counter { return results.WithLabelValues(cfg.Consumer, result) }
	return &Inbox{cfg, counter("handled"), counter("duplicate"), counter("failed")}, nil
}

var errDuplicate = errors.New("handled before")

// Middleware runs next in a transaction that also holds the message's id, and commits both. It returns nil,
// which acks the message, once that is committed, and for a message that was handled before.
//
// An error or a panic of next rolls both back, and the message is to be delivered again. An error of the
// commit leaves it unknown whether both or neither are there; the next delivery finds out. Two copies
// handled at once: the second waits until the first has committed, and is then a duplicate, or has rolled
// back, and is then handled. A message without an id is a permanent error. So are messages returned by
// next: they would be published outside the transaction; write them to the outbox.
func (i *Inbox) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if msg.UUID == "" {
			return nil, fault.AsPermanent(errors.New("inbox: the message has no id"))
		}
		ctx := msg.Context()
		defer msg.SetContext(ctx)
		err := i.cfg.InTx(ctx, func(tx *sqlx.Tx) error {
			fresh, err := Claim(ctx, tx, i.cfg.Consumer, msg.UUID)
			if err != nil {
				return err
			}
			if !fresh {
				return errDuplicate
			}
			msg.SetContext(context.WithValue(ctx, txKey{}, tx))
			produced, err := next(msg)
			if err == nil && len(produced) > 0 {
				return fault.AsPermanent(errors.New("inbox: the handler returned messages: write them to the outbox"))
			}
			return err
		})
		switch {
		case err == nil:
			i.handled.Inc()
		case errors.Is(err, errDuplicate):
			i.duplicate.Inc()
			return nil, nil
		default:
			i.failed.Inc()
		}
		return nil, err
	}
}

const claim = `INSERT INTO inbox (consumer, message_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`

// Claim writes the id into the inbox in tx and returns true, or returns false if it is there already. Where
// another transaction holds a claim of the same id, it waits until that one ends. It is for those who have
// no Watermill handler, such as a webhook.
func Claim(ctx context.Context, tx *sqlx.Tx, consumer, id string) (bool, error) {
	result, err := tx.ExecContext(ctx, claim, consumer, id)
	if err != nil {
		return false, fmt.Errorf("claim message %s: %w", id, err)
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
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
