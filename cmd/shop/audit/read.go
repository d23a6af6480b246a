package audit

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"onceshop/cmd/shop/setup"
	"onceshop/pkg/broker"
	"onceshop/pkg/broker/management"
	"onceshop/pkg/postgres"
)

// money is an amount and its currency, in upper case.
type money struct {
	Amount   int64  `db:"amount"`
	Currency string `db:"currency"`
}

func (m money) String() string { return fmt.Sprintf("%d %s", m.Amount, m.Currency) }

// state is all that the audit looks at, read at one time or nearly so.
type state struct {
	products     map[string]productRow
	orders       map[string]orderRow
	lines        map[string][]lineRow // by order
	payments     map[string]paymentRow
	accounts     map[account]int64
	charges      map[string][]money // by order
	refunds      map[string][]money // by order
	productViews map[string]productRow
	orderViews   map[string]orderRow
	bestSellers  map[string]int64
	pending      map[string]int // what is still under way, by where
}

type productRow struct {
	SKU      string `db:"sku"`
	Version  int64  `db:"version"`
	Name     string `db:"name"`
	Price    int64  `db:"price"`
	Currency string `db:"currency"`
	Stock    int64  `db:"stock"`
	Removed  bool   `db:"removed"`
	Received int64  `db:"received"`
}

type orderRow struct {
	ID       string `db:"id"`
	Version  int64  `db:"version"`
	Customer string `db:"customer"`
	Status   string `db:"status"`
	Amount   int64  `db:"amount"`
	Currency string `db:"currency"`
}

func (o orderRow) total() money { return money{o.Amount, o.Currency} }

type lineRow struct {
	OrderID  string `db:"order_id"`
	SKU      string `db:"sku"`
	Quantity int64  `db:"quantity"`
}

type paymentRow struct {
	OrderID string `db:"order_id"`
	Status  string `db:"status"`
}

type account struct {
	Customer string `db:"customer"`
	Currency string `db:"currency"`
}

func (a account) String() string { return a.Customer + ", " + a.Currency }

// open connects to the four databases as the auditor, who may read everything and change nothing.
func open(shop setup.Shop) (map[string]*sqlx.DB, error) {
	databases := map[string]*sqlx.DB{}
	for _, service := range setup.Services() {
		url, err := shop.AuditURL(service)
		if err != nil {
			return nil, err
		}
		if databases[service], err = postgres.Open(postgres.Config{URL: url, MaxConnections: 1, ApplicationName: "audit"}); err != nil {
			return nil, err
		}
	}
	return databases, nil
}

// read reads the state. The databases are read one after the other, so only two readings that are equal,
// with nothing under way, say that it belongs together.
func read(ctx context.Context, shop setup.Shop, databases map[string]*sqlx.DB) (*state, error) {
	s := &state{pending: map[string]int{}}
	for _, part := range []func() error{
		func() error { return s.readBroker(shop) },
		func() error { return s.readOrders(ctx, databases[setup.Orders]) },
		func() error { return s.readBilling(ctx, databases[setup.Billing]) },
		func() error { return s.readProvider(ctx, databases[setup.Provider]) },
		func() error { return s.readViews(ctx, databases[setup.CatalogView]) },
	} {
		if err := part(); err != nil {
			return nil, fmt.Errorf("audit: %w", err)
		}
	}
	return s, nil
}

func (s *state) readOrders(ctx context.Context, db *sqlx.DB) (err error) {
	if s.products, err = rows(ctx, db, func(p productRow) string { return p.SKU },
		`SELECT sku, version, name, price, currency, stock, removed, received FROM products`); err != nil {
		return err
	}
	if s.orders, err = rows(ctx, db, func(o orderRow) string { return o.ID },
		`SELECT id, version, customer, status, total AS amount, currency FROM orders`); err != nil {
		return err
	}
	s.lines, err = groups(ctx, db, func(l lineRow) (string, lineRow) { return l.OrderID, l },
		`SELECT order_id, sku, quantity FROM order_lines`)
	if err != nil {
		return err
	}
	return s.count(ctx, db, map[string]string{
		"outbox of orders":    `SELECT count(*) FROM outbox`,
		"held keys of orders": `SELECT count(*) FROM outbox_held`,
	})
}

func (s *state) readBilling(ctx context.Context, db *sqlx.DB) (err error) {
	if s.payments, err = rows(ctx, db, func(p paymentRow) string { return p.OrderID },
		`SELECT order_id, status FROM payments`); err != nil {
		return err
	}
	type row struct {
		account
		Balance int64 `db:"balance"`
	}
	balances, err := rows(ctx, db, func(r row) account { return r.account },
		`SELECT customer, currency, balance FROM accounts`)
	if err != nil {
		return err
	}
	s.accounts = map[account]int64{}
	for of, row := range balances {
		s.accounts[of] = row.Balance
	}
	return s.count(ctx, db, map[string]string{
		"outbox of billing":    `SELECT count(*) FROM outbox`,
		"held keys of billing": `SELECT count(*) FROM outbox_held`,
		"due payments":         `SELECT count(*) FROM payments WHERE due_at IS NOT NULL`,
	})
}

func (s *state) readProvider(ctx context.Context, db *sqlx.DB) (err error) {
	type row struct {
		OrderID string `db:"order_id"`
		money
	}
	byOrder := func(r row) (string, money) { return r.OrderID, r.money }
	if s.charges, err = groups(ctx, db, byOrder, `SELECT order_id, amount, upper(currency) AS currency FROM charges`); err != nil {
		return err
	}
	s.refunds, err = groups(ctx, db, byOrder, `SELECT order_id, amount, upper(currency) AS currency FROM refunds`)
	return err
}

func (s *state) readViews(ctx context.Context, db *sqlx.DB) (err error) {
	if s.productViews, err = rows(ctx, db, func(p productRow) string { return p.SKU },
		`SELECT sku, version, name, price, currency, stock, removed FROM product_view`); err != nil {
		return err
	}
	if s.orderViews, err = rows(ctx, db, func(o orderRow) string { return o.ID },
		`SELECT id, version, customer, status, total AS amount, currency FROM order_view`); err != nil {
		return err
	}
	type row struct {
		SKU      string `db:"sku"`
		Quantity int64  `db:"quantity"`
	}
	best, err := rows(ctx, db, func(r row) string { return r.SKU }, `SELECT sku, quantity FROM best_sellers WHERE quantity <> 0`)
	s.bestSellers = map[string]int64{}
	for sku, row := range best {
		s.bestSellers[sku] = row.Quantity
	}
	return err
}

// readBroker counts what is in the virtual host's queues: ready as of now, unacked as of up to five seconds
// ago.
func (s *state) readBroker(shop setup.Shop) error {
	api, err := management.New(shop.Stack.AMQPAPI)
	if err != nil {
		return err
	}
	queues, err := api.Queues(shop.VHost())
	if err != nil {
		return err
	}
	var names []string
	for _, queue := range queues {
		if queue.Durable { // others are tools'
			names = append(names, queue.Name)
			s.pending["unacked in "+queue.Name] = queue.Unacked
		}
	}
	url, err := shop.AMQPURL(setup.Operator)
	if err != nil {
		return err
	}
	depths, err := broker.Depth(url, names...)
	for name, messages := range depths {
		s.pending["queue "+name] = messages
	}
	return err
}

func (s *state) count(ctx context.Context, db *sqlx.DB, queries map[string]string) error {
	for what, query := range queries {
		var n int
		if err := db.GetContext(ctx, &n, query); err != nil {
			return fmt.Errorf("count %s: %w", what, err)
		}
		s.pending[what] = n
	}
	return nil
}

// rows reads rows into a map by their key.
func rows[K comparable, R any](ctx context.Context, db *sqlx.DB, key func(R) K, query string) (map[K]R, error) {
	var all []R
	if err := db.SelectContext(ctx, &all, query); err != nil {
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	byKey := make(map[K]R, len(all))
	for _, row := range all {
		byKey[key(row)] = row
	}
	return byKey, nil
}

// groups reads rows into a map of lists by their key.
func groups[R, V any](ctx context.Context, db *sqlx.DB, split func(R) (string, V), query string) (map[string][]V, error) {
	var all []R
	if err := db.SelectContext(ctx, &all, query); err != nil {
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	byKey := map[string][]V{}
	for _, row := range all {
		key, value := split(row)
		byKey[key] = append(byKey[key], value)
	}
	return byKey, nil
}
