package service

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// readyTimeout bounds one check of /readyz.
const readyTimeout = 2 * time.Second

// Admin serves what operators and schedulers ask, on a listener of its own:
//
//	/healthz  200 while the process lives
//	/readyz   200 if every check passes, 503 with the reasons otherwise
//	/metrics  in Prometheus' format
//
// It is safe for concurrent use.
type Admin struct {
	Registry *prometheus.Registry

	mu     sync.Mutex
	checks map[string]func(context.Context) error
}

// NewAdmin returns an Admin whose only check, "started", fails until Started is called.
func NewAdmin() *Admin {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a := &Admin{Registry: registry, checks: map[string]func(context.Context) error{}}
	a.Check("started", func(context.Context) error { return errStarting })
	return a
}

var errStarting = errors.New("still starting")

// Check adds a check, or replaces the one of that name. nil means ready.
func (a *Admin) Check(name string, check func(context.Context) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checks[name] = check
}

// Started says that the service has been set up; from now on the other checks decide.
func (a *Admin) Started() {
	a.Check("started", func(context.Context) error { return nil })
}

// ServeHTTP satisfies http.Handler.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/healthz":
		_, _ = w.Write([]byte("ok\n"))
	case "/readyz":
		a.ready(w, r)
	case "/metrics":
		promhttp.HandlerFor(a.Registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (a *Admin) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	a.mu.Lock()
	checks := maps.Clone(a.checks)
	a.mu.Unlock()
	status, results := http.StatusOK, map[string]string{}
	for name, check := range checks {
		results[name] = "ok"
		if err := check(ctx); err != nil {
			status, results[name] = http.StatusServiceUnavailable, err.Error()
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(results)
}
