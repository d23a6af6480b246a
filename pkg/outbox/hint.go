package outbox

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// hint lets reads begin behind the rows that are gone. Without it each read passes all index entries of
// deleted rows that vacuum could not remove yet, which are many while an old snapshot is held anywhere in
// the database (a dump, a forgotten transaction).
//
// It may pass an id only when no row up to that id can ever appear again: when whoever took an id up to
// there from the sequence has committed or rolled back. That is found out in two steps:
//
//  1. Note the last id that was given out; then, in a statement of its own, take a transaction id. Every
//     transaction that was given one of these ids had a transaction id before, and a smaller one: it locked
//     its aggregate's row, or wrote the row's first column (migrations/00001_outbox.sql).
//  2. Once the oldest transaction id still running is greater than that, all of them have ended, and a read
//     with that snapshot or a later one sees what they left. The hint moves to just before the first row.
//
// pg_snapshot_xmax of a snapshot will not do for step 1: it is one past the last *completed* transaction,
// and a running one may have a greater id. `id > last deleted`, without any of this, publishes a later
// version of an aggregate before an earlier one that commits late.
//
// A read-only transaction, however old, has no transaction id and does not hold the hint back.
type hint struct {
	from  int64  // reads return ids above it
	noted int64  // step 1's last id
	xid   string // step 1's transaction id; "" before step 1
}

const (
	lastGiven = `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox_id_seq`
	takeXID   = `SELECT pg_current_xact_id()::text`
	// Both parts of the answer are of one snapshot.
	firstLeft = `
SELECT pg_snapshot_xmin(pg_current_snapshot()) > $1::text::xid8, (SELECT min(id) FROM outbox WHERE id > $2)`
)

// advance takes one of the two steps.
func (h *hint) advance(ctx context.Context, db *sqlx.DB) error {
	if h.xid == "" {
		return h.note(ctx, db)
	}
	var ended bool
	var first sql.NullInt64
	if err := db.QueryRowContext(ctx, firstLeft, h.xid, h.from).Scan(&ended, &first); err != nil {
		return fmt.Errorf("first row of the outbox: %w", err)
	}
	if !ended {
		return nil
	}
	h.xid = ""
	h.from = h.noted
	if first.Valid && first.Int64 <= h.noted {
		h.from = first.Int64 - 1
	}
	return nil
}

func (h *hint) note(ctx context.Context, db *sqlx.DB) error {
	if err := db.GetContext(ctx, &h.noted, lastGiven); err != nil {
		return fmt.Errorf("last id of the outbox: %w", err)
	}
	if h.noted < h.from {
		h.from = 0 // the sequence was set back, as by a restored backup
	}
	if err := db.GetContext(ctx, &h.xid, takeXID); err != nil {
		return fmt.Errorf("take a transaction id: %w", err)
	}
	return nil
}
