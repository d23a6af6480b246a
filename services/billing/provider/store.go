package provider

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"onceshop/pkg/postgres"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the provider's tables, for postgres.Migrate.
func Migrations() postgres.Migrations { return postgres.EmbeddedMigrations("provider", migrations) }

const insertIntent = `
INSERT INTO payment_intents (id, status, amount, currency, payment_method, metadata, created)
VALUES (:id, :status, :amount, :currency, :payment_method, :metadata, :created)`

func addIntent(ctx context.Context, tx *sqlx.Tx, p *paymentIntent) error {
	if _, err := tx.NamedExecContext(ctx, insertIntent, p); err != nil {
		return fmt.Errorf("insert payment intent %s: %w", p.ID, err)
	}
	return nil
}

const selectIntent = `
SELECT id, status, amount, currency, payment_method, decline_code, latest_charge, metadata, created
FROM payment_intents WHERE id = $1`

func findIntent(ctx context.Context, tx *sqlx.Tx, id string) (*paymentIntent, error) {
	return find[paymentIntent](ctx, tx, "payment_intent", selectIntent, id)
}

// lockIntent is findIntent, and keeps the row locked until tx ends. Every change of an intent begins with
// it: it is the only guard against a second charge and a second refund.
func lockIntent(ctx context.Context, tx *sqlx.Tx, id string) (*paymentIntent, error) {
	return find[paymentIntent](ctx, tx, "payment_intent", selectIntent+` FOR UPDATE`, id)
}

const updateIntent = `
UPDATE payment_intents
SET status = :status, payment_method = :payment_method, decline_code = :decline_code, latest_charge = :latest_charge
WHERE id = :id`

// saveIntent stores what can change. The caller has locked the intent.
func saveIntent(ctx context.Context, tx *sqlx.Tx, p *paymentIntent) error {
	if _, err := tx.NamedExecContext(ctx, updateIntent, p); err != nil {
		return fmt.Errorf("update payment intent %s: %w", p.ID, err)
	}
	return nil
}

const insertCharge = `
INSERT INTO charges (id, payment_intent_id, amount, currency, order_id)
SELECT latest_charge, id, amount, currency, coalesce(metadata ->> 'order_id', '') FROM payment_intents WHERE id = $1`

// addCharge writes the capture of an intent that has been stored as succeeded.
func addCharge(ctx context.Context, tx *sqlx.Tx, intent string) error {
	if _, err := tx.ExecContext(ctx, insertCharge, intent); err != nil {
		return fmt.Errorf("insert charge of payment intent %s: %w", intent, err)
	}
	return nil
}

const insertRefund = `
INSERT INTO refunds (id, payment_intent_id, charge_id, amount, currency, order_id)
SELECT $1, id, latest_charge, amount, currency, coalesce(metadata ->> 'order_id', '') FROM payment_intents WHERE id = $2`

func addRefund(ctx context.Context, tx *sqlx.Tx, id, intent string) error {
	if _, err := tx.ExecContext(ctx, insertRefund, id, intent); err != nil {
		return fmt.Errorf("insert refund of payment intent %s: %w", intent, err)
	}
	return nil
}

const selectRefunds = `
SELECT id, 'refund' AS object, 'succeeded' AS status, payment_intent_id, charge_id, amount, currency,
       extract(epoch FROM created_at)::bigint AS created
FROM refunds`

func findRefund(ctx context.Context, tx *sqlx.Tx, id string) (*refund, error) {
	return find[refund](ctx, tx, "refund", selectRefunds+` WHERE id = $1`, id)
}

// findRefunds returns the refunds of an intent, the latest first; none is an empty slice.
func findRefunds(ctx context.Context, tx *sqlx.Tx, intent string) ([]*refund, error) {
	refunds := []*refund{}
	err := tx.SelectContext(ctx, &refunds, selectRefunds+` WHERE payment_intent_id = $1 ORDER BY created_at DESC`, intent)
	if err != nil {
		return nil, fmt.Errorf("read refunds of payment intent %s: %w", intent, err)
	}
	return refunds, nil
}

// find returns the object that the query finds by id. It is refused if there is none.
func find[T any](ctx context.Context, tx *sqlx.Tx, kind, query, id string) (*T, error) {
	var object T
	err := tx.GetContext(ctx, &object, query, id)
	if errors.Is(err, sql.ErrNoRows) {
		missing := refused("resource_missing", kind, "No such %s: '%s'", kind, id)
		missing.status = 404
		return nil, missing
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", kind, id, err)
	}
	return &object, nil
}
