package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"onceshop/pkg/events"
)

// insert writes the messages in one statement, through watermill-sql's publisher.
func insert(ctx context.Context, tx *sqlx.Tx, messages message.Messages) error {
	publisher, err := wsql.NewPublisher(boundTx{tx, ctx}, wsql.PublisherConfig{SchemaAdapter: schema{}}, nil)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if err := publisher.Publish("outbox", messages...); err != nil {
		return fmt.Errorf("write to outbox: %w", err)
	}
	return nil
}

// boundTx executes under the caller's context. watermill-sql's publisher uses context.Background, under
// which a statement outlives the request it belongs to.
type boundTx struct {
	*sqlx.Tx
	ctx context.Context
}

// ExecContext ignores the context given, for the one it is bound to.
func (b boundTx) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	return b.Tx.ExecContext(b.ctx, query, args...)
}

// schema is the outbox table as watermill-sql's publisher sees it. The topic and the key of each message
// are in its metadata, so one statement can write messages of several topics. What only watermill-sql's
// subscriber would use is there to satisfy the interface.
type schema struct{}

const insertInto = `INSERT INTO outbox (message_id, topic, key, payload, metadata) VALUES `

// InsertQuery returns the statement that writes the messages.
func (schema) InsertQuery(_ string, messages message.Messages) (wsql.Query, error) {
	var query strings.Builder
	query.WriteString(insertInto)
	args := make([]any, 0, 5*len(messages))
	for i, msg := range messages {
		metadata, err := json.Marshal(msg.Metadata)
		if err != nil {
			return wsql.Query{}, fmt.Errorf("metadata of message %s: %w", msg.UUID, err)
		}
		if i > 0 {
			query.WriteString(", ")
		}
		fmt.Fprintf(&query, "($%d, $%d, $%d, $%d, $%d)", 5*i+1, 5*i+2, 5*i+3, 5*i+4, 5*i+5)
		args = append(args, msg.UUID, msg.Metadata.Get(events.Type), msg.Metadata.Get(events.Subject),
			[]byte(msg.Payload), string(metadata))
	}
	return wsql.Query{Query: query.String(), Args: args}, nil
}

// SelectQuery is not used: the relay reads the table.
func (schema) SelectQuery(string, string, wsql.OffsetsAdapter) wsql.Query { return wsql.Query{} }

// UnmarshalMessage is not used: the relay reads the table.
func (schema) UnmarshalMessage(wsql.Scanner) (wsql.Row, error) {
	return wsql.Row{}, fmt.Errorf("outbox: read by the relay only")
}

// SchemaInitializingQueries is not used: Migrations make the tables.
func (schema) SchemaInitializingQueries(string) []wsql.Query { return nil }

// SubscribeIsolationLevel is not used: the relay reads the table.
func (schema) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelReadCommitted }
