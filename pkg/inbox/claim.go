package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"onceshop/pkg/fault"
)

// ErrConflict is the permanent error of a message whose key another message has, with another type or
// payload, that was handled before. Its producer gave an id twice; to drop it as a duplicate would lose it.
var ErrConflict = errors.New("another message with this id was handled before")

// MaxKey is the length of the longest key, in bytes. An index of PostgreSQL would take up to 2704.
const MaxKey = 1024

// Fingerprint returns a hash of a message's type and payload, which repeated deliveries have in common.
func Fingerprint(kind string, payload []byte) []byte {
	hash, ofKind := sha256.New(), sha256.Sum256([]byte(kind))
	hash.Write(ofKind[:])
	hash.Write(payload)
	return hash.Sum(nil)
}

const claim = `
INSERT INTO inbox (consumer, message_id, fingerprint) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`

// Under READ COMMITTED it sees the row that claim met, for that is committed by then.
const readClaim = `SELECT fingerprint FROM inbox WHERE consumer = $1 AND message_id = $2`

// Claim writes the key into the consumer's inbox in tx and returns true, or returns false if it is there
// already, with the same fingerprint. With another fingerprint, the error is permanent and is ErrConflict.
// Where another transaction holds a claim of the same key, it waits until that one ends.
//
// It is for those who have no Watermill handler, such as a webhook. Nothing but the caller then stops a
// message that is older than the window of the consumer's cleaner (a Cleaner of an Inbox with that
// Consumer). The fingerprint is the caller's choice: Fingerprint of the body, or of less where repetitions
// may differ.
func Claim(ctx context.Context, tx *sqlx.Tx, consumer, key string, fingerprint []byte) (bool, error) {
	if key == "" || len(key) > MaxKey {
		return false, fault.AsPermanent(fmt.Errorf("inbox: message id of %d bytes: want 1 to %d", len(key), MaxKey))
	}
	for {
		result, err := tx.ExecContext(ctx, claim, consumer, key, fingerprint)
		if err != nil {
			return false, fmt.Errorf("claim message %s: %w", key, err)
		}
		if rows, err := result.RowsAffected(); err != nil || rows == 1 {
			return err == nil, err
		}
		var claimed []byte
		err = tx.GetContext(ctx, &claimed, readClaim, consumer, key)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			continue // the cleaner took it in between
		case err != nil:
			return false, fmt.Errorf("read claim of message %s: %w", key, err)
		case !bytes.Equal(claimed, fingerprint):
			return false, fault.AsPermanent(fmt.Errorf("message %s: %w", key, ErrConflict))
		}
		return false, nil
	}
}
