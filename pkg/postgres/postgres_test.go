package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
	"onceshop/pkg/stack"
)

func TestLimitsAreSetOnEachConnection(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	for _, test := range []struct {
		cfg  postgres.Config
		want map[string]string
	}{
		{postgres.Config{URL: url}, map[string]string{
			"application_name": "onceshop", "statement_timeout": "10s", "lock_timeout": "5s",
			"idle_in_transaction_session_timeout": "30s", "tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
		}},
		{
			postgres.Config{
				URL: url, ApplicationName: "relay", StatementLimit: 1500 * time.Millisecond, LockLimit: time.Second, IdleLimit: time.Minute,
			},
			map[string]string{
				"application_name": "relay", "statement_timeout": "1500ms", "lock_timeout": "1s", "idle_in_transaction_session_timeout": "1min",
			},
		},
	} {
		db, err := postgres.Open(test.cfg)
		require.NoError(t, err)
		for name, want := range test.want {
			var got string
			require.NoError(t, db.GetContext(t.Context(), &got, `SELECT current_setting($1)`, name))
			require.Equal(t, want, got, name)
		}
		require.NoError(t, db.Close())
	}
}

func TestStatementThatWaitsTooLongForALockFails(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	db, err := postgres.Open(postgres.Config{URL: url, LockLimit: 50 * time.Millisecond})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	_, err = db.ExecContext(t.Context(), `CREATE TABLE locked ()`)
	require.NoError(t, err)
	holder, err := db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, holder.Rollback()) }()
	_, err = holder.ExecContext(t.Context(), `LOCK TABLE locked`)
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), `INSERT INTO locked DEFAULT VALUES`)
	requireCode(t, err, "55P03")
}

func requireCode(t *testing.T, err error, code string) {
	t.Helper()
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, code, pg.Code)
}

func TestPoolHasABound(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	for limit, want := range map[int]int{0: 40, 3: 3} {
		db, err := postgres.Open(postgres.Config{URL: url, MaxConnections: limit})
		require.NoError(t, err)
		require.Equal(t, want, db.Stats().MaxOpenConnections)
		require.NoError(t, db.Close())
	}
}

func TestWrongURLIsRefusedWithoutShowingThePassword(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"postgres://user:secret@host:port/db", "postgres://user:secret@host:5432/db?sslmode=perhaps", "://secret", "http://user:secret@host"} {
		_, err := postgres.Open(postgres.Config{URL: wrong})
		require.ErrorContains(t, err, "parse database URL: ", wrong)
		require.NotContains(t, err.Error(), "secret@", wrong)
	}
}

func TestAwaitSaysWhyItWaits(t *testing.T) {
	t.Parallel()
	found, err := stack.Find()
	require.NoError(t, err)
	nobody, err := url.Parse(found.DatabaseURL)
	require.NoError(t, err)
	nobody.Host = "127.0.0.1:1"
	db := postgrestest.Open(t, nobody.String())
	ctx, cancel := context.WithCancel(t.Context())
	var reasons []error
	err = postgres.Await(ctx, db, func(reason error) {
		if reasons = append(reasons, reason); len(reasons) == 2 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, reasons, 2)
	require.ErrorContains(t, reasons[0], "connection refused")
}

func TestAwaitDoesNotWaitForAWrongSettingToPass(t *testing.T) {
	t.Parallel()
	found, err := stack.Find()
	require.NoError(t, err)
	absent, err := found.Database("no_such_database_"+uuid.NewString(), "", "")
	require.NoError(t, err)
	never := func(err error) { require.NoError(t, err, "it waits") }
	requireCode(t, postgres.Await(t.Context(), postgrestest.Open(t, absent), never), "3D000")
	stranger, err := found.Database("postgres", "nobody_"+uuid.NewString(), "secret")
	require.NoError(t, err)
	err = postgres.Await(t.Context(), postgrestest.Open(t, stranger), never)
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, "28", pg.Code[:2])
}

func migrations(name string, files map[string]string) postgres.Migrations {
	set := fstest.MapFS{}
	for file, sql := range files {
		set[file] = &fstest.MapFile{Data: []byte("-- +goose Up\n" + sql)}
	}
	return postgres.Migrations{Name: name, FS: set}
}

// Each migration would fail, or leave a second row, if it ran twice.
func TestReplicasThatStartTogetherMigrateOnce(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	first := migrations("first", map[string]string{
		"00001_table.sql": `CREATE TABLE runs (what text);`, "00002_row.sql": `INSERT INTO runs VALUES ('first');`,
	})
	second := migrations("second", map[string]string{"00001_row.sql": `INSERT INTO runs VALUES ('second');`})
	errs := make([]error, 5)
	var replicas sync.WaitGroup
	for i := range errs {
		replicas.Go(func() {
			db, err := postgres.Open(postgres.Config{URL: url})
			if err == nil {
				err = errors.Join(postgres.Migrate(t.Context(), db, first, second), db.Close())
			}
			errs[i] = err
		})
	}
	replicas.Wait()
	require.NoError(t, errors.Join(errs...))
	var runs []string
	require.NoError(t, postgrestest.Open(t, url).SelectContext(t.Context(), &runs, `SELECT what FROM runs ORDER BY what`))
	require.Equal(t, []string{"first", "second"}, runs)
}

func TestFailedMigrationRollsBackAndKeepsThoseBefore(t *testing.T) {
	t.Parallel()
	db := postgrestest.New(t)
	files := map[string]string{
		"00001_table.sql": `CREATE TABLE runs (what text);`,
		"00002_wrong.sql": `INSERT INTO runs VALUES ('half'); SELECT 1 / 0;`,
	}
	require.ErrorContains(t, postgres.Migrate(t.Context(), db, migrations("shop", files)), "migrate shop: ")
	var rows int
	require.NoError(t, db.GetContext(t.Context(), &rows, `SELECT count(*) FROM runs`))
	require.Zero(t, rows)
	files["00002_wrong.sql"] = `INSERT INTO runs VALUES ('whole');` // the next release mends it
	require.NoError(t, postgres.Migrate(t.Context(), db, migrations("shop", files)))
	require.NoError(t, db.GetContext(t.Context(), &rows, `SELECT count(*) FROM runs`))
	require.Equal(t, 1, rows)
}
