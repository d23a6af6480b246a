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
//
// The same connection listens for writers in other processes (wake.go).
const (
	lockID   = 0x6f7574626f78 // "outbox"; advisory locks are per database
	lockPing = time.Second
	lockIdle = 3 * time.Second
	lockPoll = 500 * time.Millisecond // between tries of one that stands by
)

const tryLock = `SELECT pg_try_advisory_lock($1)`

// lead waits until it holds the lock, runs fn, and gives the lock back. fn's context ends when the lock is
// lost. heard is called when a writer elsewhere has committed. The error is fn's, or why there is no lock.
func lead(ctx context.Context, url string, logger *slog.Logger, heard func(), fn func(context.Context) error) error {
	conn, err := connect(ctx, url)
	if err != nil {
		return err
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
		if err := sleep(ctx, lockPoll); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(ctx, listen); err != nil {
		return fmt.Errorf("listen for writers: %w", err)
	}
	logger.Info("relay active")
	leading, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	// A stop takes its time, and so the pings go on until fn has returned.
	watching, returned := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		lose(watch(watching, conn, heard))
	}()
	err = fn(leading)
	returned()
	<-watched
	return err
}

func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	cfg, err := postgres.ConnConfig(postgres.Config{URL: url, ApplicationName: "outbox relay lock"})
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["idle_session_timeout"] = fmt.Sprint(lockIdle.Milliseconds())
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect for the relay's lock: %w", err)
	}
	return conn, nil
}

// watch listens for writers and pings the server each second, until ctx ends or the session does, and says
// which.
func watch(ctx context.Context, conn *pgx.Conn, heard func()) error {
	// Notifications don't count as activity, so the ping must not wait for a pause between them.
	for ping := time.Now().Add(lockPing); ; {
		waiting, cancel := context.WithDeadline(ctx, ping)
		_, err := conn.WaitForNotification(waiting)
		cancel()
		if err == nil {
			heard()
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pinging, cancel := context.WithTimeout(ctx, lockIdle)
		err = conn.Ping(pinging)
		cancel()
		if err != nil {
			return fmt.Errorf("the relay's lock is lost: %w", err)
		}
		ping = time.Now().Add(lockPing)
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
