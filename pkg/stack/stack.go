// Package stack says where the PostgreSQL and RabbitMQ servers are that scripts, tests and the
// operator's tool may create databases and virtual hosts on. Services know nothing of it: each has its
// own DATABASE_URL and AMQP_URL.
package stack

import (
	"bufio"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Stack holds administrators' URLs of the two servers.
type Stack struct {
	DatabaseURL string // STACK_DATABASE_URL: postgres://, a role that may create databases and roles
	AMQPURL     string // STACK_AMQP_URL: amqp://, an administrator
	AMQPAPI     string // STACK_AMQP_API: http:// of RabbitMQ's management API, with credentials
}

const envFile = ".stack.env"

// Find returns the stack from the environment or, where that is silent, from the file .stack.env that
// `make stack` leaves in the repository's root (looked for from the working directory upwards). The
// error says in one sentence how to start one.
func Find() (Stack, error) {
	values := map[string]string{}
	if path := findUpwards(envFile); path != "" {
		if err := readEnvFile(path, values); err != nil {
			return Stack{}, err
		}
	}
	for _, name := range []string{"STACK_DATABASE_URL", "STACK_AMQP_URL", "STACK_AMQP_API"} {
		if value := os.Getenv(name); value != "" {
			values[name] = value
		}
	}
	found := Stack{values["STACK_DATABASE_URL"], values["STACK_AMQP_URL"], values["STACK_AMQP_API"]}
	if found.DatabaseURL == "" || found.AMQPURL == "" || found.AMQPAPI == "" {
		return Stack{}, errors.New("no PostgreSQL and RabbitMQ known: run `make stack`, or set STACK_DATABASE_URL, STACK_AMQP_URL and STACK_AMQP_API")
	}
	return found, nil
}

func findUpwards(name string) string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

func readEnvFile(path string, into map[string]string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok {
			into[name] = strings.Trim(value, `"'`)
		}
	}
	return lines.Err()
}

// Database returns the URL of the named database on the stack's server, for a role whose password is
// password, or for the administrator where role is empty.
func (s Stack) Database(name, role, password string) (string, error) {
	return rewrite(s.DatabaseURL, "/"+name, role, password)
}

// VHost returns the AMQP URL of the named virtual host, for the user given, or for the administrator
// where user is empty.
func (s Stack) VHost(name, user, password string) (string, error) {
	return rewrite(s.AMQPURL, "/"+name, user, password)
}

func rewrite(from, path, user, password string) (string, error) {
	parsed, err := url.Parse(from)
	if err != nil {
		return "", fmt.Errorf("parse %q: %w", from, err)
	}
	parsed.Path, parsed.RawPath = path, "/"+url.PathEscape(strings.TrimPrefix(path, "/"))
	if user != "" {
		parsed.User = url.UserPassword(user, password)
	}
	return parsed.String(), nil
}
