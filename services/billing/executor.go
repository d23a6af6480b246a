package billing

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"onceshop/pkg/events"
	"onceshop/pkg/outbox"
)

const (
	executors    = 8                      // payments worked on at a time
	leaseLimit   = 10 * time.Second       // more than a call of the provider, and how long a dead executor's payments wait
	executorPoll = 500 * time.Millisecond // when nobody wakes it: a lease has ended, another replica has written
	recordLimit  = 10 * time.Second       // for noting an outcome once the service stops
)

// executor does at the provider what the payments ask for. No call is made inside a transaction: it leases
// a due payment, notes what it is about to do, calls, and records the outcome, what the customer owes and
// the event in one transaction. Wherever it dies, the payment is due again when the lease ends, and next
// says from its row alone how to go on. Any number of replicas may run.
type executor struct {
	db       *sqlx.DB
	box      *outbox.Outbox
	provider *provider
	logger   *slog.Logger
	wake     chan struct{}
}

// woken makes the executor look for due payments.
func (e *executor) woken() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends; then it finishes the call that each payment is at, and returns nil.
func (e *executor) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range executors {
		workers.Go(func() { e.work(ctx) })
	}
	workers.Wait()
	return nil
}

func (e *executor) work(ctx context.Context) {
	poll := time.NewTicker(executorPoll)
	defer poll.Stop()
	for ctx.Err() == nil {
		payment, err := lease(ctx, e.db, leaseLimit)
		switch {
		case err != nil && ctx.Err() == nil:
			e.logger.Warn("no payment leased: trying again", "error", err)
		case payment != nil:
			e.woken() // there may be more
			e.settle(ctx, payment)
			continue
		}
		select {
		case <-ctx.Done():
		case <-e.wake:
		case <-poll.C:
		}
	}
}

// settle takes one step after the other until nothing is left to do, a call fails, or ctx ends.
func (e *executor) settle(ctx context.Context, p *Payment) {
	log := e.logger.With("payment_id", p.id, "order_id", p.orderID)
	// A call under way when the service stops is finished and recorded.
	detached := context.WithoutCancel(ctx)
	for ctx.Err() == nil && next(p) != nothing {
		was := next(p)
		after, err := e.take(detached, was, p)
		if err != nil {
			log.Warn("payment: trying again later", "step", was, "error", err)
			postponing, cancel := context.WithTimeout(detached, recordLimit)
			defer cancel()
			if err := postpone(postponing, e.db, p.id); err != nil {
				log.Warn("payment not postponed: its lease will end", "error", err)
			}
			return
		}
		log.Info("payment", "step", was, "status", after.status)
		p = after
	}
}

// take takes one step and returns the payment as it is afterwards.
func (e *executor) take(ctx context.Context, s step, p *Payment) (*Payment, error) {
	switch s {
	case create:
		made, err := e.provider.create(ctx, p)
		if err != nil {
			return nil, err
		}
		return e.record(ctx, p.id, func(p *Payment) (events.Event, int64) { return p.created(made), 0 })
	case confirm:
		return e.confirm(ctx, p)
	case resolve:
		return e.resolve(ctx, p)
	case void:
		return e.resolved(ctx, p)(e.provider.cancel(ctx, p.intentID))
	case refund:
		return e.refund(ctx, p)
	}
	return p, nil
}

// confirm notes that the card may be charged from now on, then charges it. Should the note find that the
// payment has moved on, nothing is asked of the provider.
func (e *executor) confirm(ctx context.Context, p *Payment) (*Payment, error) {
	var ask bool
	p, err := e.record(ctx, p.id, func(p *Payment) (events.Event, int64) { ask = p.confirming(); return nil, 0 })
	if err != nil || !ask {
		return p, err
	}
	return e.resolved(ctx, p)(e.provider.confirm(ctx, p.intentID))
}

// resolve asks what became of the intent; if nothing has yet, and a cancellation is wanted, it cancels it.
func (e *executor) resolve(ctx context.Context, p *Payment) (*Payment, error) {
	found, err := e.provider.read(ctx, p.intentID)
	if err != nil {
		return nil, err
	}
	if p.cancelWanted && (found.status == intentUnconfirmed || found.status == intentPending) {
		return e.resolved(ctx, p)(e.provider.cancel(ctx, p.intentID))
	}
	return e.resolved(ctx, p)(found, nil)
}

var errPending = errors.New("the provider has not decided yet")

// resolved records what a call that may have moved money returned. An error of the call says nothing of
// the outcome (a decline is one, and so is a lost answer), so the provider is asked.
func (e *executor) resolved(ctx context.Context, p *Payment) func(intent, error) (*Payment, error) {
	return func(found intent, err error) (*Payment, error) {
		if err != nil {
			var unknown error
			if found, unknown = e.provider.read(ctx, p.intentID); unknown != nil {
				return nil, errors.Join(err, unknown)
			}
			if found.status == intentUnconfirmed {
				return nil, err // nothing has come of it: again, later
			}
		}
		if found.status == intentPending {
			return nil, errPending
		}
		return e.record(ctx, p.id, func(p *Payment) (events.Event, int64) { return p.resolved(found) })
	}
}

// refund gives the captured amount back. An error says nothing of the outcome here either.
func (e *executor) refund(ctx context.Context, p *Payment) (*Payment, error) {
	id, err := e.provider.refund(ctx, p)
	if err != nil {
		var unknown error
		if id, unknown = e.provider.findRefund(ctx, p.intentID); unknown != nil {
			return nil, errors.Join(err, unknown)
		}
	}
	return e.record(ctx, p.id, func(p *Payment) (events.Event, int64) { return p.refunded(id) })
}

// record locks the payment, lets note change it, and saves it with what the customer owes and the event.
// note decides by the payment's status, so a step that somebody else has recorded changes nothing.
func (e *executor) record(ctx context.Context, id string, note func(*Payment) (events.Event, int64)) (*Payment, error) {
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	var p *Payment
	err := e.box.InTx(ctx, func(tx *sqlx.Tx) error {
		var err error
		if p, err = onePayment(ctx, tx, lockByID, id); err != nil {
			return err
		}
		event, owed := note(p)
		if err := savePayment(ctx, tx, p); err != nil {
			return err
		}
		if err := owe(ctx, tx, p.customer, p.amount.Currency, owed); err != nil {
			return err
		}
		if event == nil {
			return nil
		}
		return e.box.PublishTx(ctx, tx, event)
	})
	return p, err
}
