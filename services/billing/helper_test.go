package billing

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/inbox"
	"onceshop/pkg/outbox"
	"onceshop/pkg/postgres/postgrestest"
	"onceshop/pkg/service"
	simulated "onceshop/services/billing/provider"
)

const (
	visa         = "pm_card_visa"
	refusedCard  = "pm_card_chargeDeclined"
	unknownCard  = "pm_card_nobody_knows"
	secretKey    = "sk_test_any"
	settledSoon  = 20 * time.Second
	pollInterval = 10 * time.Millisecond
)

// TestMain lowers the number of checks of a property, each of which takes real databases and HTTP;
// -rapid.checks sets another. It is also billing's main function, for tests that start a process.
func TestMain(m *testing.M) {
	if os.Getenv("BILLING_RUNS") != "" {
		cfg := DefaultConfig()
		service.Main("billing", cfg, func(ctx context.Context, admin *service.Admin, logger *slog.Logger) error {
			return Run(ctx, cfg, admin, logger)
		})
		return
	}
	if err := flag.Set("rapid.checks", "60"); err != nil {
		panic(err)
	}
	m.Run()
}

// mishap is what happens to a request to the provider.
type mishap string

const (
	fine      mishap = "fine"
	unreached mishap = "unreached" // it never arrives
	broken    mishap = "broken"    // it is answered with 503, and has no effect
	lost      mishap = "lost"      // it has its effect, and its answer is lost
	late      mishap = "late"      // it arrives when the client has given up long ago
)

// network stands between billing and the provider.
type network struct {
	provider http.Handler

	mu      sync.Mutex
	plan    []mishap // of the next requests; those after are fine
	down    bool     // then each request is unreached
	under   []*http.Request
	meeting func(r *http.Request) // is called for each request before it has its effect
	active  int                   // requests under way
	ended   *sync.Cond
}

func newNetwork(provider http.Handler) *network {
	n := &network{provider: provider}
	n.ended = sync.NewCond(&n.mu)
	return n
}

// idle waits until no request is under way. One may be when its client has given up.
func (n *network) idle() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.active > 0 {
		n.ended.Wait()
	}
}

func (n *network) end() {
	n.set(func(n *network) { n.active-- })
	n.ended.Broadcast()
}

// ServeHTTP satisfies http.Handler.
func (n *network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer n.end()
	n.mu.Lock()
	n.active++
	what := fine
	if len(n.plan) > 0 {
		what, n.plan = n.plan[0], n.plan[1:]
	}
	if n.down {
		what = unreached
	}
	meeting := n.meeting
	n.mu.Unlock()
	if meeting != nil {
		meeting(r)
	}
	switch what {
	case fine:
		n.provider.ServeHTTP(w, r)
	case broken:
		http.Error(w, `{"error":{"type":"api_error","message":"not now"}}`, http.StatusServiceUnavailable)
	case lost:
		n.provider.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case late:
		body, _ := io.ReadAll(r.Body)
		underway := r.Clone(context.Background())
		underway.Body = io.NopCloser(bytes.NewReader(body))
		n.mu.Lock()
		n.under = append(n.under, underway)
		n.mu.Unlock()
		panic(http.ErrAbortHandler)
	case unreached:
		panic(http.ErrAbortHandler)
	}
}

// arrive lets the late requests have their effect.
func (n *network) arrive() {
	n.mu.Lock()
	arriving := n.under
	n.under = nil
	n.mu.Unlock()
	for _, r := range arriving {
		n.provider.ServeHTTP(httptest.NewRecorder(), r)
	}
}

func (n *network) set(change func(*network)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

// world is billing and the simulated provider, each with a database, and the network between them.
type world struct {
	*Service
	executor *executor
	inbox    *inbox.Inbox
	network  *network
	provider *sqlx.DB
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := postgrestest.New(t, outbox.Migrations(), inbox.Migrations(), schema())
	charged := postgrestest.New(t, simulated.Migrations())
	db.SetMaxOpenConns(15) // the server's are for all tests
	charged.SetMaxOpenConns(10)
	quiet := slog.New(slog.DiscardHandler)
	w := &world{
		Service: &Service{db: db, logger: quiet}, provider: charged,
		network: newNetwork(simulated.NewHandler(charged, 0, quiet)),
	}
	server := httptest.NewServer(w.network)
	// On a connection that is used again, net/http would repeat a request whose answer is lost.
	server.Config.SetKeepAlivesEnabled(false)
	t.Cleanup(server.Close)
	box, err := outbox.New(db, "/onceshop/billing")
	require.NoError(t, err)
	w.executor = &executor{
		db: db, box: box, provider: newProvider(server.URL, secretKey), logger: quiet, wake: make(chan struct{}, 1),
	}
	w.inbox, err = inbox.New(inbox.Config{Consumer: "billing.orders", InTx: box.InTx})
	require.NoError(t, err)
	return w
}

// placed returns an event that says that an order was placed, by a customer of its own.
func placed(method string) events.OrderPlaced {
	id := uuid.NewString()
	return events.OrderPlaced{Order: events.Order{
		OrderID: id, Version: 1, Customer: "customer of " + id, Status: "placed", PaymentMethod: method,
		Total: events.Money{Amount: 1999, Currency: "EUR"}, PlacedAt: time.Now().UTC(),
	}}
}

func cancelled(o events.Order) events.OrderCancelled {
	o.Version, o.Status, o.Reason = o.Version+1, "cancelled", "why not"
	return events.OrderCancelled{Order: o}
}

func rejected(o events.Order) events.OrderRejected {
	o.Version, o.Status, o.Reason = o.Version+1, "rejected", "payment declined"
	return events.OrderRejected{Order: o}
}

// deliver hands the event to its handler inside the inbox, as a message with that id.
func (w *world) deliver(ctx context.Context, id string, event events.Event) error {
	msg := message.NewMessage(id, nil)
	msg.Metadata.Set(events.Time, time.Now().UTC().Format(time.RFC3339Nano))
	msg.SetContext(ctx)
	_, err := w.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		switch event := event.(type) {
		case events.OrderPlaced:
			return nil, w.onOrderPlaced(msg.Context(), event)
		case events.OrderRejected:
			return nil, w.onOrderRejected(msg.Context(), event)
		case events.OrderCancelled:
			return nil, w.onOrderCancelled(msg.Context(), event)
		}
		return nil, fmt.Errorf("no handler for %s", event.Name())
	})(msg)
	return err
}

// receive delivers the events, each once.
func (w *world) receive(t *testing.T, received ...events.Event) {
	t.Helper()
	for _, event := range received {
		require.NoError(t, w.deliver(t.Context(), uuid.NewString(), event))
	}
}

// keysExpire makes the provider forget what it has answered.
func (w *world) keysExpire(ctx context.Context) error {
	_, err := w.provider.ExecContext(ctx, `DELETE FROM idempotency_keys`)
	return err
}

const allDue = `UPDATE payments SET due_at = now() WHERE due_at IS NOT NULL`

// settleAll lets an executor work, however long each payment should wait, until nothing is left to do.
func (w *world) settleAll(ctx context.Context) error {
	for tries := 0; ; tries++ {
		if _, err := w.db.ExecContext(ctx, allDue); err != nil {
			return err
		}
		p, err := lease(ctx, w.db, leaseLimit)
		if err != nil || p == nil {
			return err
		}
		if tries == 100 {
			return fmt.Errorf("payment %s does not settle: %s", p.id, p.status)
		}
		w.executor.settle(ctx, p)
	}
}
