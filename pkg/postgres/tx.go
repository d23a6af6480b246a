package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"
)

// maxTries bounds how often InTx runs its function when PostgreSQL asks for a repetition.
const maxTries = 5

// InTx runs fn in a READ COMMITTED transaction and commits it. Where fn returns an error or panics, the
// transaction is rolled back and the error returned, or the panic continued.
//
// fn is run again, up to five times in all and after a few milliseconds, only when PostgreSQL rolled the
// transaction back and asks for it: SQLSTATE 40001 (serialization failure) and 40P01 (deadlock). So fn
// must have no effect but through its transaction. After any other error of COMMIT, such as a connection
// that is lost, the outcome is unknown: the transaction may have been committed, and it is not repeated.
func InTx(ctx context.Context, db *sqlx.DB, fn func(tx *sqlx.Tx) error) error {
	for try := 1; ; try++ {
		err := inTx(ctx, db, fn)
		if err == nil || try == maxTries || !wantsRepetition(err) {
			return err
		}
		select {
		case <-time.After(time.Duration(try)*5*time.Millisecond + rand.N(10*time.Millisecond)):
		case <-ctx.Done():
			return err
		}
	}
}

func inTx(ctx context.Context, db *sqlx.DB, fn func(tx *sqlx.Tx) error) error {
	tx, err := db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	// After a commit this does nothing; otherwise, and in a panic, it gives the locks back.
	defer func() { _ = tx.Rollback() }()
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func wantsRepetition(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40001" || pg.Code == "40P01")
}
