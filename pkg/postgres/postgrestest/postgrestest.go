// Package postgrestest gives each test a database of its own on the real server, so that tests run side
// by side and leave nothing behind.
package postgrestest

import (
	"context"
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
	found, err := stack.Find()
	require.NoError(t, err)
	admin, err := postgres.Open(postgres.Config{URL: found.DatabaseURL, MaxConnections: 2, StatementLimit: time.Minute})
	require.NoError(t, err)
	ctx := context.Background()
	name := "test_" + uuid.NewString()
	_, err = admin.ExecContext(ctx, `CREATE DATABASE "`+name+`"`)
	require.NoError(t, err, "PostgreSQL does not answer: run `make stack`")
	t.Cleanup(func() {
		_, err := admin.ExecContext(ctx, `DROP DATABASE IF EXISTS "`+name+`" WITH (FORCE)`)
		require.NoError(t, err)
		require.NoError(t, admin.Close())
	})
	url, err := found.Database(name, "", "")
	require.NoError(t, err)
	if len(sets) > 0 {
		db, err := postgres.Open(postgres.Config{URL: url})
		require.NoError(t, err)
		require.NoError(t, postgres.Migrate(ctx, db, sets...))
		require.NoError(t, db.Close())
	}
	return url
}

// Open returns a pool on the database at url that is closed when the test ends.
func Open(t testing.TB, url string) *sqlx.DB {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: url, ApplicationName: t.Name()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
