package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/fault"
	"onceshop/pkg/inbox"
)

// Whatever goes wrong, effect and claim are both gone, and the message has its effect when it comes again.
func TestFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		fail func(ctx context.Context, cancel func(), c *counter) error // after the effect
		want string
	}{
		{"error", func(context.Context, func(), *counter) error { return errors.New("not today") }, "not today"},
		{"panic", func(context.Context, func(), *counter) error { panic("not today") }, "panic"},
		{"context ends", func(_ context.Context, cancel func(), _ *counter) error { cancel(); return nil }, "context canceled"},
		{"connection lost", loseConnection, "commit: "},
		{"error of a statement that the handler ignores", ignoreError, "commit: "},
		{"error of the commit", failCommit, "commit: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wrong := true
			var c *counter
			var cancel func()
			c = newCounter(t, func(msg *message.Message) ([]*message.Message, error) {
				if _, err := increment(msg); err != nil || !wrong {
					return nil, err
				}
				return nil, test.fail(msg.Context(), cancel, c)
			}, nil)
			msg := newMessage("")
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			msg.SetContext(ctx)
			cancel = stop
			err := recovered(func() error { return c.handle(msg) })
			require.ErrorContains(t, err, test.want)
			require.Zero(t, c.n(t))
			require.Zero(t, c.rows(t))

			wrong = false
			msg.SetContext(t.Context())
			require.NoError(t, c.handle(msg))
			require.NoError(t, c.handle(msg))
			require.Equal(t, 1, c.n(t))
		})
	}
}

// recovered returns a panic of fn as an error, as Watermill's router does.
func recovered(fn func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("panic")
		}
	}()
	return fn()
}

func loseConnection(ctx context.Context, _ func(), c *counter) error {
	var pid int
	if err := inbox.Tx(ctx).GetContext(ctx, &pid, `SELECT pg_backend_pid()`); err != nil {
		return err
	}
	_, err := c.db.ExecContext(ctx, `SELECT pg_terminate_backend($1, 5000)`, pid)
	return err
}

func ignoreError(ctx context.Context, _ func(), _ *counter) error {
	_, _ = inbox.Tx(ctx).ExecContext(ctx, `SELECT 1 / 0`)
	return nil
}

// failCommit makes the commit of the transaction, and no later one, fail.
func failCommit(ctx context.Context, _ func(), _ *counter) error {
	_, err := inbox.Tx(ctx).ExecContext(ctx, `
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$;
CREATE TABLE refused (n int);
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON refused DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse();
INSERT INTO refused VALUES (1);`)
	return err
}

func TestClassOfAnErrorIsKept(t *testing.T) {
	t.Parallel()
	var failure error
	c := newCounter(t, func(*message.Message) ([]*message.Message, error) { return nil, failure }, nil)
	for class, err := range map[fault.Class]error{
		fault.Permanent: fault.AsPermanent(errors.New("a rule is broken")),
		fault.Outage:    fault.AsOutage(errors.New("nobody is there")),
		fault.Transient: errors.New("not today"),
	} {
		failure = err
		require.Equal(t, class, fault.ClassOf(c.handle(newMessage(""))))
	}
}
