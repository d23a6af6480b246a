package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"onceshop/pkg/postgres"
)

// The relay's lock: a session advisory lock on a connection of its own. PostgreSQL gives it back when the
// session ends, so a holder that dies is replaced at once. One that is stopped (SIGSTOP, a long pause, a
// cut cable) no longer pings, and idle_session_timeout ends its session. The connection must reach
// PostgreSQL itself: a pooler in transaction mode would hand the session, and the lock, to others.
const (
	lockID       = 0x6f7574626f78 // "outbox"; advisory locks are per database
	lockPing     = time.Second
	lockIdle     = 3 * time.Second
	lockAttempts = 500 * time.Millisecond // between tries of one that stands by
)

const tryLock = `SELECT pg_try_advisory_lock($1)`

// lead waits until it holds the lock, runs fn, and gives the lock back. fn's context ends when the lock is
// lost. The error is fn's, or why there is no lock.
func lead(ctx context.Context, url string, logger *slog.Logger, fn func(context.Context) error) error {
	cfg, err := postgres.ConnConfig(postgres.Config{URL: url, ApplicationName: "outbox relay lock"})
	if err != nil {
		return err
	}
	cfg.RuntimeParams["idle_session_timeout"] = fmt.Sprint(lockIdle.Milliseconds())
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect for the relay's lock: %w", err)
	}
	defer func() {
		// Ending the session gives the lock back.
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockPing)
		defer cancel()
		_ = conn.Close(closing)
	}()
	for {
		var held bool
		if err := conn.QueryRow(ctx, tryLock, lockID).Scan(&held); err != nil {
			return fmt.Errorf("take the relay's lock: %w", err)
		}
		if held {
			break
		}
		if err := sleep(ctx, lockAttempts); err != nil {
			return err
		}
	}
	logger.Info("relay active")
	leading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		stop(keepPinging(leading, conn))
	}()
	err = fn(leading)
	stop(nil)
	<-watched
	return err
}

func keepPinging(ctx context.Context, conn *pgx.Conn) error {
	for {
		if err := sleep(ctx, lockPing); err != nil {
			return err
		}
		ping, cancel := context.WithTimeout(ctx, lockIdle)
		err := conn.Ping(ping)
		cancel()
		if err != nil {
			return fmt.Errorf("the relay's lock is lost: %w", err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
