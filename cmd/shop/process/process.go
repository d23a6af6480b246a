// Package process runs the shop's services as processes of their own: started from built binaries, with
// settings of their own, stopped as an operator would or killed as a machine would.
package process

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"onceshop/cmd/shop/setup"
)

// Shop is a shop whose services run as processes. Each has its addresses from the beginning and keeps them
// when it is started again. It is safe for concurrent use.
type Shop struct {
	setup.Shop
	dir       string // of the binaries
	logs      string // a directory with one file per service
	addresses map[string]addresses
	environ   map[string][]string // additional settings by service

	mu        sync.Mutex
	processes map[string]*process
}

type addresses struct{ http, admin string }

type process struct {
	command *exec.Cmd
	ended   chan struct{}
	err     error // of Wait; valid once ended is closed
}

// New returns a shop whose services are not started yet. The binaries are those in dir, and logs go to
// files in the directory logs. With fixed, services listen on the ports of their defaults, which must be
// free; otherwise on any that are.
func New(shop setup.Shop, dir, logs string, fixed bool) (*Shop, error) {
	s := &Shop{
		Shop: shop, dir: dir, logs: logs, addresses: map[string]addresses{}, environ: map[string][]string{},
		processes: map[string]*process{},
	}
	for i, service := range setup.Services() {
		a := addresses{"127.0.0.1:0", "127.0.0.1:0"}
		if fixed {
			a = addresses{fmt.Sprintf("127.0.0.1:%d", 8081+i), fmt.Sprintf("127.0.0.1:%d", 8091+i)}
		}
		if err := a.reserve(); err != nil {
			return nil, fmt.Errorf("%w: is another shop running?", err)
		}
		s.addresses[service] = a
	}
	return s, nil
}

// reserve finds out that the addresses are free, and puts free ports in place of 0.
func (a *addresses) reserve() error {
	for _, address := range []*string{&a.http, &a.admin} {
		listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", *address)
		if err != nil {
			return err
		}
		defer func() { _ = listener.Close() }()
		*address = listener.Addr().String()
	}
	return nil
}

// Set adds settings, NAME=value, to those that the service is started with; they win.
func (s *Shop) Set(service string, settings ...string) {
	s.environ[service] = append(s.environ[service], settings...)
}

// URL returns where the service's API listens.
func (s *Shop) URL(service string) string { return "http://" + s.addresses[service].http }

// AdminURL returns where /healthz, /readyz and /metrics are.
func (s *Shop) AdminURL(service string) string { return "http://" + s.addresses[service].admin }

// Log returns the file that the service logs to.
func (s *Shop) Log(service string) string { return filepath.Join(s.logs, service+".log") }

// Start starts the service. It does not wait until it is ready.
func (s *Shop) Start(service string) error {
	settings, err := s.settings(service)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.Log(service), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", service, err)
	}
	defer func() { _ = log.Close() }()
	command := exec.Command(filepath.Join(s.dir, service)) //nolint:noctx // it lives until it is stopped or killed
	command.Env = append(os.Environ(), append(settings, s.environ[service]...)...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = attributes()
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s (make build?): %w", service, err)
	}
	started := &process{command: command, ended: make(chan struct{})}
	go func() {
		started.err = command.Wait()
		close(started.ended)
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes[service] = started
	return nil
}

func (s *Shop) settings(service string) ([]string, error) {
	database, err := s.DatabaseURL(service)
	if err != nil {
		return nil, err
	}
	amqp, err := s.AMQPURL(service)
	if err != nil {
		return nil, err
	}
	a := s.addresses[service]
	return []string{
		"DATABASE_URL=" + database, "AMQP_URL=" + amqp, "HTTP_ADDR=" + a.http, "ADMIN_ADDR=" + a.admin,
		"STRIPE_URL=" + s.URL(setup.Provider),
	}, nil
}

// Await returns nil once the service is ready, or an error if it ends first or ctx does.
func (s *Shop) Await(ctx context.Context, service string) error {
	running := s.running(service)
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.AdminURL(service)+"/readyz", nil)
		if err != nil {
			return err
		}
		why := ""
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			why = string(body)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-running.ended:
			return fmt.Errorf("%s ended before it was ready, see %s: %w", service, s.Log(service), running.err)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %s: %w", service, why, ctx.Err())
		}
	}
}

// StartAll starts all services, in the order given by their list, and waits until each is ready.
func (s *Shop) StartAll(ctx context.Context) error {
	for _, service := range setup.Services() {
		if err := s.Start(service); err != nil {
			return err
		}
	}
	for _, service := range setup.Services() {
		if err := s.Await(ctx, service); err != nil {
			return err
		}
	}
	return nil
}

func (s *Shop) running(service string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processes[service]
}

// Signal sends the service a signal.
func (s *Shop) Signal(service string, signal os.Signal) error {
	if running := s.running(service); running != nil {
		return running.command.Process.Signal(signal)
	}
	return fmt.Errorf("%s was not started", service)
}

// Kill ends the service with SIGKILL and waits until it is gone.
func (s *Shop) Kill(service string) error {
	running := s.running(service)
	if err := s.Signal(service, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", service, err)
	}
	<-running.ended
	return nil
}

// Stop asks the service to stop with SIGTERM and returns nil once it has exited with 0.
func (s *Shop) Stop(ctx context.Context, service string) error {
	running := s.running(service)
	if err := s.Signal(service, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", service, err)
	}
	select {
	case <-running.ended:
		if running.err != nil {
			return fmt.Errorf("stop %s: %w", service, running.err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop %s: %w", service, ctx.Err())
	}
}

// StopAll stops all services that run, those that take requests first, and returns the first error.
func (s *Shop) StopAll(ctx context.Context) error {
	var first error
	for _, service := range setup.Services() {
		running := s.running(service)
		if running == nil {
			continue
		}
		select {
		case <-running.ended:
			continue
		default:
		}
		if err := s.Stop(ctx, service); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Watch returns nil when ctx ends, or an error that names the first service that ends before.
func (s *Shop) Watch(ctx context.Context) error {
	ended := make(chan string, len(setup.Services()))
	for _, service := range setup.Services() {
		running := s.running(service)
		go func() {
			<-running.ended
			ended <- service
		}()
	}
	select {
	case <-ctx.Done():
		return nil
	case service := <-ended:
		return fmt.Errorf("%s ended by itself, see %s", service, s.Log(service))
	}
}
