package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jmoiron/sqlx"

	"onceshop/pkg/postgres"
)

// ErrNotHeld means that no message of the key was refused.
var ErrNotHeld = errors.New("the key is not held")

// Held is a key whose first message the broker refused, and all whose messages wait.
type Held struct {
	Key       string     `db:"key" json:"key"`
	Attempts  int        `db:"attempts" json:"attempts"`
	NextTry   *time.Time `db:"next_try" json:"next_try"` // nil: none, until it is redriven or dropped
	Error     string     `db:"error" json:"error"`
	Since     time.Time  `db:"since" json:"since"`
	MessageID string     `db:"message_id" json:"message_id"` // of the first message
	Topic     string     `db:"topic" json:"topic"`           // of the first message
	Waiting   int        `db:"waiting" json:"waiting"`       // messages of the key, with the first
}

const listHeld = `
SELECT held.key, held.attempts, held.next_try, held.error, held.since, coalesce(first.message_id, '') AS message_id,
    coalesce(first.topic, '') AS topic, (SELECT count(*) FROM outbox WHERE outbox.key = held.key) AS waiting
FROM outbox_held held
LEFT JOIN LATERAL (SELECT message_id, topic FROM outbox WHERE outbox.key = held.key ORDER BY id LIMIT 1) first ON true
ORDER BY held.since`

// ListHeld returns all held keys, those held for longest first.
func ListHeld(ctx context.Context, db *sqlx.DB) ([]Held, error) {
	var held []Held
	if err := db.SelectContext(ctx, &held, listHeld); err != nil {
		return nil, fmt.Errorf("list held keys: %w", err)
	}
	return held, nil
}

const redrive = `UPDATE outbox_held SET attempts = 0, next_try = now() WHERE key = $1`

// Redrive has the first message of the key tried again at once, and as often as if it were new. The later
// ones follow in order once it is through.
func Redrive(ctx context.Context, db *sqlx.DB, key string) error {
	result, err := db.ExecContext(ctx, redrive, key)
	if err != nil {
		return fmt.Errorf("redrive %s: %w", key, err)
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 0 {
		return errors.Join(fmt.Errorf("redrive %s: %w", key, ErrNotHeld), err)
	}
	return nil
}

const (
	dropFirst = `
DELETE FROM outbox WHERE id = (SELECT min(id) FROM outbox WHERE key = $1)
RETURNING message_id, topic, key, payload, metadata, created_at`
	release = `DELETE FROM outbox_held WHERE key = $1`
)

// dropped is a row as Drop returns it. A payload that is no text is in base64.
type dropped struct {
	MessageID     string          `db:"message_id" json:"message_id"`
	Topic         string          `db:"topic" json:"topic"`
	Key           string          `db:"key" json:"key"`
	Payload       []byte          `db:"payload" json:"-"`
	PayloadText   string          `db:"-" json:"payload,omitempty"`
	PayloadBase64 []byte          `db:"-" json:"payload_base64,omitempty"`
	Metadata      json.RawMessage `db:"metadata" json:"metadata"`
	CreatedAt     time.Time       `db:"created_at" json:"created_at"`
}

// Drop deletes the first message of the key for good, and returns the row as JSON, so that it can be kept;
// nil if the key is held and has no message, as when somebody deleted it. The later ones follow in order.
func Drop(ctx context.Context, db *sqlx.DB, key string) (row []byte, err error) {
	err = postgres.InTx(ctx, db, func(tx *sqlx.Tx) error {
		row = nil
		var first dropped
		switch err := tx.GetContext(ctx, &first, dropFirst, key); {
		case err == nil:
			if row, err = first.encode(); err != nil {
				return err
			}
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		// In this order, which is the relay's: it may be deleting the row and the key at this moment.
		result, err := tx.ExecContext(ctx, release, key)
		if err != nil {
			return err
		}
		if rows, err := result.RowsAffected(); err != nil || rows == 0 {
			return errors.Join(ErrNotHeld, err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("drop the first message of %s: %w", key, err)
	}
	return row, nil
}

func (d *dropped) encode() ([]byte, error) {
	if utf8.Valid(d.Payload) {
		d.PayloadText = string(d.Payload)
	} else {
		d.PayloadBase64 = d.Payload
	}
	return json.Marshal(d)
}
