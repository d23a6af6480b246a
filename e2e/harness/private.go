package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"onceshop/pkg/stack"
)

// Private is a PostgreSQL and a RabbitMQ of one's own, which may be stopped and started.
type Private struct {
	stack.Stack
	dir string
}

// NewPrivate starts both servers and waits until they answer. Call Down at the end.
func NewPrivate() (*Private, error) {
	dir, err := os.MkdirTemp("", "onceshop-private-")
	if err != nil {
		return nil, err
	}
	p := &Private{dir: dir}
	if _, err := p.run("up"); err != nil {
		return nil, err
	}
	lines, err := p.run("env")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(lines) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		value = strings.ReplaceAll(value, `\`, "") // as quoted for the shell
		switch name {
		case "STACK_DATABASE_URL":
			p.DatabaseURL = value
		case "STACK_AMQP_URL":
			p.AMQPURL = value
		case "STACK_AMQP_API":
			p.AMQPAPI = value
		}
	}
	return p, nil
}

// Restart stops the server, postgres or rabbitmq, in an orderly way, and starts it again.
func (p *Private) Restart(server string) error {
	_, err := p.run("restart", server)
	return err
}

// Stop stops the server in an orderly way.
func (p *Private) Stop(server string) error {
	_, err := p.run("stop", server)
	return err
}

// Start starts the server and waits until it answers.
func (p *Private) Start(server string) error {
	_, err := p.run("start", server)
	return err
}

// RabbitMQCtl runs rabbitmqctl on the RabbitMQ server and returns what it prints.
func (p *Private) RabbitMQCtl(args ...string) (string, error) {
	return p.run(append([]string{"rabbitmqctl"}, args...)...)
}

// Down ends both servers and deletes their data.
func (p *Private) Down() error {
	_, err := p.run("down")
	return err
}

func (p *Private) run(args ...string) (string, error) {
	_, self, _, _ := runtime.Caller(0)
	script := filepath.Join(filepath.Dir(self), "..", "..", "scripts", "stack")
	command := exec.Command(script, args...) //nolint:noctx // it has limits of its own
	command.Env = append(os.Environ(), "STACK_PRIVATE=1", "STACK_DIR="+p.dir)
	var stderr strings.Builder
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("scripts/stack %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(output), nil
}
