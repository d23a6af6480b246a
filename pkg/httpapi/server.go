package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// stopTimeout is how long requests under way may take to finish once the server stops.
const stopTimeout = 15 * time.Second

// Serve serves handler at addr until ctx ends; then it takes no new requests, lets those under way finish
// within 15 seconds, and returns nil. It calls listening once connections are taken, and returns an error
// if it can't listen.
func Serve(ctx context.Context, addr string, handler http.Handler, listening func()) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       60 * time.Second,
	}
	listening()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", addr, err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := server.Shutdown(stopping); err != nil {
		return errors.Join(fmt.Errorf("serve %s: requests under way outlasted %s: %w", addr, stopTimeout, err), server.Close())
	}
	return nil
}
