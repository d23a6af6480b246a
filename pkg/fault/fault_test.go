package fault_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/fault"
	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
	"onceshop/pkg/stack"
)

func state(code string) error { return &pgconn.PgError{Code: code, Message: "on demand"} }

func TestClassOfAnError(t *testing.T) {
	t.Parallel()
	plain := errors.New("plain")
	reset := &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
	slow := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	silent := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}
	for _, test := range []struct {
		name string
		err  error
		want fault.Class
	}{
		{"nil", nil, fault.Transient},
		{"unknown", plain, fault.Transient},
		{"deadline", context.DeadlineExceeded, fault.Transient},
		{"cancelled", context.Canceled, fault.Transient},
		{"no rows", sql.ErrNoRows, fault.Transient},

		{"invalid text representation", state("22P02"), fault.Permanent},
		{"numeric value out of range", state("22003"), fault.Permanent},
		{"unique violation", state("23505"), fault.Permanent},
		{"check violation", state("23514"), fault.Permanent},
		{"foreign key violation", state("23503"), fault.Transient},
		{"exclusion violation", state("23P01"), fault.Transient},
		{"serialization failure", state("40001"), fault.Transient},
		{"deadlock", state("40P01"), fault.Transient},
		{"lock not available", state("55P03"), fault.Transient},
		{"query cancelled by a timeout", state("57014"), fault.Transient},
		{"undefined table", state("42P01"), fault.Transient},
		{"insufficient privilege", state("42501"), fault.Transient},
		{"invalid password", state("28P01"), fault.Transient},
		{"idle in transaction", state("25P03"), fault.Transient},
		{"raised", state("P0001"), fault.Transient},
		{"connection failure", state("08006"), fault.Outage},
		{"too many connections", state("53300"), fault.Outage},
		{"disk full", state("53100"), fault.Outage},
		{"limit of temporary files", state("53400"), fault.Transient},
		{"read-only", state("25006"), fault.Outage},
		{"admin shutdown", state("57P01"), fault.Outage},
		{"crash shutdown", state("57P02"), fault.Outage},
		{"cannot connect now", state("57P03"), fault.Outage},
		{"database dropped", state("57P04"), fault.Outage},
		{"idle session", state("57P05"), fault.Outage},
		{"system error", state("58000"), fault.Outage},

		{"bad connection", driver.ErrBadConn, fault.Outage},
		{"connection done", sql.ErrConnDone, fault.Outage},
		{"end of file", io.EOF, fault.Outage},
		{"unexpected end of file", io.ErrUnexpectedEOF, fault.Outage},
		{"connection closed", net.ErrClosed, fault.Outage},
		{"connection that pgx closed", fmt.Errorf("commit: %w", pgconn.ErrConnClosed), fault.Outage},
		{"connection reset", reset, fault.Outage},
		{"a read that takes too long", slow, fault.Transient},
		{"a peer that does not answer", silent, fault.Outage},

		{"marked permanent", fault.AsPermanent(plain), fault.Permanent},
		{"marked transient", fault.AsTransient(reset), fault.Transient},
		{"marked an outage", fault.AsOutage(plain), fault.Outage},
		{"a mark wins over a SQLSTATE", fault.AsOutage(state("23505")), fault.Outage},
		{"a mark wins over a broken connection", fault.AsPermanent(reset), fault.Permanent},
		{"the outermost mark wins", fault.AsPermanent(fault.AsOutage(plain)), fault.Permanent},
		{"a SQLSTATE wins over a broken connection", errors.Join(reset, state("23505")), fault.Permanent},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, fault.ClassOf(test.err))
			if test.err != nil {
				wrapped := fmt.Errorf("handle order: %w", errors.Join(errors.New("other"), fmt.Errorf("save: %w", test.err)))
				require.Equal(t, test.want, fault.ClassOf(wrapped), "wrapped")
			}
		})
	}
}

func TestMarkKeepsTheError(t *testing.T) {
	t.Parallel()
	for _, mark := range []func(error) error{fault.AsPermanent, fault.AsTransient, fault.AsOutage} {
		require.NoError(t, mark(nil))
		marked := mark(fmt.Errorf("read: %w", io.EOF))
		require.ErrorIs(t, marked, io.EOF)
		require.EqualError(t, marked, "read: EOF")
	}
}

func TestClassesHaveNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "transient permanent outage", fmt.Sprint(fault.Transient, " ", fault.Permanent, " ", fault.Outage))
}

// What a real server and a real network answer.

func TestServerThatIsNotThereIsAnOutage(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	db := postgrestest.Open(t, "postgres://user@"+listener.Addr().String()+"/db?sslmode=disable")
	err = db.PingContext(t.Context())
	require.Error(t, err)
	require.Equal(t, fault.Outage, fault.ClassOf(err), "%T: %v", err, err)
	require.False(t, fault.BrokeOff(err))
	_, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
	require.Equal(t, fault.Outage, fault.ClassOf(err), "%T: %v", err, err)
	require.False(t, fault.BrokeOff(err))
}

// Whoever was let in before is not to blame for a password that was changed since, or a database renamed.
func TestServerThatRefusesAConnectionIsAnOutage(t *testing.T) {
	t.Parallel()
	found, err := stack.Find()
	require.NoError(t, err)
	for code, name := range map[string][2]string{"3D000": {"no_such_" + uuid.NewString(), ""}, "28": {"postgres", "nobody_" + uuid.NewString()}} {
		url, err := found.Database(name[0], name[1], "secret")
		require.NoError(t, err)
		err = postgrestest.Open(t, url).PingContext(t.Context())
		require.ErrorContains(t, err, "SQLSTATE "+code)
		require.Equal(t, fault.Outage, fault.ClassOf(err), "%T: %v", err, err)
		require.False(t, fault.BrokeOff(err))
	}
}

func TestServerThatDoesNotAnswerAConnectionIsAnOutage(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // and never accepts
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	db := postgrestest.Open(t, "postgres://user@"+listener.Addr().String()+"/db?sslmode=disable")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = db.PingContext(ctx)
	require.Error(t, err)
	require.Equal(t, fault.Outage, fault.ClassOf(err), "%T: %v", err, err)
}

func TestConnectionThatIsCutIsAnOutageToWhateverUsesIt(t *testing.T) {
	t.Parallel()
	db := postgrestest.New(t)
	execute := func(tx *sqlx.Tx) error { _, err := tx.ExecContext(t.Context(), `SELECT 1`); return err }
	query := func(tx *sqlx.Tx) error { var n int; return tx.GetContext(t.Context(), &n, `SELECT 1`) }
	for _, uses := range [][]func(*sqlx.Tx) error{{execute, execute}, {query, query}, {(*sqlx.Tx).Commit}, {execute, (*sqlx.Tx).Commit}} {
		tx, err := db.BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		var pid int
		require.NoError(t, tx.GetContext(t.Context(), &pid, `SELECT pg_backend_pid()`))
		_, err = db.ExecContext(t.Context(), `SELECT pg_terminate_backend($1, 5000)`, pid)
		require.NoError(t, err)
		for i, use := range uses {
			err := use(tx)
			require.Error(t, err)
			require.Equal(t, i > 0, fault.BrokeOff(err), "the first is told why: %v", err)
			require.Equal(t, fault.Outage, fault.ClassOf(err), "%T: %v", err, err)
		}
		_ = tx.Rollback()
	}
}

func TestStatementThatBreaksARuleIsPermanent(t *testing.T) {
	t.Parallel()
	db := postgrestest.New(t)
	for _, statement := range []string{
		`SELECT 'x'::uuid`, `SELECT 1 / 0`, `SELECT 9223372036854775807 + 1`,
		`CREATE TEMP TABLE small AS SELECT 1 AS n; ALTER TABLE small ADD CHECK (n < 1)`,
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.Error(t, err)
		require.Equal(t, fault.Permanent, fault.ClassOf(err), "%v", err)
	}
}

func TestStatementThatTakesTooLongIsTransient(t *testing.T) {
	t.Parallel()
	db, err := postgres.Open(postgres.Config{URL: postgrestest.URL(t), StatementLimit: 20 * time.Millisecond})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	_, err = db.ExecContext(t.Context(), `SELECT pg_sleep(10)`)
	require.Equal(t, fault.Transient, fault.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, "57014")
}
