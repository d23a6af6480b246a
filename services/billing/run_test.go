package billing

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A window that is shorter than the retries and the margin would set messages aside as too old before
// their last try.
func TestWindowThatIsTooShortIsRefused(t *testing.T) {
	t.Parallel()
	for window, want := range map[string]string{
		"1h14m10s": "INBOX_WINDOW: a window of 1h14m10s is too short: want more than 1h14m10s (retries 14m10s + margin 1h0m0s)\n",
		"a week":   "INBOX_WINDOW: want a time of more than 0, such as 15m or 90s\n",
	} {
		process := exec.CommandContext(t.Context(), os.Args[0])
		process.Env = []string{
			"BILLING_RUNS=yes", "INBOX_WINDOW=" + window,
			"DATABASE_URL=postgres://billing@127.0.0.1:1/billing", "AMQP_URL=amqp://127.0.0.1:1/shop",
		}
		said, err := process.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", said)
		require.Equal(t, 2, exit.ExitCode())
		require.Equal(t, want, string(said))
	}
	cfg := DefaultConfig()
	require.NoError(t, cfg.InboxWindow.UnmarshalText([]byte("1h14m11s")))
	require.NoError(t, cfg.Validate())
	cfg.RetryDelays = append(cfg.RetryDelays, time.Minute)
	require.Error(t, cfg.Validate())
}
