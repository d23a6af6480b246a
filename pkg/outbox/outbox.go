// Package outbox publishes a service's events without ever publishing one whose change was rolled back, or
// losing one whose change was committed.
//
// A handler writes its change and its events in one transaction:
//
//	err := box.InTx(ctx, func(tx *sqlx.Tx) error {
//		if _, err := tx.ExecContext(ctx, `UPDATE orders SET status = 'confirmed' …`); err != nil {
//			return err
//		}
//		return box.PublishTx(ctx, tx, events.OrderConfirmed{…})
//	})
//
// A Relay reads the rows, sends them to the broker and deletes those that the broker confirmed. One that
// dies between the confirm and the delete sends its rows again: delivery is at least once.
//
// # Order
//
// The messages of one key are first delivered in the order of their rows. That rests on three rules alone,
// and not on there being one relay (a second one makes duplicates, no disorder):
//
//  1. A relay has at most one unconfirmed message per key under way.
//  2. A read that returns a row returns every undeleted row of its key with a smaller id too, or the relay
//     has them already.
//  3. A row is deleted only after its message is confirmed.
//
// They need the writer's help: within one key, ids must be in commit order. That holds where a writer
// locks the aggregate's row before it calls PublishTx and keeps the lock until it commits.
package outbox

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"onceshop/pkg/broker"
	"onceshop/pkg/events"
	"onceshop/pkg/postgres"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the outbox's tables, for postgres.Migrate.
func Migrations() postgres.Migrations { return postgres.EmbeddedMigrations("outbox", migrations) }

// Outbox writes events into the outbox table of one database. It is safe for concurrent use.
type Outbox struct {
	db        *sqlx.DB
	source    string
	wake      chan struct{} // taken by the relay of this process
	leading   atomic.Bool   // the relay of this process is the active one
	notifying atomic.Bool   // a NOTIFY is about to go
}

// New returns the outbox of db. The source is the events' CloudEvents source, "/onceshop/<service>".
func New(db *sqlx.DB, source string) (*Outbox, error) {
	if db == nil || source == "" {
		return nil, errors.New("outbox.New: db and source are required")
	}
	return &Outbox{db: db, source: source, wake: make(chan struct{}, 1)}, nil
}

// InTx runs fn in a transaction, as postgres.InTx does, and wakes the relay once it is committed,
// in whichever process it is active.
func (o *Outbox) InTx(ctx context.Context, fn func(tx *sqlx.Tx) error) error {
	if err := postgres.InTx(ctx, o.db, fn); err != nil {
		return err
	}
	o.committed()
	return nil
}

// PublishTx writes the events into the outbox in tx; they are published if and when tx is committed, each
// under its aggregate's id as key. Cause, correlation and trace context are taken from ctx
// (events.WithCause); an event that nothing caused starts a correlation of its own. What the broker could
// not carry (broker.Check) is a permanent error, and nothing is written.
//
// Lock the aggregate's row in tx before: see Order in the package comment.
func (o *Outbox) PublishTx(ctx context.Context, tx *sqlx.Tx, published ...events.Event) error {
	messages := make([]*message.Message, len(published))
	for i, event := range published {
		var err error
		if messages[i], err = NewMessage(ctx, o.source, event); err != nil {
			return err
		}
	}
	return PublishMessagesTx(ctx, tx, messages...)
}

// NewMessage returns the event as a message with a new id and with the metadata that package events names.
func NewMessage(ctx context.Context, source string, event events.Event) (*message.Message, error) {
	payload, err := json.Marshal(event)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", event.Name(), err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("new message id: %w", err)
	}
	msg := message.NewMessage(id.String(), payload)
	key, _ := event.Aggregate()
	cause := events.CauseOf(ctx)
	if cause.CorrelationID == "" {
		cause.CorrelationID = msg.UUID
	}
	for name, value := range map[string]string{
		events.Type:          event.Name(),
		events.Source:        source,
		events.Subject:       key,
		events.Time:          time.Now().UTC().Format(time.RFC3339Nano),
		events.CorrelationID: cause.CorrelationID,
		events.CausationID:   cause.CausationID,
		events.Traceparent:   cause.Traceparent,
	} {
		if value != "" {
			msg.Metadata.Set(name, value)
		}
	}
	return msg, nil
}

// PublishMessagesTx is PublishTx for messages of the caller's own making. Each needs an id, and in its
// metadata events.Type and, as key, events.Subject.
func PublishMessagesTx(ctx context.Context, tx *sqlx.Tx, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	for _, msg := range messages {
		if err := broker.Check(msg); err != nil {
			return err
		}
		if msg.Metadata.Get(events.Subject) == "" {
			return fmt.Errorf("message %s: no %s in its metadata: the outbox needs a key", msg.UUID, events.Subject)
		}
	}
	return insert(ctx, tx, messages)
}
