package billing

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"onceshop/pkg/events"
)

// sale is one order as the service orders has it, and what of it billing has heard.
type sale struct {
	order events.Order
	sent  []sent // to billing, and not delivered yet: in any order
	done  []sent // delivered
}

type sent struct {
	id    string
	event events.Event
}

func (s *sale) publish(event events.Event) { s.sent = append(s.sent, sent{uuid.NewString(), event}) }

// story is a sequence of what can happen to a few orders.
type story struct {
	*world
	ctx    context.Context
	sales  []*sale
	leased []*Payment // by executors of which some were stopped long ago
}

func (s *story) pick(t *rapid.T, fits func(*sale) bool) *sale {
	fitting := slices.DeleteFunc(slices.Clone(s.sales), func(s *sale) bool { return !fits(s) })
	if len(fitting) == 0 {
		t.Skip("no such order")
	}
	return rapid.SampledFrom(fitting).Draw(t, "order")
}

func (s *story) place(t *rapid.T) {
	if len(s.sales) == 3 {
		t.Skip("enough")
	}
	event := placed(rapid.SampledFrom([]string{visa, visa, visa, refusedCard, unknownCard}).Draw(t, "method"))
	s.sales = append(s.sales, &sale{order: event.Order})
	s.sales[len(s.sales)-1].publish(event)
}

func (s *story) cancel(t *rapid.T) {
	chosen := s.pick(t, func(s *sale) bool { return s.order.Status == "placed" || s.order.Status == "confirmed" })
	event := cancelled(chosen.order)
	chosen.order = event.Order
	chosen.publish(event)
}

// hear lets orders act on what billing has published.
func (s *story) hear(t *rapid.T) {
	s.heard(t, s.pick(t, func(s *sale) bool { return s.order.Status == "placed" }))
}

func (s *story) heard(t *rapid.T, of *sale) {
	b, err := s.booksOf(s.ctx, of.order)
	require.NoError(t, err)
	switch {
	case of.order.Status != "placed" || len(b.told) == 0:
	case b.told[0] == events.PaymentCapturedV1:
		of.order.Status = "confirmed"
		of.order.Version++
	case b.told[0] == events.PaymentDeclinedV1:
		event := rejected(of.order)
		of.order = event.Order
		of.publish(event)
	}
}

func (s *story) deliverNext(of *sale, i int) error {
	next := of.sent[i]
	of.sent = slices.Delete(of.sent, i, i+1)
	of.done = append(of.done, next)
	return s.world.deliver(s.ctx, next.id, next.event)
}

func (s *story) deliver(t *rapid.T) {
	chosen := s.pick(t, func(s *sale) bool { return len(s.sent) > 0 })
	require.NoError(t, s.deliverNext(chosen, rapid.IntRange(0, len(chosen.sent)-1).Draw(t, "event")))
}

func (s *story) repeat(t *rapid.T) {
	again := rapid.SampledFrom(s.pick(t, func(s *sale) bool { return len(s.done) > 0 }).done).Draw(t, "message")
	require.NoError(t, s.world.deliver(s.ctx, again.id, again.event))
}

// lease reads a payment as an executor does, however long ago another one did and has not come back since.
func (s *story) lease(t *rapid.T) {
	chosen := s.pick(t, func(s *sale) bool { return len(s.done) > 0 })
	p, err := onePayment(s.ctx, s.db, readByOrder, chosen.order.OrderID)
	require.NoError(t, err)
	s.leased = append(s.leased, p)
}

// step lets one of the executors take its next step. Its requests may meet with mishaps, and with a message
// or another executor's step while they are under way.
func (s *story) step(t *rapid.T) {
	if len(s.leased) == 0 {
		t.Skip("nothing leased")
	}
	i := rapid.IntRange(0, len(s.leased)-1).Draw(t, "payment")
	p := s.leased[i]
	plan := rapid.SliceOfN(rapid.SampledFrom([]mishap{fine, fine, unreached, broken, lost, late}), 0, 3).Draw(t, "requests")
	meeting, met := s.meeting(t, p)
	s.network.set(func(n *network) { n.plan, n.meeting = plan, meeting })
	after, err := s.executor.take(s.ctx, next(p), p)
	s.network.idle()
	s.network.set(func(n *network) { n.plan, n.meeting = nil, nil })
	require.NoError(t, *met)
	if err != nil || next(after) == nothing {
		s.leased = slices.Delete(s.leased, i, i+1)
		return
	}
	s.leased[i] = after
}

// meeting returns what happens while the first request is under way, and where its error will be.
func (s *story) meeting(t *rapid.T, p *Payment) (func(*http.Request), *error) {
	met := new(error)
	what := rapid.SampledFrom([]string{"nobody", "nobody", "message", "executor"}).Draw(t, "meets")
	happened := false
	return func(*http.Request) {
		if happened {
			return
		}
		happened = true
		switch what {
		case "message":
			for _, of := range s.sales {
				if of.order.OrderID == p.orderID && len(of.sent) > 0 {
					*met = s.deliverNext(of, 0)
				}
			}
		case "executor":
			other, err := onePayment(s.ctx, s.db, readByID, p.id)
			if err == nil {
				_, _ = s.executor.take(s.ctx, next(other), other)
			}
			*met = err
		}
	}, met
}

func (s *story) arrive(*rapid.T) { s.network.arrive() }

func (s *story) expire(t *rapid.T) { require.NoError(t, s.keysExpire(s.ctx)) }

// end delivers what is left, and lets an executor work until nothing is left to do.
func (s *story) end(t *rapid.T) {
	if rapid.Bool().Draw(t, "late requests arrive before the end") {
		s.network.arrive()
	}
	for range 2 { // in the second round orders has heard of the declines
		for _, of := range s.sales {
			s.heard(t, of)
			for len(of.sent) > 0 {
				require.NoError(t, s.deliverNext(of, 0))
			}
		}
		require.NoError(t, s.settleAll(s.ctx))
	}
	s.network.arrive()
}

func (s *story) check(t *rapid.T) {
	for _, of := range s.sales {
		b, err := s.booksOf(s.ctx, of.order)
		require.NoError(t, err)
		require.LessOrEqual(t, b.charges, 1, "charged twice")
		require.IsIncreasing(t, append([]int64{0}, b.versions...))
		require.Zero(t, b.balance)
		require.False(t, b.due)
		switch {
		case of.order.Status == "cancelled":
			require.Equal(t, b.charges, b.refunds, "cancelled: refunded, or never charged")
			require.Contains(t, []Status{Voided, Refunded, Declined}, b.status)
			require.Equal(t, b.status == Refunded, b.charges == 1)
		case of.order.PaymentMethod == visa:
			require.Equal(t, "confirmed", of.order.Status)
			require.Equal(t, []any{Captured, 1, 0}, []any{b.status, b.charges, b.refunds})
			require.Equal(t, []string{events.PaymentCapturedV1}, b.told)
		default:
			require.Equal(t, "rejected", of.order.Status)
			require.Equal(t, []any{Declined, 0, 0}, []any{b.status, b.charges, b.refunds})
			require.Equal(t, []string{events.PaymentDeclinedV1}, b.told)
		}
	}
}

func TestNoSequenceChargesTwiceOrForgetsAPayment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rapid.Check(t, func(t *rapid.T) {
		s := &story{world: w, ctx: context.Background()}
		s.place(t)
		t.Repeat(map[string]func(*rapid.T){
			"place": s.place, "cancel": s.cancel, "hear": s.hear, "deliver": s.deliver, "deliver ": s.deliver,
			"repeat": s.repeat, "lease": s.lease, "step": s.step, "step ": s.step, "step  ": s.step, "arrive": s.arrive,
			"expire": s.expire,
		})
		s.end(t)
		s.check(t)
	})
}
