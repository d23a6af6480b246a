// Package postgrestest gives each test a database of its own on the real server, so that tests run side
// by side and leave nothing behind.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/postgres"
	"onceshop/pkg/stack"
)

// New returns a pool on a new database to which sets have been applied. Pool and database are gone when
// the test ends, whoever is still connected. Without a server the test fails and says how to start one.
func New(t testing.TB, sets ...postgres.Migrations) *sqlx.DB {
	t.Helper()
	return Open(t, URL(t, sets...))
}

// URL is New for a test that opens the database itself, such as one that starts a process.
func URL(t testing.TB, sets ...postgres.Migrations) string {
	t.Helper()
	url, drop, err := Create(context.Background(), sets...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, drop()) })
	return url
}

// Create is URL for those without a testing.TB, such as an Example. The function returned drops the
// database, whoever is still connected.
func Create(ctx context.Context, sets ...postgres.Migrations) (url string, drop func() error, err error) {
	found, err := stack.Find()
	if err != nil {
		return "", nil, err
	}
	admin, err := postgres.Open(postgres.Config{URL: found.DatabaseURL, MaxConnections: 2, StatementLimit: time.Minute})
	if err != nil {
		return "", nil, err
	}
	name := "test_" + uuid.NewString()
	if _, err := admin.ExecContext(ctx, `CREATE DATABASE "`+name+`"`); err != nil {
		return "", nil, errors.Join(fmt.Errorf("PostgreSQL does not answer: run `make stack`: %w", err), admin.Close())
	}
	drop = func() error {
		_, err := admin.ExecContext(context.WithoutCancel(ctx), `DROP DATABASE IF EXISTS "`+name+`" WITH (FORCE)`)
		return errors.Join(err, admin.Close())
	}
	if url, err = found.Database(name, "", ""); err == nil {
		err = migrate(ctx, url, sets)
	}
	if err != nil {
		return "", nil, errors.Join(err, drop())
	}
	return url, drop, nil
}

func migrate(ctx context.Context, url string, sets []postgres.Migrations) error {
	if len(sets) == 0 {
		return nil
	}
	db, err := postgres.Open(postgres.Config{URL: url})
	if err != nil {
		return err
	}
	return errors.Join(postgres.Migrate(ctx, db, sets...), db.Close())
}

// Open returns a pool on the database at url that is closed when the test ends.
func Open(t testing.TB, url string) *sqlx.DB {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: url, ApplicationName: t.Name()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

const (
	otherConnections = `
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`
	deadlocksSeen = `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`
)

// Deadlocks returns how many the database at url has seen: postgres.InTx repeats what was in one, so that it
// goes unseen. All pools on the database must be closed, for a connection tells what it has counted when it
// ends.
func Deadlocks(t testing.TB, url string) (n int) {
	t.Helper()
	db := Open(t, url)
	require.Eventually(t, func() bool {
		var others int
		require.NoError(t, db.Get(&others, otherConnections))
		return others == 0
	}, 10*time.Second, 10*time.Millisecond, "a pool is still open")
	require.NoError(t, db.Get(&n, deadlocksSeen))
	return n
}
