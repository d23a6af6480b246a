package service_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/service"
)

var oneMigration = fstest.MapFS{"00001_shelves.sql": {Data: []byte("-- +goose Up\nCREATE TABLE shelves AS SELECT 1 AS n;")}}

// config is a service's settings.
type config struct {
	service.Config
	DatabaseURL service.URL   `env:"DATABASE_URL,required,notEmpty"`
	Queues      []string      `env:"QUEUES"`
	Limit       time.Duration `env:"LIMIT"`
}

// TestMain is a service's main function where the environment says so, and else runs the tests.
func TestMain(m *testing.M) {
	if does := os.Getenv("SERVICE_DOES"); does != "" {
		main(does)
		return
	}
	m.Run()
}

func main(does string) {
	cfg := &config{Config: service.Config{HTTPAddr: "127.0.0.1:8080", AdminAddr: "127.0.0.1:0"}, Limit: time.Minute}
	service.Main("shop", cfg, func(ctx context.Context, _ *service.Admin, logger *slog.Logger) error {
		logger.Debug("details")
		fmt.Println("running", cfg.HTTPAddr, cfg.Queues, cfg.Limit)
		if does == "fail" {
			return errors.New("it can't go on")
		}
		<-ctx.Done()
		fmt.Println("context ended")
		if does == "hang" {
			select {}
		}
		return nil
	})
}

// process is a service that runs.
type process struct {
	*exec.Cmd
	stdout *bufio.Reader
	stderr *strings.Builder
}

func startProcess(t *testing.T, does string, environment []string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.CommandContext(t.Context(), os.Args[0], args...), stderr: &strings.Builder{}}
	p.Env = append(environment, "SERVICE_DOES="+does)
	p.Stderr = p.stderr
	stdout, err := p.StdoutPipe()
	require.NoError(t, err)
	p.stdout = bufio.NewReader(stdout)
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	text, err := p.stdout.ReadString('\n')
	require.NoError(t, err, "%s", p.stderr)
	return strings.TrimSuffix(text, "\n")
}

// end waits for the process and returns its exit code and what it said on standard error.
func (p *process) end(t *testing.T) (int, string) {
	t.Helper()
	_, err := io.Copy(io.Discard, p.stdout)
	require.NoError(t, err)
	err = p.Wait()
	if err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return p.ProcessState.ExitCode(), p.stderr.String()
}

const database = "DATABASE_URL=postgres://user:secret@host/db"

func TestWrongSettingsAreNamed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		environment []string
		want        []string // the beginning of each line
	}{
		{"missing", nil, []string{`required environment variable "DATABASE_URL" is not set`}},
		{"empty", []string{"DATABASE_URL="}, []string{`environment variable "DATABASE_URL" should not be empty`}},
		{"no URL", []string{"DATABASE_URL=secret"}, []string{"DATABASE_URL: want scheme://"}},
		{"no scheme", []string{"DATABASE_URL=user:secret@host/db"}, []string{"DATABASE_URL: want scheme://"}},
		{"address", []string{database, "HTTP_ADDR=8080"}, []string{"HTTP_ADDR: want host:port"}},
		{"admin address", []string{database, "ADMIN_ADDR=localhost"}, []string{"ADMIN_ADDR: want host:port"}},
		{"level", []string{database, "LOG_LEVEL=loud"}, []string{"LOG_LEVEL: "}},
		{"duration", []string{database, "LIMIT=soon"}, []string{"LIMIT: "}},
		{"all at once", []string{"HTTP_ADDR=x", "LOG_LEVEL=loud", "LIMIT=5"}, []string{"HTTP_ADDR: ", "LOG_LEVEL: ", `required environment variable "DATABASE_URL"`, "LIMIT: "}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			code, said := startProcess(t, "wait", test.environment).end(t)
			require.Equal(t, 2, code)
			require.NotContains(t, said, "secret")
			lines := strings.Split(strings.TrimSpace(said), "\n")
			require.Len(t, lines, len(test.want), said)
			for i, want := range test.want {
				require.Equal(t, want, lines[i][:min(len(want), len(lines[i]))], said)
			}
		})
	}
}

func TestSettingsOverrideTheDefaults(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "fail", []string{database})
	require.Equal(t, "running 127.0.0.1:8080 [] 1m0s", p.line(t))
	_, said := p.end(t)
	require.NotContains(t, said, "details")
	p = startProcess(t, "fail", []string{database, "HTTP_ADDR=:9000", "QUEUES=a,b", "LIMIT=2s", "LOG_LEVEL=debug"})
	require.Equal(t, "running :9000 [a b] 2s", p.line(t))
	_, said = p.end(t)
	require.Contains(t, said, "details")
}

func TestErrorIsLoggedAndEndsTheProcessWithOne(t *testing.T) {
	t.Parallel()
	code, said := startProcess(t, "fail", []string{database}).end(t)
	require.Equal(t, 1, code)
	require.Contains(t, said, `"msg":"stopped","service":"shop","error":"it can't go on"`)
}

func TestSignalStopsTheServiceInOrder(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := startProcess(t, "wait", []string{database})
		p.line(t)
		require.NoError(t, p.Process.Signal(signal))
		require.Equal(t, "context ended", p.line(t))
		code, said := p.end(t)
		require.Zero(t, code, said)
		require.Contains(t, said, `"msg":"stopped","service":"shop"}`)
	}
}

func TestSecondSignalEndsTheProcessAtOnce(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "hang", []string{database})
	p.line(t)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Equal(t, "context ended", p.line(t))
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	require.Eventually(t, func() bool {
		_ = p.Process.Signal(syscall.SIGTERM) // again: the first may come before it is listened for no more
		return len(ended) == 1
	}, 10*time.Second, 10*time.Millisecond)
	require.Error(t, <-ended)
	status, ok := p.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.Equal(t, syscall.SIGTERM, status.Signal())
}

func TestHealthcheckAsksTheRunningService(t *testing.T) {
	t.Parallel()
	admin := service.NewAdmin()
	server := httptest.NewServer(admin)
	address := server.Listener.Addr().String()
	healthcheck := func(address string) (int, string) {
		return startProcess(t, "fail", []string{database, "ADMIN_ADDR=" + address}, "healthcheck").end(t)
	}
	code, said := healthcheck(address)
	require.Equal(t, 1, code)
	require.Equal(t, "503 Service Unavailable\n", said)
	admin.Started()
	code, said = healthcheck(address)
	require.Zero(t, code, said)
	_, port, _ := strings.Cut(address, ":")
	code, said = healthcheck(":" + port) // as it listens on all addresses
	require.Zero(t, code, said)
	server.Close()
	code, said = healthcheck(address)
	require.Equal(t, 1, code)
	require.Contains(t, said, "connection refused")
}
