package outbox

import (
	"context"
	"time"
)

const (
	listen = `LISTEN outbox`
	// A transaction with a NOTIFY takes an id, and would wait for the disk at its commit.
	notify = `SELECT set_config('synchronous_commit', 'off', true), pg_notify('outbox', '')`
	// notifyPause gathers the commits of a few milliseconds into one NOTIFY.
	notifyPause = 5 * time.Millisecond
	notifyLimit = 5 * time.Second
)

// committed wakes the relay: at once where it is active in this process; otherwise by a NOTIFY that follows
// the commit by a few milliseconds and stands for all commits of that time.
//
// It is no NOTIFY in the writing transaction itself: PostgreSQL takes a lock of the whole database for
// those at commit, which then go one after the other (10,081 commits a second became 1,624, at 32
// connections). A NOTIFY that gets lost costs a poll's time.
func (o *Outbox) committed() {
	if o.leading.Load() {
		signal(o.wake)
		return
	}
	if !o.notifying.CompareAndSwap(false, true) {
		return // the one that is about to go stands for this commit too
	}
	time.AfterFunc(notifyPause, func() {
		o.notifying.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), notifyLimit)
		defer cancel()
		_, _ = o.db.ExecContext(ctx, notify)
	})
}
