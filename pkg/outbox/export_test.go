package outbox

import (
	"context"

	"onceshop/pkg/postgres"
)

// RunWithoutLock is Run without the lock: the relay is active whoever else is.
func (r *Relay) RunWithoutLock(ctx context.Context) error {
	db, err := postgres.Open(postgres.Config{URL: r.cfg.URL, MaxConnections: 2})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for ctx.Err() == nil {
		if err := r.publish(ctx, db); err != nil && ctx.Err() == nil {
			r.cfg.Logger.Warn("relay without lock", "error", err)
			_ = sleep(ctx, r.cfg.Poll)
		}
	}
	return nil
}
