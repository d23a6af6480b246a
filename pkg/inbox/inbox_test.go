package inbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/fault"
	"onceshop/pkg/inbox"
	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
)

// newCounter returns a database with a counter and an inbox before handle.
func newCounter(t *testing.T, handle message.HandlerFunc) (*sqlx.DB, message.HandlerFunc) {
	t.Helper()
	db := postgrestest.New(t, inbox.Migrations())
	_, err := db.Exec(`CREATE TABLE counter AS SELECT 0 AS n`)
	require.NoError(t, err)
	box, err := inbox.New(inbox.Config{
		Consumer: "test",
		InTx: func(ctx context.Context, fn func(*sqlx.Tx) error) error {
			return postgres.InTx(ctx, db, fn)
		},
	})
	require.NoError(t, err)
	return db, box.Middleware(handle)
}

func increment(msg *message.Message) ([]*message.Message, error) {
	_, err := inbox.Tx(msg.Context()).ExecContext(msg.Context(), `UPDATE counter SET n = n + 1`)
	return nil, err
}

func count(t *testing.T, db *sqlx.DB) (n int) {
	t.Helper()
	require.NoError(t, db.Get(&n, `SELECT n FROM counter`))
	return n
}

func TestRepeatedMessageHasOneEffect(t *testing.T) {
	t.Parallel()
	db, handle := newCounter(t, increment)
	id := uuid.NewString()
	for range 3 {
		_, err := handle(message.NewMessage(id, nil))
		require.NoError(t, err)
	}
	require.Equal(t, 1, count(t, db))
}

func TestCopiesAtOnceHaveOneEffect(t *testing.T) {
	t.Parallel()
	db, handle := newCounter(t, increment)
	var copies sync.WaitGroup
	for range 100 {
		id := uuid.NewString()
		for range 4 {
			copies.Go(func() {
				_, err := handle(message.NewMessage(id, nil))
				require.NoError(t, err)
			})
		}
	}
	copies.Wait()
	require.Equal(t, 100, count(t, db))
}

func TestFailedHandlerLeavesNothing(t *testing.T) {
	t.Parallel()
	fail := true
	db, handle := newCounter(t, func(msg *message.Message) ([]*message.Message, error) {
		if _, err := increment(msg); err != nil {
			return nil, err
		}
		if fail {
			return nil, errors.New("not today")
		}
		return nil, nil
	})
	msg := message.NewMessage(uuid.NewString(), nil)
	_, err := handle(msg)
	require.ErrorContains(t, err, "not today")
	require.Equal(t, 0, count(t, db))
	fail = false
	_, err = handle(msg)
	require.NoError(t, err)
	require.Equal(t, 1, count(t, db), "the claim was rolled back with the effect")
}

func TestWhatTheInboxCanNotProtectIsRefused(t *testing.T) {
	t.Parallel()
	_, handle := newCounter(t, func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("", nil)}, nil
	})
	for _, id := range []string{"", uuid.NewString()} {
		_, err := handle(message.NewMessage(id, nil))
		require.Equal(t, fault.Permanent, fault.ClassOf(err))
	}
}
