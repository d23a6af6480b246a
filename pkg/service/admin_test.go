package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
	"onceshop/pkg/service"
	"onceshop/pkg/stack"
)

func ask(t *testing.T, admin *service.Admin, path string) *httptest.ResponseRecorder {
	t.Helper()
	response := httptest.NewRecorder()
	admin.ServeHTTP(response, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return response
}

// requireReady requires what /readyz answers.
func requireReady(t *testing.T, admin *service.Admin, status int, want map[string]string) {
	t.Helper()
	response := ask(t, admin, "/readyz")
	var results map[string]string
	require.NoError(t, json.Unmarshal(response.Body.Bytes(), &results))
	require.Equal(t, want, results)
	require.Equal(t, status, response.Code)
	require.Equal(t, http.StatusOK, ask(t, admin, "/healthz").Code, "the process lives, ready or not")
}

func TestReadyMeansThatEachCheckPasses(t *testing.T) {
	t.Parallel()
	admin := service.NewAdmin()
	requireReady(t, admin, http.StatusServiceUnavailable, map[string]string{"started": "still starting"})
	var down error
	admin.Check("broker", func(context.Context) error { return down })
	admin.Started()
	requireReady(t, admin, http.StatusOK, map[string]string{"started": "ok", "broker": "ok"})
	down = errors.New("no connection")
	requireReady(t, admin, http.StatusServiceUnavailable, map[string]string{"started": "ok", "broker": "no connection"})
}

func TestCheckHasADeadline(t *testing.T) {
	t.Parallel()
	admin := service.NewAdmin()
	admin.Started()
	admin.Check("database", func(ctx context.Context) error {
		deadline, ok := ctx.Deadline()
		require.True(t, ok)
		require.WithinDuration(t, time.Now(), deadline, 3*time.Second)
		return nil
	})
	requireReady(t, admin, http.StatusOK, map[string]string{"started": "ok", "database": "ok"})
}

func TestMetricsAreThoseOfTheRegistry(t *testing.T) {
	t.Parallel()
	admin := service.NewAdmin()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "orders_total", Help: "Orders."})
	admin.Registry.MustRegister(counter)
	counter.Add(3)
	response := ask(t, admin, "/metrics")
	require.Equal(t, http.StatusOK, response.Code)
	require.Contains(t, response.Body.String(), "\norders_total 3\n")
	require.Contains(t, response.Body.String(), "\ngo_goroutines ")
	require.Equal(t, http.StatusNotFound, ask(t, admin, "/").Code)
}

// freeAddress returns an address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	return listener.Addr().String()
}

func TestAdminListensFromBeforeTheServiceStartsUntilAfterItEnds(t *testing.T) {
	t.Parallel()
	addr := freeAddress(t)
	lives := func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/healthz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	ctx, stop := context.WithCancel(t.Context())
	err := service.Serve(ctx, service.Address(addr), func(ctx context.Context, _ *service.Admin) error {
		starting := lives()
		stop()
		<-ctx.Done()
		return errors.Join(starting, lives(), errors.New("ended"))
	})
	require.EqualError(t, err, "ended")
	require.Error(t, lives())
}

func TestServiceDoesNotStartWithoutItsAdminListener(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	err = service.Serve(t.Context(), service.Address(listener.Addr().String()), func(context.Context, *service.Admin) error {
		return errors.New("it runs")
	})
	require.ErrorContains(t, err, "address already in use")
}

func TestDatabaseIsOpenedMigratedAndChecked(t *testing.T) {
	t.Parallel()
	set := postgres.Migrations{Name: "shop", FS: oneMigration}
	admin := service.NewAdmin()
	db, err := service.OpenDatabase(t.Context(), "shop", service.URL(postgrestest.URL(t)), admin, slog.New(slog.DiscardHandler), set)
	require.NoError(t, err)
	var name string
	require.NoError(t, db.GetContext(t.Context(), &name, `SELECT current_setting('application_name') FROM shelves`))
	require.Equal(t, "shop", name)
	admin.Started()
	requireReady(t, admin, http.StatusOK, map[string]string{"started": "ok", "database": "ok"})
	require.NoError(t, db.Close())
	require.Equal(t, http.StatusServiceUnavailable, ask(t, admin, "/readyz").Code)
}

func TestDatabaseThatIsRefusedIsAnErrorAtOnce(t *testing.T) {
	t.Parallel()
	found, err := stack.Find()
	require.NoError(t, err)
	absent, err := found.Database("no_such_database_"+uuid.NewString(), "", "")
	require.NoError(t, err)
	_, err = service.OpenDatabase(t.Context(), "shop", service.URL(absent), service.NewAdmin(), slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "3D000")
}

func TestWaitingForTheDatabaseEndsWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	logger := slog.New(slog.NewTextHandler(writer(func() {
		cancel() // it has said that it waits
	}), nil))
	_, err := service.OpenDatabase(ctx, "shop", "postgres://nobody@127.0.0.1:1/none", service.NewAdmin(), logger)
	require.ErrorIs(t, err, context.Canceled)
}

// writer is called for each write.
type writer func()

func (w writer) Write(text []byte) (int, error) {
	w()
	return len(text), nil
}
