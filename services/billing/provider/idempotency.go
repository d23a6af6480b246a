package provider

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"onceshop/pkg/postgres"
)

// answer is a response to a client.
type answer struct {
	Status   int    `db:"status"`
	Body     []byte `db:"body"`
	replayed bool
}

// once calls perform in a transaction and returns its answer. With a key, the answer is committed together
// with what perform wrote: a repetition within 24 hours has no effect and gets the stored answer. Another
// request with the key is an idempotency_error, and one that comes while the first is under way a conflict;
// neither is stored. An empty key is none. request is what a repetition must be equal to.
func once(ctx context.Context, db *sqlx.DB, key, request string, perform func(*sqlx.Tx) (answer, error)) (answer, error) {
	var result answer
	err := postgres.InTx(ctx, db, func(tx *sqlx.Tx) error {
		if key == "" {
			var err error
			result, err = perform(tx)
			return err
		}
		stored, err := claimKey(ctx, tx, key, request)
		if err != nil {
			return err
		}
		if stored != nil {
			result = *stored
			return nil
		}
		if result, err = perform(tx); err != nil {
			return err
		}
		return storeAnswer(ctx, tx, key, request, result)
	})
	return result, err
}

const (
	lockKey      = `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))`
	selectAnswer = `
SELECT request, status, body FROM idempotency_keys WHERE key = $1 AND created_at > now() - interval '24 hours'`
)

// claimKey locks the key until tx ends, without waiting, and returns the answer that is stored under it,
// nil if there is none. The answer is read by a statement of its own, whose snapshot has what the lock's
// last holder committed.
func claimKey(ctx context.Context, tx *sqlx.Tx, key, request string) (*answer, error) {
	var locked bool
	if err := tx.GetContext(ctx, &locked, lockKey, key); err != nil {
		return nil, fmt.Errorf("lock idempotency key %s: %w", key, err)
	}
	if !locked {
		return nil, keyInUse(key)
	}
	var stored struct {
		answer
		Request string `db:"request"`
	}
	err := tx.GetContext(ctx, &stored, selectAnswer, key)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read idempotency key %s: %w", key, err)
	case stored.Request != request:
		return nil, &apiError{status: 400, Type: idempotencyError, Message: "The idempotency key '" + key +
			"' was first used for another endpoint, or with other parameters: use another one for this request."}
	}
	stored.replayed = true
	return &stored.answer, nil
}

const insertAnswer = `
INSERT INTO idempotency_keys (key, request, status, body) VALUES ($1, $2, $3, $4)
ON CONFLICT (key) DO UPDATE
SET request = excluded.request, status = excluded.status, body = excluded.body, created_at = excluded.created_at
WHERE idempotency_keys.created_at <= now() - interval '24 hours'`

// storeAnswer stores the answer under a key that is new or has expired. If it is neither, which the lock
// rules out, the request conflicts with another, and its effect is rolled back.
func storeAnswer(ctx context.Context, tx *sqlx.Tx, key, request string, result answer) error {
	done, err := tx.ExecContext(ctx, insertAnswer, key, request, result.Status, result.Body)
	if err != nil {
		return fmt.Errorf("store idempotency key %s: %w", key, err)
	}
	if rows, err := done.RowsAffected(); err != nil || rows == 1 {
		return err
	}
	return keyInUse(key)
}

func keyInUse(key string) error {
	return &apiError{
		status: 409, Type: idempotencyError, Code: "idempotency_key_in_use",
		Message: "Another request with the idempotency key '" + key + "' is under way.",
	}
}
