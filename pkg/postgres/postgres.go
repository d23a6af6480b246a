// Package postgres opens a service's database with limits that PostgreSQL leaves off by default, brings
// its schema up to date, and runs functions in transactions.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
)

// Config says which database to open. The zero value of each field but URL is its default.
type Config struct {
	URL             string            // postgres://user:password@host:port/database, required
	ApplicationName string            // shown in pg_stat_activity; default "onceshop"
	MaxConnections  int               // of the pool; default 40. Handlers in flight + relay + HTTP requests + 2 should fit
	StatementLimit  time.Duration     // statement_timeout; default 10 s, below a handler's limit of 15 s
	LockLimit       time.Duration     // lock_timeout; default 5 s, below StatementLimit
	IdleLimit       time.Duration     // idle_in_transaction_session_timeout; default 30 s
	Parameters      map[string]string // further run-time parameters of PostgreSQL; default none
}

func (c *Config) setDefaults() {
	if c.ApplicationName == "" {
		c.ApplicationName = "onceshop"
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = 40
	}
	if c.StatementLimit == 0 {
		c.StatementLimit = 10 * time.Second
	}
	if c.LockLimit == 0 {
		c.LockLimit = 5 * time.Second
	}
	if c.IdleLimit == 0 {
		c.IdleLimit = 30 * time.Second
	}
}

// Open returns a pool on the database of cfg. It does not connect: the first use does, and Await waits
// until that works. An error means that the URL can't be parsed.
//
// The time limits matter because PostgreSQL's defaults are "none": without them a statement that waits
// for a lock waits for ever, and the transaction of a vanished host keeps its locks until TCP gives up,
// two hours later.
func Open(cfg Config) (*sqlx.DB, error) {
	conn, err := ConnConfig(cfg)
	if err != nil {
		return nil, err
	}
	cfg.setDefaults()
	db := sqlx.NewDb(stdlib.OpenDB(*conn), "pgx")
	db.SetMaxOpenConns(cfg.MaxConnections)
	db.SetMaxIdleConns(cfg.MaxConnections)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, nil
}

// ConnConfig returns the configuration of one connection with the limits of cfg, for those who need a
// connection outside the pool (the relay's lock).
func ConnConfig(cfg Config) (*pgx.ConnConfig, error) {
	cfg.setDefaults()
	conn, err := pgx.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("parse database URL: %w", err)
	}
	conn.ConnectTimeout = 5 * time.Second
	conn.DialFunc = (&net.Dialer{Timeout: conn.ConnectTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3,
	}}).DialContext
	maps.Copy(conn.RuntimeParams, map[string]string{
		"application_name":                    cfg.ApplicationName,
		"statement_timeout":                   milliseconds(cfg.StatementLimit),
		"lock_timeout":                        milliseconds(cfg.LockLimit),
		"idle_in_transaction_session_timeout": milliseconds(cfg.IdleLimit),
		"tcp_keepalives_idle":                 "10",
		"tcp_keepalives_interval":             "5",
		"tcp_keepalives_count":                "3",
	})
	maps.Copy(conn.RuntimeParams, cfg.Parameters)
	return conn, nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Await returns nil as soon as the database answers. While it doesn't, it calls waiting with the reason
// and tries again with growing pauses of up to five seconds, until ctx ends. A server that answers but
// refuses (wrong password, no such database) is an error at once: waiting would hide a wrong setting.
func Await(ctx context.Context, db *sqlx.DB, waiting func(error)) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := db.PingContext(ctx)
		if err == nil {
			return nil
		}
		if refused(err) {
			return fmt.Errorf("connect to database: %w", err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		waiting(err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// refused tells an answer that repetition can't change from an outage: SQLSTATE class 28 (invalid
// authorization), 3D000 (no such database) and 42501 (may not connect).
func refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code[:2] == "28" || pg.Code == "3D000" || pg.Code == "42501")
}
