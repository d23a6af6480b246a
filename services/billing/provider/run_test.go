package provider_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/postgres/postgrestest"
	"onceshop/pkg/service"
	"onceshop/services/billing/provider"
)

func TestRunWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	database, err := url.Parse(postgrestest.URL(t))
	require.NoError(t, err)
	moved := *database
	moved.Host = freeAddress(t)
	cfg := &provider.Config{
		Config:      service.Config{HTTPAddr: service.Address(freeAddress(t)), AdminAddr: service.Address(freeAddress(t))},
		DatabaseURL: service.URL(moved.String()),
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- provider.Run(ctx, cfg, slog.New(slog.DiscardHandler)) }()

	admin := "http://" + string(cfg.AdminAddr)
	awaitStatus(t, admin+"/healthz", http.StatusOK)
	awaitStatus(t, admin+"/readyz", http.StatusServiceUnavailable)
	forward(t, moved.Host, database.Host) // the database is there
	awaitStatus(t, admin+"/readyz", http.StatusOK)
	f := fixture{client: newClient("http://"+string(cfg.HTTPAddr), "sk_test_any")}
	require.NoError(t, f.confirm(t, f.create(t, accepted)))
	stop()
	require.NoError(t, <-stopped)
}

func TestRunStopsWhileItWaits(t *testing.T) {
	t.Parallel()
	cfg := &provider.Config{
		Config:      service.Config{HTTPAddr: service.Address(freeAddress(t)), AdminAddr: service.Address(freeAddress(t))},
		DatabaseURL: service.URL("postgres://nobody@" + freeAddress(t) + "/none"),
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- provider.Run(ctx, cfg, slog.New(slog.DiscardHandler)) }()
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

// forward passes connections from one address to another until the test ends.
func forward(t *testing.T, from, to string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", from)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				}()
			}
		}
	}()
}
