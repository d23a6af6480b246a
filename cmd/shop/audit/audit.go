// Package audit compares the four databases of the shop, the provider's among them, and the broker's queues,
// and says whether every promise that the shop makes holds.
package audit

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"onceshop/cmd/shop/setup"
)

// Result is what became of one invariant.
type Result struct {
	Invariant string   `json:"invariant"`
	Checked   int      `json:"checked"`          // how many orders, products, accounts … were looked at
	Broken    []string `json:"broken,omitempty"` // what breaks it, by name
}

// Report is the result of an audit.
type Report struct {
	OK      bool     `json:"ok"`
	Results []Result `json:"results"`
}

// Run audits the shop. It waits, for at most wait, until the shop is quiet: two readings a second apart are
// equal, with nothing under way. What is still under way by then breaks the last invariants. An error means
// that something could not be read.
func Run(ctx context.Context, shop setup.Shop, wait time.Duration) (Report, error) {
	databases, err := open(shop)
	if err != nil {
		return Report{}, err
	}
	defer func() {
		for _, db := range databases {
			_ = db.Close()
		}
	}()
	current, err := read(ctx, shop, databases)
	if err != nil {
		return Report{}, err
	}
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return Report{}, ctx.Err()
		}
		before := current
		if current, err = read(ctx, shop, databases); err != nil {
			return Report{}, err
		}
		if current.quiet() && reflect.DeepEqual(before, current) {
			break
		}
	}
	return current.check(), nil
}

func (s *state) quiet() bool {
	for what, n := range s.pending {
		if n > 0 && !waitsForOperator(what) {
			return false
		}
	}
	return true
}

func (s *state) check() Report {
	report := Report{OK: true, Results: []Result{
		s.checkCharges("a confirmed order has one capture of its total, and no refund", "confirmed", 1, 0),
		s.checkCharges("a rejected order has no capture", "rejected", 0, 0),
		s.checkCancelled(),
		s.checkPlaced(),
		s.checkStrangers(),
		s.checkStock(),
		s.checkBalances(),
		s.checkProductViews(),
		s.checkOrderViews(),
		s.checkBestSellers(),
		s.checkPending("outboxes are empty, no key is held, no payment is due", "database"),
		s.checkPending("queues are empty", "queue"),
		s.checkPending("dead-letter queues are empty", "dead letters"),
		s.checkPending("queues of unrouted events are empty", "unrouted"),
	}}
	for _, result := range report.Results {
		report.OK = report.OK && len(result.Broken) == 0
	}
	return report
}

// each checks what of a map is chosen; wrong returns what is wrong with an element, or "".
func each[K comparable, V any](invariant string, of map[K]V, wrong func(K, V) string) Result {
	result := Result{Invariant: invariant, Checked: len(of)}
	for key, value := range of {
		if text := wrong(key, value); text != "" {
			result.Broken = append(result.Broken, fmt.Sprintf("%v: %s", key, text))
		}
	}
	slices.Sort(result.Broken)
	return result
}

func (s *state) ordersIn(status string) map[string]orderRow {
	chosen := maps.Clone(s.orders)
	maps.DeleteFunc(chosen, func(_ string, o orderRow) bool { return o.Status != status })
	return chosen
}

func (s *state) checkCharges(invariant, status string, charges, refunds int) Result {
	return each(invariant, s.ordersIn(status), func(id string, o orderRow) string {
		if full(s.charges[id], o.total(), charges) && full(s.refunds[id], o.total(), refunds) {
			return ""
		}
		return fmt.Sprintf("total %v, captures %v, refunds %v", o.total(), s.charges[id], s.refunds[id])
	})
}

func (s *state) checkCancelled() Result {
	return each("a cancelled order has no capture, or one and one full refund", s.ordersIn("cancelled"), func(id string, o orderRow) string {
		for n := range 2 {
			if full(s.charges[id], o.total(), n) && full(s.refunds[id], o.total(), n) {
				return ""
			}
		}
		return fmt.Sprintf("total %v, captures %v, refunds %v", o.total(), s.charges[id], s.refunds[id])
	})
}

func (s *state) checkPlaced() Result {
	return each("an order that waits for its payment has no capture", s.ordersIn("placed"), func(id string, o orderRow) string {
		if len(s.charges[id]) == 0 {
			return ""
		}
		return fmt.Sprintf("total %v, captures %v", o.total(), s.charges[id])
	})
}

// full says whether the moves are n times the total.
func full(moves []money, total money, n int) bool {
	return len(moves) == n && !slices.ContainsFunc(moves, func(m money) bool { return m != total })
}

func (s *state) checkStrangers() Result {
	return each("every capture and payment belongs to an order", union(s.charges, s.payments), func(id string, _ bool) string {
		if _, ok := s.orders[id]; ok {
			return ""
		}
		return "no such order"
	})
}

func union[K comparable, A, B any](a map[K]A, b map[K]B) map[K]bool {
	keys := map[K]bool{}
	for key := range a {
		keys[key] = true
	}
	for key := range b {
		keys[key] = true
	}
	return keys
}

func (s *state) checkStock() Result {
	held := s.quantities("placed", "confirmed")
	return each("stock + what orders hold = what was ever received", s.products, func(sku string, p productRow) string {
		if p.Stock+held[sku] == p.Received {
			return ""
		}
		return fmt.Sprintf("%d in stock + %d held, %d received", p.Stock, held[sku], p.Received)
	})
}

// quantities sums the lines of orders in one of the statuses, by SKU.
func (s *state) quantities(statuses ...string) map[string]int64 {
	sums := map[string]int64{}
	for id, o := range s.orders {
		if slices.Contains(statuses, o.Status) {
			for _, line := range s.lines[id] {
				sums[line.SKU] += line.Quantity
			}
		}
	}
	return sums
}

func (s *state) checkBalances() Result {
	owed := map[account]int64{}
	for _, o := range s.ordersIn("placed") {
		owed[account{o.Customer, o.Currency}] += o.Amount
	}
	return each("a customer's balance at billing is what their open orders owe", union(s.accounts, owed), func(of account, _ bool) string {
		if s.accounts[of] == owed[of] {
			return ""
		}
		return fmt.Sprintf("balance %d, open orders owe %d", s.accounts[of], owed[of])
	})
}

func (s *state) checkProductViews() Result {
	return each("the view of a product equals the product, at the same version", union(s.products, s.productViews), func(sku string, _ bool) string {
		product := s.products[sku]
		product.Received = 0 // not shown
		if view := s.productViews[sku]; view != product {
			return fmt.Sprintf("is %+v, shown as %+v", product, view)
		}
		return ""
	})
}

func (s *state) checkOrderViews() Result {
	return each("the view of an order equals the order, at the same version", union(s.orders, s.orderViews), func(id string, _ bool) string {
		if view := s.orderViews[id]; view != s.orders[id] {
			return fmt.Sprintf("is %+v, shown as %+v", s.orders[id], view)
		}
		return ""
	})
}

func (s *state) checkBestSellers() Result {
	sold := s.quantities("confirmed")
	return each("best sellers are what confirmed orders say", union(sold, s.bestSellers), func(sku string, _ bool) string {
		if s.bestSellers[sku] == sold[sku] {
			return ""
		}
		return fmt.Sprintf("shown %d, confirmed %d", s.bestSellers[sku], sold[sku])
	})
}
