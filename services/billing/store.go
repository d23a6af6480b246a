package billing

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"onceshop/pkg/events"
	"onceshop/pkg/postgres"
)

// All SQL of the service is here. Whoever changes a payment locks its row first, then the customer's
// account.

//go:embed migrations/*.sql
var migrations embed.FS

func schema() postgres.Migrations { return postgres.EmbeddedMigrations("billing", migrations) }

// errUnknownPayment is for HTTP clients.
var errUnknownPayment = errors.New("no such payment")

type paymentRow struct {
	ID            string `db:"id"`
	OrderID       string `db:"order_id"`
	Version       int64  `db:"version"`
	Customer      string `db:"customer"`
	Amount        int64  `db:"amount"`
	Currency      string `db:"currency"`
	PaymentMethod string `db:"payment_method"`
	Status        string `db:"status"`
	CancelWanted  bool   `db:"cancel_wanted"`
	IntentID      string `db:"intent_id"`
	RefundID      string `db:"refund_id"`
	DeclineCode   string `db:"decline_code"`
}

func (r paymentRow) payment() *Payment {
	return &Payment{
		id: r.ID, version: r.Version, orderID: r.OrderID, customer: r.Customer,
		amount: events.Money{Amount: r.Amount, Currency: r.Currency}, method: r.PaymentMethod,
		status: Status(r.Status), cancelWanted: r.CancelWanted, intentID: r.IntentID, refundID: r.RefundID,
		declineCode: r.DeclineCode,
	}
}

const paymentColumns = `id, order_id, version, customer, amount, currency, payment_method, status, cancel_wanted,
    intent_id, refund_id, decline_code`

const insertPayment = `
INSERT INTO payments (id, order_id, version, customer, amount, currency, payment_method, status, cancel_wanted,
    intent_id, refund_id, decline_code, due_at)
VALUES ($1, $2, 1, $3, $4, $5, $6, 'new', false, '', '', '', now())
ON CONFLICT (order_id) DO NOTHING`

const lockByOrder = `SELECT ` + paymentColumns + ` FROM payments WHERE order_id = $1 FOR UPDATE`

// paymentOf locks the order's payment and returns it. It makes one, which is due at once, if there is none.
func paymentOf(ctx context.Context, tx *sqlx.Tx, order events.Order) (*Payment, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("new payment id: %w", err)
	}
	if _, err := tx.ExecContext(ctx, insertPayment, id.String(), order.OrderID, order.Customer, order.Total.Amount,
		order.Total.Currency, order.PaymentMethod); err != nil {
		return nil, fmt.Errorf("add payment of order %s: %w", order.OrderID, err)
	}
	return onePayment(ctx, tx, lockByOrder, order.OrderID)
}

const lockByID = `SELECT ` + paymentColumns + ` FROM payments WHERE id = $1 FOR UPDATE`

func onePayment(ctx context.Context, q sqlx.QueryerContext, query, id string) (*Payment, error) {
	var row paymentRow
	err := sqlx.GetContext(ctx, q, &row, query, id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: %s", errUnknownPayment, id)
	}
	if err != nil {
		return nil, fmt.Errorf("read payment %s: %w", id, err)
	}
	return row.payment(), nil
}

// A payment with nothing left to do is not due. One that an executor holds stays leased to it; any other is
// due at once. Failed calls are counted until the charge has an end: to know again that it was not made is
// no progress, and the pauses go on growing.
const updatePayment = `
UPDATE payments SET version = $2, status = $3, cancel_wanted = $4, intent_id = $5, refund_id = $6,
    decline_code = $7, attempts = CASE WHEN $3 IN ('created', 'confirming') THEN attempts ELSE 0 END,
    due_at = CASE WHEN $8 THEN coalesce(due_at, now()) END
WHERE id = $1`

// savePayment writes a payment that was locked, and makes it due if there is anything left to do.
func savePayment(ctx context.Context, tx *sqlx.Tx, p *Payment) error {
	_, err := tx.ExecContext(ctx, updatePayment, p.id, p.version, string(p.status), p.cancelWanted, p.intentID,
		p.refundID, p.declineCode, next(p) != nothing)
	if err != nil {
		return fmt.Errorf("save payment %s: %w", p.id, err)
	}
	return nil
}

const addToBalance = `
INSERT INTO accounts AS account (customer, currency, balance) VALUES ($1, $2, $3)
ON CONFLICT (customer, currency) DO UPDATE SET balance = account.balance + excluded.balance`

// owe changes what the customer owes. Sums commute, so the order of events does not matter; a repetition
// does, and nothing but the caller's guard stops it.
func owe(ctx context.Context, tx *sqlx.Tx, customer, currency string, amount int64) error {
	if amount == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, addToBalance, customer, currency, amount); err != nil {
		return fmt.Errorf("change balance of %s: %w", customer, err)
	}
	return nil
}

// leaseDue takes the payment that is due for longest, and keeps other executors from it for a while: it is
// due again when the lease ends, should this executor die.
const leaseDue = `
UPDATE payments SET due_at = now() + $1 * interval '1 second'
WHERE id = (SELECT id FROM payments WHERE due_at <= now() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING ` + paymentColumns

// lease returns a due payment that no other executor has for the time of the lease, or nil.
func lease(ctx context.Context, db *sqlx.DB, limit time.Duration) (*Payment, error) {
	var row paymentRow
	err := db.GetContext(ctx, &row, leaseDue, limit.Seconds())
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lease a payment: %w", err)
	}
	return row.payment(), nil
}

// The pauses are 0.5, 1, 2 … seconds, at most a minute, each times 0.5 to 1.5.
const postponeDue = `
UPDATE payments SET attempts = attempts + 1,
    due_at = now() + interval '1 second' * least(0.5 * 2 ^ least(attempts, 10), 60) * (0.5 + random())
WHERE id = $1 AND due_at IS NOT NULL`

// postpone makes the payment due again after a pause that grows with each failed call.
func postpone(ctx context.Context, db *sqlx.DB, id string) error {
	if _, err := db.ExecContext(ctx, postponeDue, id); err != nil {
		return fmt.Errorf("postpone payment %s: %w", id, err)
	}
	return nil
}

const readByID = `SELECT ` + paymentColumns + ` FROM payments WHERE id = $1`

const readByOrder = `SELECT ` + paymentColumns + ` FROM payments WHERE order_id = $1`
