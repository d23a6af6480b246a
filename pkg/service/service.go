// Package service holds what each service's process does around its own work: settings, logs, signals, the
// listener for health and metrics, and the order in which the parts start and stop.
package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"

	"onceshop/pkg/httpapi"
)

// Main is a service's main function. It reads cfg from the environment, on top of the defaults it holds,
// opens the admin listener, and calls run with a context that ends at SIGTERM or SIGINT. The process exits
// with
//
//	0  when run returns nil,
//	1  when run returns an error, which is logged,
//	2  when a setting is missing or wrong; standard error names it, one per line.
//
// A second signal ends the process at once. Called as "<program> healthcheck", it asks the running service
// whether it is ready, and exits with 0 or 1.
func Main(name string, cfg interface{ base() *Config }, run func(context.Context, *Admin, *slog.Logger) error) {
	if err := load(cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if len(os.Args) == 2 && os.Args[1] == "healthcheck" {
		if err := healthcheck(string(cfg.base().AdminAddr)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	logger := newLogger(name, cfg.base().LogLevel, isatty.IsTerminal(os.Stderr.Fd()))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, func() {
		logger.Info("stopping")
		stop()
	})
	err := Serve(ctx, cfg.base().AdminAddr, func(ctx context.Context, admin *Admin) error { return run(ctx, admin, logger) })
	if err != nil {
		logger.Error("stopped", "error", err)
		os.Exit(1)
	}
	logger.Info("stopped")
}

// Serve calls run, with the admin listener at addr beside it: it is there before run is called, and until
// after it has returned.
func Serve(ctx context.Context, addr Address, run func(context.Context, *Admin) error) error {
	admin, listening := NewAdmin(), make(chan struct{})
	return Stages{
		{func(ctx context.Context) error {
			select {
			case <-listening:
				return run(ctx, admin)
			case <-ctx.Done():
				return nil
			}
		}},
		{func(ctx context.Context) error {
			return httpapi.Serve(ctx, string(addr), admin, func() { close(listening) })
		}},
	}.Run(ctx)
}

func healthcheck(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// Stages are the parts of a service, in the order in which they must outlive each other: a part of a later
// stage runs until all parts of the stages before it have ended. Those that take work in come first
// (HTTP, consumers), then those that work it off (executors), then the outbox's relay, which publishes
// what they wrote, then the publisher that it needs.
type Stages [][]func(context.Context) error

var errEndedEarly = errors.New("a part of the service ended by itself")

// Run runs all parts at once, until ctx ends or one of them returns; then it ends the contexts of the
// stages, one after the other, and waits. It returns the first error, nil after an orderly stop.
func (s Stages) Run(ctx context.Context) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	contexts := make([]context.Context, len(s))
	cancels := make([]context.CancelFunc, len(s))
	ended := make([]chan error, len(s))
	for i, parts := range s {
		contexts[i], cancels[i] = context.WithCancel(context.WithoutCancel(ctx))
		defer cancels[i]()
		ended[i] = make(chan error, len(parts))
		for _, part := range parts {
			go func() {
				err := part(contexts[i])
				stop(cmp.Or(err, errEndedEarly)) // no effect if the service stops anyway
				ended[i] <- err
			}()
		}
	}
	<-running.Done()
	var first error
	if ctx.Err() == nil {
		first = context.Cause(running)
	}
	for i, parts := range s {
		cancels[i]()
		for range parts {
			// A part that was still starting may say that it was cancelled.
			if err := <-ended[i]; err != nil && first == nil && !errors.Is(err, context.Canceled) {
				first = err
			}
		}
	}
	return first
}
