package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"onceshop/pkg/broker"
	"onceshop/pkg/events"
	"onceshop/pkg/fault"
	"onceshop/pkg/postgres/postgrestest"
)

// model drives the steps of writers and of several relays, none of which has the lock, in any order against
// the real table. Only the wire is simulated: a message that was sent arrives some time later, or never, and
// its confirm comes some time after that, or never.
type model struct {
	ctx     context.Context
	db      *sqlx.DB
	written map[string]int      // by key, how many messages were committed or are in an open transaction
	open    map[string]*sqlx.Tx // by key, for a key is locked by one transaction at a time
	relays  []*modelRelay
	arrived map[string]int // by key, how many messages have arrived at least once
}

type modelRelay struct {
	*Relay
	window  *window
	hint    *hint
	wire    []wired
	reading *[]row // what a read has returned and the window doesn't have yet; nil between reads
}

// wired is a message on its way: sent, then arrived, then settled.
type wired struct {
	row     row
	arrived bool
}

const (
	modelKeys   = 2
	modelRelays = 3
)

func newModel(t *rapid.T, db *sqlx.DB) *model {
	ctx := context.Background()
	_, err := db.ExecContext(ctx, `TRUNCATE outbox, outbox_held`)
	require.NoError(t, err)
	m := &model{ctx: ctx, db: db, written: map[string]int{}, open: map[string]*sqlx.Tx{}, arrived: map[string]int{}}
	for range modelRelays {
		r := &Relay{cfg: RelayConfig{BatchSize: 5, BatchSum: 1 << 20}}
		r.cfg.setDefaults()
		m.relays = append(m.relays, &modelRelay{Relay: r})
		m.relays[len(m.relays)-1].restart()
	}
	return m
}

func (r *modelRelay) restart() { r.window, r.hint, r.reading, r.wire = newWindow(1), &hint{}, nil, nil }

func (m *model) anyRelay(t *rapid.T) *modelRelay {
	return m.relays[rapid.IntRange(0, modelRelays-1).Draw(t, "relay")]
}

// write begins a transaction for a key and writes one message.
func (m *model) write(t *rapid.T) {
	key := fmt.Sprint("key", rapid.IntRange(1, modelKeys).Draw(t, "key"))
	tx := m.open[key]
	if tx == nil {
		var err error
		tx, err = m.db.BeginTxx(m.ctx, nil)
		require.NoError(t, err)
		m.open[key] = tx
	}
	msg := message.NewMessage("id", []byte(strconv.Itoa(m.written[key])))
	msg.Metadata.Set(events.Type, "orders.x.v1")
	msg.Metadata.Set(events.Subject, key)
	require.NoError(t, PublishMessagesTx(m.ctx, tx, msg))
	m.written[key]++
}

// commit ends an open transaction, however late.
func (m *model) commit(t *rapid.T) {
	if len(m.open) == 0 {
		t.Skip("none open")
	}
	key := rapid.SampledFrom(slices.Sorted(maps.Keys(m.open))).Draw(t, "key")
	require.NoError(t, m.open[key].Commit())
	delete(m.open, key)
}

// read and add are two steps: messages are settled while a read is under way.
func (m *model) read(t *rapid.T) { m.readBy(t, m.betweenReads(t)) }

func (m *model) readBy(t *rapid.T, r *modelRelay) {
	known, _, _ := r.window.excluded()
	rows, err := r.read(m.ctx, m.db, r.hint.from, known)
	require.NoError(t, err)
	r.reading = &rows
}

func (m *model) add(t *rapid.T) {
	r := m.anyRelay(t)
	if r.reading == nil {
		t.Skip("nothing read")
	}
	m.addBy(r)
}

func (m *model) addBy(r *modelRelay) {
	r.window.add(*r.reading)
	r.reading = nil
}

// betweenReads returns a relay that may read or save: it does one after the other.
func (m *model) betweenReads(t *rapid.T) *modelRelay {
	r := m.anyRelay(t)
	if r.reading != nil {
		t.Skip("in the middle of a read")
	}
	return r
}

func (m *model) advance(t *rapid.T) {
	require.NoError(t, m.anyRelay(t).hint.advance(m.ctx, m.db))
}

// send sends all that may be sent.
func (m *model) send(t *rapid.T) { m.sendBy(m.anyRelay(t)) }

func (m *model) sendBy(r *modelRelay) {
	for _, next := range r.window.take() {
		r.wire = append(r.wire, wired{row: next})
	}
}

func (m *model) onTheWire(t *rapid.T, fits func(wired) bool) (*modelRelay, int) {
	r := m.anyRelay(t)
	var fitting []int
	for i, w := range r.wire {
		if fits(w) {
			fitting = append(fitting, i)
		}
	}
	if len(fitting) == 0 {
		t.Skip("nothing on the wire")
	}
	return r, rapid.SampledFrom(fitting).Draw(t, "message")
}

// arrive lets one message reach the queue, in any order.
func (m *model) arrive(t *rapid.T) {
	r, i := m.onTheWire(t, func(w wired) bool { return !w.arrived })
	m.arriveAt(t, &r.wire[i])
}

// arriveAt is the check: a message may arrive only once all earlier ones of its key have.
func (m *model) arriveAt(t *rapid.T, w *wired) {
	w.arrived = true
	n, err := strconv.Atoi(string(w.row.msg.Payload))
	require.NoError(t, err)
	require.LessOrEqual(t, n, m.arrived[w.row.key], "%s: message %d came before %d", w.row.key, n, m.arrived[w.row.key])
	m.arrived[w.row.key] = max(m.arrived[w.row.key], n+1)
}

// settle tells a relay what became of a message: that it is confirmed; that the broker refused it; that the
// connection was lost, whether it has arrived or not.
func (m *model) settle(t *rapid.T) {
	outcome := rapid.SampledFrom([]error{nil, nil, broker.ErrNacked, broker.ErrReturned, broker.ErrChannel, fault.AsOutage(errors.New("lost"))}).Draw(t, "outcome")
	refused := errors.Is(outcome, broker.ErrNacked) || errors.Is(outcome, broker.ErrReturned)
	r, i := m.onTheWire(t, func(w wired) bool {
		switch {
		case outcome == nil:
			return w.arrived
		case refused:
			return !w.arrived
		default:
			return true
		}
	})
	settled := r.wire[i].row
	r.wire = slices.Delete(r.wire, i, i+1)
	r.window.settle(settled, outcome)
}

func (m *model) save(t *rapid.T) { m.saveBy(t, m.betweenReads(t)) }

func (m *model) saveBy(t *rapid.T, r *modelRelay) {
	require.NoError(t, r.save(m.ctx, m.db, r.window))
}

// crash makes a relay forget everything. What it has sent may still arrive: it stays on another's wire, so
// to speak, whose confirm nobody waits for.
func (m *model) crash(t *rapid.T) {
	r := m.anyRelay(t)
	if rapid.Bool().Draw(t, "what was sent arrives") {
		for i := range r.wire {
			if !r.wire[i].arrived {
				m.arriveAt(t, &r.wire[i])
			}
		}
	}
	r.restart()
}

// due lets the next try of all held keys come.
func (m *model) due(t *rapid.T) {
	_, err := m.db.ExecContext(m.ctx, `UPDATE outbox_held SET next_try = now() - interval '1 second'`)
	require.NoError(t, err)
}

// drain commits what is open and lets one relay publish all that is left.
func (m *model) drain(t *rapid.T) {
	for key, tx := range m.open {
		require.NoError(t, tx.Commit())
		delete(m.open, key)
	}
	for _, r := range m.relays {
		r.restart()
	}
	r := m.relays[0]
	for left := 1; left > 0; {
		m.due(t)
		m.readBy(t, r)
		m.addBy(r)
		for m.sendBy(r); len(r.wire) > 0; m.sendBy(r) {
			m.arriveAt(t, &r.wire[0])
			settled := r.wire[0].row
			r.wire = r.wire[1:]
			r.window.settle(settled, nil)
		}
		m.saveBy(t, r)
		require.NoError(t, m.db.GetContext(m.ctx, &left, `SELECT count(*) FROM outbox`))
	}
	require.Equal(t, m.written, m.arrived, "every committed message has arrived")
	var held int
	require.NoError(t, m.db.GetContext(m.ctx, &held, `SELECT count(*) FROM outbox_held`))
	require.Zero(t, held)
}

// Whatever writers and relays do, and in whatever order: first deliveries of a key are in the order of its
// rows, checked at each arrival, and nothing is lost.
func TestAnyInterleavingOfRelaysKeepsOrderAndLosesNothing(t *testing.T) {
	t.Parallel()
	db := postgrestest.New(t, Migrations())
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t, db)
		defer func() {
			for _, tx := range m.open {
				_ = tx.Rollback()
			}
		}()
		t.Repeat(map[string]func(*rapid.T){
			"write": m.write, "write again": m.write, "commit": m.commit, "read": m.read, "add": m.add, "advance": m.advance,
			"send": m.send, "arrive": m.arrive, "arrive again": m.arrive, "settle": m.settle,
			"settle again": m.settle, "save": m.save, "crash": m.crash, "due": m.due,
		})
		m.drain(t)
	})
}
