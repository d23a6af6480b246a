package provider_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/service"
	"onceshop/services/billing/provider"
)

func TestRunStopsWhileItWaits(t *testing.T) {
	t.Parallel()
	cfg := &provider.Config{
		Config:      service.Config{HTTPAddr: service.Address(freeAddress(t)), AdminAddr: service.Address(freeAddress(t))},
		DatabaseURL: service.URL("postgres://nobody@" + freeAddress(t) + "/none"),
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		stopped <- service.Serve(ctx, cfg.AdminAddr, func(ctx context.Context, admin *service.Admin) error {
			return provider.Run(ctx, cfg, admin, slog.New(slog.DiscardHandler))
		})
	}()
	awaitStatus(t, "http://"+string(cfg.AdminAddr)+"/readyz", http.StatusServiceUnavailable)
	stop()
	require.NoError(t, <-stopped)
}

// freeAddress returns an address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	return listener.Addr().String()
}

// awaitStatus waits until a GET is answered with that status.
func awaitStatus(t *testing.T, url string, status int) {
	t.Helper()
	require.Eventually(t, func() bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == status
	}, 15*time.Second, 20*time.Millisecond)
}
