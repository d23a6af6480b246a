package outbox

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/postgres/postgrestest"
)

// What is under way at a stop may take longer to settle than an idle session lives.
func TestLockIsHeldUntilAStopIsDone(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	db := postgrestest.Open(t, url)
	free := func() (free bool) {
		require.NoError(t, db.Get(&free, `SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory'
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`))
		return free
	}
	ctx, stop := context.WithCancel(t.Context())
	require.NoError(t, lead(ctx, url, slog.New(slog.DiscardHandler), func() {}, func(leading context.Context) error {
		stop()
		<-leading.Done()
		require.Never(t, free, lockIdle+2*lockPing, 100*time.Millisecond)
		return nil
	}))
	require.Eventually(t, free, 5*time.Second, 10*time.Millisecond)
}
