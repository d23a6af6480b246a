package service

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// Config holds the settings that every service has. A service embeds it in its own, with its addresses set
// to their defaults.
type Config struct {
	HTTPAddr  Address    `env:"HTTP_ADDR"`  // where the API listens, host:port
	AdminAddr Address    `env:"ADMIN_ADDR"` // where /healthz, /readyz and /metrics listen
	LogLevel  slog.Level `env:"LOG_LEVEL"`  // debug, info, warn or error; default info
}

func (c *Config) base() *Config { return c }

// URL is a setting with a scheme and a host.
type URL string

// UnmarshalText satisfies encoding.TextUnmarshaler.
func (u *URL) UnmarshalText(text []byte) error {
	parsed, err := url.Parse(string(text))
	if err != nil || parsed.Scheme == "" || parsed.Host == "" {
		return errors.New("want scheme://user:password@host:port/path") // the value may hold a password
	}
	*u = URL(text)
	return nil
}

// Address is a setting of the form host:port, with the host possibly empty.
type Address string

// UnmarshalText satisfies encoding.TextUnmarshaler.
func (a *Address) UnmarshalText(text []byte) error {
	if _, _, err := net.SplitHostPort(string(text)); err != nil {
		return errors.New("want host:port")
	}
	*a = Address(text)
	return nil
}

// Duration is a setting of time, more than 0, such as 15m.
type Duration time.Duration

// UnmarshalText satisfies encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || parsed <= 0 {
		return errors.New("want a time of more than 0, such as 15m or 90s")
	}
	*d = Duration(parsed)
	return nil
}

// Durations is a setting of one or more times of more than 0 each, such as 10s,1m,10m.
type Durations []time.Duration

// UnmarshalText satisfies encoding.TextUnmarshaler.
func (d *Durations) UnmarshalText(text []byte) error {
	var each []time.Duration
	for part := range strings.SplitSeq(string(text), ",") {
		var one Duration
		if one.UnmarshalText([]byte(part)) != nil {
			return errors.New("want times of more than 0, such as 10s,1m,10m")
		}
		each = append(each, time.Duration(one))
	}
	*d = each
	return nil
}

// load reads the settings from the environment into cfg, a pointer to a struct with tags of
// caarlos0/env. Each setting that is missing or wrong is one line of the error, which names the variable. A
// Config with a method Validate() error is asked last, about settings that depend on one another.
func load(cfg any) error {
	err := env.Parse(cfg)
	if err == nil {
		if validator, ok := cfg.(interface{ Validate() error }); ok {
			return validator.Validate()
		}
		return nil
	}
	aggregate, ok := errors.AsType[env.AggregateError](err)
	if !ok {
		return err
	}
	var lines []string
	for _, each := range aggregate.Errors {
		if parse, ok := errors.AsType[env.ParseError](each); ok {
			name := variable(reflect.TypeOf(cfg).Elem(), parse.Name)
			lines = append(lines, fmt.Sprintf("%s: %v", name, parse.Err))
			continue
		}
		lines = append(lines, each.Error())
	}
	return errors.New(strings.Join(lines, "\n"))
}

// variable returns the name of the environment variable of a field, for the library's error has only the
// field's.
func variable(t reflect.Type, field string) string {
	found, ok := t.FieldByName(field)
	if !ok {
		return field
	}
	name, _, _ := strings.Cut(found.Tag.Get("env"), ",")
	return name
}

// newLogger logs to standard error: text on a terminal, JSON elsewhere.
func newLogger(name string, level slog.Level, terminal bool) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewJSONHandler(os.Stderr, options)
	if terminal {
		handler = slog.NewTextHandler(os.Stderr, options)
	}
	return slog.New(handler).With("service", name)
}
