package outbox

import (
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"onceshop/pkg/broker"
	"onceshop/pkg/fault"
)

// row is a row of the outbox table as a message.
type row struct {
	id    int64
	key   string
	msg   *message.Message
	bytes int
	err   error // why it can't be decoded
}

// window is what an active relay knows: the rows that it has read and not yet deleted. Each key's rows form
// a chain, of which only the first is ever under way; the chains go side by side. The publishing loop takes
// what is ready, the publisher's confirms settle it, and the database loop takes what is confirmed.
type window struct {
	enough int // confirmed rows that are worth a write to the database while others are under way

	mu        sync.Mutex
	chains    map[string][]row   // by key, in id order; the first of each is ready, under way or suspect
	known     map[int64]struct{} // ids read and not yet deleted
	bytes     int                // of all known rows that are not confirmed
	ready     []row              // may be sent now
	suspects  []row              // were under way when the broker closed the channel: go one at a time
	underWay  int
	alone     bool // the one under way is a suspect
	confirmed []int64
	refused   []refusal
	refusing  map[string]struct{} // keys of refused, until they are in outbox_held

	toSend chan struct{} // signalled when the publishing loop may have something to do
	toSave chan struct{} // signalled when the database loop may have something to do
}

// refusal is a message that could not be published through its own fault.
type refusal struct {
	key string
	err error
}

func newWindow(enough int) *window {
	return &window{
		enough: enough,
		chains: map[string][]row{}, known: map[int64]struct{}{}, refusing: map[string]struct{}{},
		toSend: make(chan struct{}, 1), toSave: make(chan struct{}, 1),
	}
}

// add appends rows that were read in id order. Rows of a key that was refused while they were read are
// left for a later read: the one that was refused has to go first.
func (w *window) add(rows []row) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range rows {
		if _, held := w.refusing[r.key]; held {
			continue
		}
		w.known[r.id] = struct{}{}
		w.bytes += r.bytes
		chain := append(w.chains[r.key], r)
		w.chains[r.key] = chain
		if len(chain) == 1 {
			w.ready = append(w.ready, r)
		}
	}
	signal(w.toSend)
}

// take returns what may be sent now: everything that is ready or, while there are suspects, one of them
// once nothing else is under way. What it returns counts as under way until it is settled.
func (w *window) take() []row {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.suspects) > 0 {
		if w.underWay > 0 {
			return nil
		}
		first := w.suspects[:1:1]
		w.suspects = w.suspects[1:]
		w.underWay, w.alone = 1, true
		return first
	}
	if w.alone && w.underWay > 0 {
		return nil
	}
	rows := w.ready
	w.ready = nil
	w.underWay += len(rows)
	return rows
}

// settle records what became of a row that was under way. It does not block.
func (w *window) settle(r row, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.underWay--
	alone := w.alone
	w.alone = false
	switch {
	case err == nil:
		w.confirmed = append(w.confirmed, r.id)
		w.bytes -= r.bytes
		w.chains[r.key][0] = row{} // let go of the message
		if rest := w.chains[r.key][1:]; len(rest) > 0 {
			w.chains[r.key] = rest
			w.ready = append(w.ready, rest[0])
		} else {
			delete(w.chains, r.key)
		}
	case fault.ClassOf(err) == fault.Outage && alone:
		w.suspects = append(w.suspects, r) // alone again, when the broker is back
	case fault.ClassOf(err) == fault.Outage:
		w.ready = append(w.ready, r)
	case errors.Is(err, broker.ErrChannel) && !alone:
		w.suspects = append(w.suspects, r)
	default:
		w.refuse(r.key, err)
	}
	signal(w.toSend)
	if w.underWay == 0 || len(w.confirmed) >= w.enough || len(w.refused) > 0 {
		signal(w.toSave)
	}
}

// refuse forgets the chain of key; the rows are read again once outbox_held lets them.
func (w *window) refuse(key string, err error) {
	for _, r := range w.chains[key] {
		delete(w.known, r.id)
		w.bytes -= r.bytes
	}
	delete(w.chains, key)
	w.refusing[key] = struct{}{}
	w.refused = append(w.refused, refusal{key, err})
}

// outcome returns what is to be written to the database: ids to delete, keys to hold.
func (w *window) outcome() ([]int64, []refusal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.confirmed, w.refused
}

// saved forgets an outcome, of that length, that is in the database.
func (w *window) saved(confirmed, refused int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.confirmed[:confirmed] {
		delete(w.known, id)
	}
	for _, r := range w.refused[:refused] {
		delete(w.refusing, r.key)
	}
	w.confirmed = append([]int64(nil), w.confirmed[confirmed:]...)
	w.refused = append([]refusal(nil), w.refused[refused:]...)
}

// excluded returns the known ids, which a read leaves out, and how many rows are still to be confirmed and
// their bytes.
func (w *window) excluded() (ids []int64, unconfirmed, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids = make([]int64, 0, len(w.known))
	for id := range w.known {
		ids = append(ids, id)
	}
	return ids, len(ids) - len(w.confirmed), w.bytes
}

func (w *window) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.underWay == 0
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
