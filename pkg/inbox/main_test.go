package inbox_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/inbox"
	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
)

// patience bounds whatever a test waits for; it is generous, for machines are busy.
const patience = time.Minute

// TestMain is also the main function of the consumer processes that tests start: this very program.
func TestMain(m *testing.M) {
	if os.Getenv("CONSUMER_DATABASE_URL") != "" {
		if err := consumerProcess(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// counter is a database with a counter, and the inbox before the handler.
type counter struct {
	db  *sqlx.DB
	box *inbox.Inbox
	message.HandlerFunc
}

// newCounter returns a counter with handle, or increment, as handler. change may change the inbox's
// settings.
func newCounter(t testing.TB, handle message.HandlerFunc, change func(*inbox.Config)) *counter {
	t.Helper()
	db := postgrestest.New(t, inbox.Migrations())
	db.SetMaxOpenConns(10) // the server's are for all tests
	_, err := db.Exec(`CREATE TABLE counter AS SELECT 0 AS n`)
	require.NoError(t, err)
	cfg := inbox.Config{Consumer: "test", InTx: inTx(db)}
	if change != nil {
		change(&cfg)
	}
	box, err := inbox.New(cfg)
	require.NoError(t, err)
	if handle == nil {
		handle = increment
	}
	return &counter{db, box, box.Middleware(handle)}
}

func inTx(db *sqlx.DB) func(context.Context, func(*sqlx.Tx) error) error {
	return func(ctx context.Context, fn func(*sqlx.Tx) error) error { return postgres.InTx(ctx, db, fn) }
}

func increment(msg *message.Message) ([]*message.Message, error) {
	_, err := inbox.Tx(msg.Context()).ExecContext(msg.Context(), `UPDATE counter SET n = n + 1`)
	return nil, err
}

// handle delivers a copy of the message, as a broker does, and returns the handler's error.
func (c *counter) handle(msg *message.Message) error {
	again := msg.Copy()
	again.SetContext(msg.Context())
	_, err := c.HandlerFunc(again)
	return err
}

func (c *counter) n(t testing.TB) (n int) {
	t.Helper()
	require.NoError(t, c.db.Get(&n, `SELECT n FROM counter`))
	return n
}

// rows returns how many messages the inbox remembers.
func (c *counter) rows(t testing.TB) (n int) {
	t.Helper()
	require.NoError(t, c.db.Get(&n, `SELECT count(*) FROM inbox`))
	return n
}

// newMessage returns a message with a new id that occurs now.
func newMessage(payload string) *message.Message { return occurred(payload, time.Now()) }

func occurred(payload string, at time.Time) *message.Message {
	msg := message.NewMessage(uuid.Must(uuid.NewV7()).String(), []byte(payload))
	msg.Metadata.Set(events.Type, "test.deposited.v1")
	msg.Metadata.Set(events.Time, at.UTC().Format(time.RFC3339Nano))
	return msg
}

// eventually waits until reached returns true.
func eventually(t testing.TB, what string, reached func() bool) {
	t.Helper()
	require.Eventually(t, reached, patience, 10*time.Millisecond, what)
}
