package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
)

// readBatch returns the first rows that the relay doesn't know and whose key isn't held. It reads from the
// lowest id that can still appear (hint.go), not from where the last read ended: a row whose transaction
// committed late has a low id, and rule 2 wants it first.
const readBatch = `
SELECT id, message_id, key, payload, metadata
FROM outbox
WHERE id > $1 AND id <> ALL ($2)
  AND key NOT IN (SELECT key FROM outbox_held WHERE next_try IS NULL OR next_try > now())
ORDER BY id
LIMIT $3`

// read returns at most a batch, by count and by bytes.
func (r *Relay) read(ctx context.Context, db *sqlx.DB, from int64, known []int64) ([]row, error) {
	rows, err := db.QueryContext(ctx, readBatch, from, known, r.cfg.BatchSize)
	if err != nil {
		return nil, fmt.Errorf("read outbox: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var batch []row
	for sum := 0; sum < r.cfg.BatchSum && rows.Next(); {
		var next row
		var id string
		var payload []byte
		var metadata sql.RawBytes
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
        THEN now() + interval '1 second' * least(2 ^ least(held.attempts, 10), 300) * (0.5 + random()) END
RETURNING attempts, next_try IS NULL`

// save deletes confirmed rows and records refused keys.
func (r *Relay) save(ctx context.Context, db *sqlx.DB, w *window) error {
	confirmed, refused := w.outcome()
	if len(confirmed) > 0 {
		if _, err := db.ExecContext(ctx, deleteConfirmed, confirmed); err != nil {
			return fmt.Errorf("delete confirmed rows: %w", err)
		}
		w.saved(len(confirmed), 0)
	}
	for _, refusal := range refused {
		var attempts int
		var given bool
		row := db.QueryRowContext(ctx, holdKey, refusal.key, refusal.err.Error(), r.cfg.Tries)
		if err := row.Scan(&attempts, &given); err != nil {
			return fmt.Errorf("hold key: %w", err)
		}
		w.saved(0, 1)
		log := r.cfg.Logger.With("key", refusal.key, "error", refusal.err, "attempts", attempts)
		if given {
			log.Error("message refused for the last time: its key waits for an operator (shop outbox list)")
		} else {
			log.Warn("message refused: its key is held until the next try")
		}
	}
	return nil
}
