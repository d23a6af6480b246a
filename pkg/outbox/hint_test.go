package outbox

import (
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/postgres/postgrestest"
)

const insertRow = `INSERT INTO outbox (message_id, topic, key, payload, metadata) VALUES ('m', 't', 'k', '', '{}') RETURNING id`

func write(t *testing.T, tx sqlx.Queryer) (id int64) {
	t.Helper()
	require.NoError(t, tx.QueryRowx(insertRow).Scan(&id))
	return id
}

// requireMoves advances the hint until it is at the id. Transactions of other tests, in other databases of the
// server, hold it back for a while.
func requireMoves(t *testing.T, h *hint, db *sqlx.DB, to int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		require.NoError(t, h.advance(t.Context(), db))
		require.LessOrEqual(t, h.from, to)
		return h.from == to
	}, 30*time.Second, 5*time.Millisecond)
}

func TestHintPassesWhatIsGone(t *testing.T) {
	t.Parallel()
	db := postgrestest.New(t, Migrations())
	h := &hint{}
	requireMoves(t, h, db, 0) // an empty table
	first, second := write(t, db), write(t, db)
	requireMoves(t, h, db, first-1) // not past a row that is there
	_, err := db.Exec(`DELETE FROM outbox WHERE id = $1`, first)
	require.NoError(t, err)
	requireMoves(t, h, db, second-1)
	_, err = db.Exec(`DELETE FROM outbox`)
	require.NoError(t, err)
	requireMoves(t, h, db, second)
}

// The one with the lower id runs on, and has the higher transaction id: neither the last id that was seen
// nor a snapshot's xmax, which is one past the last completed transaction, tells of it. (On a server where
// others complete transactions meanwhile, xmax does: hence the repetitions.)
func TestHintWaitsForWhoeverMayStillCommitALowerID(t *testing.T) {
	t.Parallel()
	db := postgrestest.New(t, Migrations())
	begin := func() *sqlx.Tx {
		tx, err := db.Beginx()
		require.NoError(t, err)
		_, err = tx.Exec(`SELECT pg_current_xact_id()`)
		require.NoError(t, err)
		return tx
	}
	h := &hint{}
	for range 30 {
		early, late := begin(), begin()
		lower := write(t, late)
		higher := write(t, early)
		require.Less(t, lower, higher)
		require.NoError(t, early.Commit())
		for range 6 {
			require.NoError(t, h.advance(t.Context(), db))
			require.Less(t, h.from, lower)
		}
		require.NoError(t, late.Commit())
		requireMoves(t, h, db, lower-1)
		_, err := db.Exec(`DELETE FROM outbox`)
		require.NoError(t, err)
	}
}

func TestHintDoesNotWaitForAnOldSnapshot(t *testing.T) {
	t.Parallel()
	db := postgrestest.New(t, Migrations())
	reader, err := db.Beginx()
	require.NoError(t, err)
	defer func() { _ = reader.Rollback() }()
	_, err = reader.Exec(`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox`)
	require.NoError(t, err)
	id := write(t, db)
	_, err = db.Exec(`DELETE FROM outbox`)
	require.NoError(t, err)
	requireMoves(t, &hint{}, db, id)
}

func TestHintStartsAnewWhenIDsDo(t *testing.T) {
	t.Parallel()
	db := postgrestest.New(t, Migrations())
	for range 3 {
		write(t, db)
	}
	_, err := db.Exec(`DELETE FROM outbox`)
	require.NoError(t, err)
	h := &hint{}
	requireMoves(t, h, db, 3)
	_, err = db.Exec(`TRUNCATE outbox RESTART IDENTITY`)
	require.NoError(t, err)
	id := write(t, db)
	for range 3 {
		require.NoError(t, h.advance(t.Context(), db))
	}
	require.Less(t, h.from, id)
}

// The transaction id is taken before the id, which the hint relies on.
func TestTransactionIDIsTakenBeforeTheID(t *testing.T) {
	t.Parallel()
	db := postgrestest.New(t, Migrations())
	// A sequence that tells whether its caller has a transaction id already.
	_, err := db.Exec(`
CREATE TABLE seen (had_xid boolean);
CREATE FUNCTION note() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE had boolean := pg_current_xact_id_if_assigned() IS NOT NULL;
BEGIN INSERT INTO seen VALUES (had); RETURN 1; END $$;
ALTER TABLE outbox ALTER COLUMN id DROP IDENTITY;
ALTER TABLE outbox ALTER COLUMN id SET DEFAULT note();`)
	require.NoError(t, err)
	write(t, db)
	var had bool
	require.NoError(t, db.Get(&had, `SELECT had_xid FROM seen`))
	require.True(t, had)
}
