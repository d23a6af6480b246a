package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
)

// newCounters returns a database with two counters, a and b, at 0.
func newCounters(t *testing.T) *sqlx.DB {
	t.Helper()
	db := postgrestest.New(t)
	db.SetMaxOpenConns(4)
	_, err := db.ExecContext(t.Context(), `CREATE TABLE counters AS SELECT name, 0 AS n FROM unnest(ARRAY['a', 'b']) AS name`)
	require.NoError(t, err)
	return db
}

func increment(ctx context.Context, tx *sqlx.Tx, name string) error {
	_, err := tx.ExecContext(ctx, `UPDATE counters SET n = n + 1 WHERE name = $1`, name)
	return err
}

func counted(t *testing.T, db *sqlx.DB) (a, b int) {
	t.Helper()
	require.NoError(t, db.QueryRowxContext(t.Context(), `SELECT sum(n) FILTER (WHERE name = 'a'), sum(n) FILTER (WHERE name = 'b') FROM counters`).Scan(&a, &b))
	return a, b
}

func TestErrorRollsBack(t *testing.T) {
	t.Parallel()
	db := newCounters(t)
	wrong := errors.New("not today")
	err := postgres.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		require.NoError(t, increment(t.Context(), tx, "a"))
		return wrong
	})
	require.Equal(t, wrong, err)
	a, _ := counted(t, db)
	require.Zero(t, a)
}

func TestPanicRollsBackAndGoesOn(t *testing.T) {
	t.Parallel()
	db := newCounters(t)
	db.SetMaxOpenConns(1) // so a transaction that stays open would block what follows
	require.PanicsWithValue(t, "not today", func() {
		_ = postgres.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
			require.NoError(t, increment(t.Context(), tx, "a"))
			panic("not today")
		})
	})
	a, _ := counted(t, db)
	require.Zero(t, a)
}

func TestSuccessCommits(t *testing.T) {
	t.Parallel()
	db := newCounters(t)
	require.NoError(t, postgres.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		var level string
		require.NoError(t, tx.GetContext(t.Context(), &level, `SHOW transaction_isolation`))
		require.Equal(t, "read committed", level)
		return increment(t.Context(), tx, "a")
	}))
	a, _ := counted(t, db)
	require.Equal(t, 1, a)
}

// raise makes PostgreSQL fail with that SQLSTATE.
func raise(ctx context.Context, tx *sqlx.Tx, code string) error {
	_, err := tx.ExecContext(ctx, fmt.Sprintf(`DO $$ BEGIN RAISE EXCEPTION 'on demand' USING ERRCODE = '%s'; END $$`, code))
	return fmt.Errorf("wrapped: %w", err)
}

func TestOnlyWhatPostgreSQLAsksForIsRepeated(t *testing.T) {
	t.Parallel()
	db := newCounters(t)
	for code, tries := range map[string]int{
		"40001": 5, "40P01": 5, // serialization failure, deadlock
		"40002": 1, "40003": 1, "23505": 1, "55P03": 1, "57014": 1, "57P01": 1, "08006": 1, "P0001": 1, "22012": 1,
	} {
		ran := 0
		err := postgres.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
			ran++
			require.NoError(t, increment(t.Context(), tx, "a"))
			return raise(t.Context(), tx, code)
		})
		var pg *pgconn.PgError
		require.ErrorAs(t, err, &pg)
		require.Equal(t, code, pg.Code)
		require.Equal(t, tries, ran, code)
	}
	a, _ := counted(t, db)
	require.Zero(t, a)
}

func TestRepetitionThatSucceedsHasOneEffect(t *testing.T) {
	t.Parallel()
	db := newCounters(t)
	ran := 0
	require.NoError(t, postgres.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		ran++
		require.NoError(t, increment(t.Context(), tx, "a"))
		if ran < 3 {
			return raise(t.Context(), tx, "40001")
		}
		return nil
	}))
	a, _ := counted(t, db)
	require.Equal(t, []int{3, 1}, []int{ran, a})
}

func TestRepetitionEndsWithTheContext(t *testing.T) {
	t.Parallel()
	db := newCounters(t)
	ctx, cancel := context.WithCancel(t.Context())
	ran := 0
	err := postgres.InTx(ctx, db, func(tx *sqlx.Tx) error {
		ran++
		defer cancel()
		return raise(t.Context(), tx, "40001")
	})
	requireCode(t, err, "40001") // and not what comes of trying again
	require.Equal(t, 1, ran)
}

// Two transactions take the counters in opposite order, and each waits until the other has its first.
func TestDeadlockIsRepeated(t *testing.T) {
	t.Parallel()
	db := newCounters(t)
	var ran atomic.Int32
	first := map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
	increments := func(mine, others string) error {
		met := false
		return postgres.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
			ran.Add(1)
			if _, err := tx.ExecContext(t.Context(), `SET LOCAL deadlock_timeout = '20ms'`); err != nil {
				return err
			}
			if err := increment(t.Context(), tx, mine); err != nil {
				return err
			}
			if !met {
				met = true
				close(first[mine])
				<-first[others]
			}
			return increment(t.Context(), tx, others)
		})
	}
	other := make(chan error, 1)
	go func() { other <- increments("b", "a") }()
	require.NoError(t, increments("a", "b"))
	require.NoError(t, <-other)
	a, b := counted(t, db)
	require.Equal(t, []int{2, 2}, []int{a, b})
	require.GreaterOrEqual(t, ran.Load(), int32(3), "a transaction was not repeated: was there a deadlock?")
}

func TestErrorOfCommitIsNotRepeated(t *testing.T) {
	t.Parallel()
	db := newCounters(t)
	ran := 0
	err := postgres.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		ran++
		require.NoError(t, increment(t.Context(), tx, "a"))
		var pid int
		require.NoError(t, tx.GetContext(t.Context(), &pid, `SELECT pg_backend_pid()`))
		_, err := db.ExecContext(t.Context(), `SELECT pg_terminate_backend($1, 5000)`, pid)
		return err
	})
	require.ErrorContains(t, err, "commit: ")
	require.Equal(t, 1, ran)
	a, _ := counted(t, db)
	require.Zero(t, a)
}
