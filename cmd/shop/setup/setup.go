// Package setup makes what a shop needs on the two servers: a database and a role per service, a virtual
// host with a user per service, and the readers for the operator. Everything is idempotent.
package setup

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"

	"onceshop/pkg/broker"
	"onceshop/pkg/broker/management"
	"onceshop/pkg/postgres"
	"onceshop/pkg/stack"
)

// Services are the processes of the shop. The provider has no broker user.
const (
	Orders      = "orders"
	Billing     = "billing"
	CatalogView = "catalog-view"
	Provider    = "provider"
)

// Services returns all of them, in the order of the story.
func Services() []string { return []string{Orders, Billing, CatalogView, Provider} }

// WithOutbox returns those that publish events.
func WithOutbox() []string { return []string{Orders, Billing} }

// sources returns whose events each service consumes.
func sources() map[string]string {
	return map[string]string{Orders: Billing, Billing: Orders, CatalogView: Orders}
}

// OperatorsQueues returns the names of the queues whose messages wait for the operator: the dead letters of
// each consumer, and the unrouted events of each publisher.
func OperatorsQueues() []string {
	var dead, unrouted []string
	for consumer, source := range sources() {
		dead = append(dead, broker.DeadLetters(broker.Queue(consumer, source)))
		unrouted = append(unrouted, broker.Unrouted(source))
	}
	slices.Sort(dead)
	slices.Sort(unrouted)
	return append(dead, slices.Compact(unrouted)...)
}

// Auditor is the database role that may read everything; Operator is the broker user that may do everything
// in the virtual host.
const (
	Auditor  = "shop_audit"
	Operator = "shop"
)

// mark is the comment on what was made here. What bears none is somebody else's and is not touched.
const mark = "onceshop"

// Shop is one shop on a stack. Several live side by side, under different names.
type Shop struct {
	Stack    stack.Stack
	Name     string // "" for the shop that `make up` runs; otherwise a prefix of its databases and the vhost
	Password string // of all roles and users that are made
}

// Database returns the name of a service's database: orders, or demo1_orders.
func (s Shop) Database(service string) string {
	name := strings.ReplaceAll(service, "-", "_")
	if s.Name != "" {
		name = s.Name + "_" + name
	}
	return name
}

// VHost returns the name of the virtual host.
func (s Shop) VHost() string {
	if s.Name == "" {
		return "shop"
	}
	return s.Name
}

// DatabaseURL returns what a service connects to, as its own role.
func (s Shop) DatabaseURL(service string) (string, error) {
	return s.Stack.Database(s.Database(service), role(service), s.Password)
}

// AuditURL returns what the auditor connects to, to read a service's database.
func (s Shop) AuditURL(service string) (string, error) {
	return s.Stack.Database(s.Database(service), Auditor, s.Password)
}

// AMQPURL returns what a service, or Operator, connects to.
func (s Shop) AMQPURL(user string) (string, error) {
	return s.Stack.VHost(s.VHost(), user, s.Password)
}

// role returns the database role of a service, which is its name with underscores.
func role(service string) string { return strings.ReplaceAll(service, "-", "_") }

// Run makes what is missing, and sets passwords and permissions. A database or role of that name which was
// not made here is an error, and left alone.
func (s Shop) Run(ctx context.Context) error {
	if err := s.databases(ctx); err != nil {
		return err
	}
	return s.virtualHost()
}

func (s Shop) databases(ctx context.Context) error {
	admin, err := postgres.Open(postgres.Config{URL: s.Stack.DatabaseURL, MaxConnections: 1, StatementLimit: time.Minute, LockLimit: time.Minute})
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	// Set-ups that run at once wait for each other. The pool has one connection, which holds the lock.
	if _, err := admin.ExecContext(ctx, `SELECT pg_advisory_lock(hashtext('onceshop setup'))`); err != nil {
		return fmt.Errorf("set up databases: %w", err)
	}
	roles := []string{Auditor}
	for _, service := range Services() {
		roles = append(roles, role(service))
	}
	for _, name := range roles {
		if err := s.ensureRole(ctx, admin, name); err != nil {
			return err
		}
	}
	if _, err := admin.ExecContext(ctx, `GRANT pg_read_all_data TO `+Auditor); err != nil {
		return fmt.Errorf("set up role %s: %w", Auditor, err)
	}
	for _, service := range WithOutbox() {
		// A relay shows the age of the oldest transaction, whoever's it is.
		if _, err := admin.ExecContext(ctx, `GRANT pg_read_all_stats TO `+pgx.Identifier{role(service)}.Sanitize()); err != nil {
			return fmt.Errorf("set up role %s: %w", role(service), err)
		}
	}
	for _, service := range Services() {
		if err := ensureDatabase(ctx, admin, s.Database(service), role(service)); err != nil {
			return err
		}
	}
	return nil
}

const readRole = `SELECT coalesce(shobj_description(oid, 'pg_authid'), '') FROM pg_roles WHERE rolname = $1`

func (s Shop) ensureRole(ctx context.Context, admin *sqlx.DB, name string) error {
	quoted, password := pgx.Identifier{name}.Sanitize(), literal(s.Password)
	return ensure(ctx, admin, "role "+name, readRole, name,
		[]string{`CREATE ROLE ` + quoted + ` LOGIN`, `COMMENT ON ROLE ` + quoted + ` IS ` + literal(mark)},
		[]string{`ALTER ROLE ` + quoted + ` PASSWORD ` + password})
}

const readDatabase = `SELECT coalesce(shobj_description(oid, 'pg_database'), '') FROM pg_database WHERE datname = $1`

func ensureDatabase(ctx context.Context, admin *sqlx.DB, name, owner string) error {
	quoted, role := pgx.Identifier{name}.Sanitize(), pgx.Identifier{owner}.Sanitize()
	return ensure(ctx, admin, "database "+name, readDatabase, name,
		[]string{`CREATE DATABASE ` + quoted, `COMMENT ON DATABASE ` + quoted + ` IS ` + literal(mark)},
		[]string{
			`ALTER DATABASE ` + quoted + ` OWNER TO ` + role,
			`REVOKE ALL ON DATABASE ` + quoted + ` FROM PUBLIC`,
			`GRANT CONNECT ON DATABASE ` + quoted + ` TO ` + role + `, ` + Auditor,
		})
}

// ensure creates what read doesn't find, refuses what bears another mark, and then runs always.
func ensure(ctx context.Context, admin *sqlx.DB, what, read, name string, create, always []string) error {
	var found []string
	if err := admin.SelectContext(ctx, &found, read, name); err != nil {
		return fmt.Errorf("look for %s: %w", what, err)
	}
	statements := always
	switch {
	case len(found) == 0:
		statements = append(create, always...)
	case found[0] != mark:
		return fmt.Errorf("%s exists and was not made by `shop setup`: it is left alone; use another server, or rename it", what)
	}
	for _, statement := range statements {
		if _, err := admin.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("set up %s: %w", what, err)
		}
	}
	return nil
}

func literal(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }

// virtualHost makes the virtual host and its users. A service may configure and write what begins with its
// own name, and read that and the exchanges that it consumes.
func (s Shop) virtualHost() error {
	api, err := management.New(s.Stack.AMQPAPI)
	if err != nil {
		return err
	}
	if err := api.PutVHost(s.VHost()); err != nil {
		return err
	}
	amqp, err := url.Parse(s.Stack.AMQPURL)
	if err != nil {
		return fmt.Errorf("parse AMQP URL: %w", err)
	}
	if err := api.Permit(s.VHost(), amqp.User.Username(), ".*", ".*", ".*"); err != nil {
		return err
	}
	for service, source := range sources() {
		if err := api.PutUser(service, s.Password); err != nil {
			return err
		}
		own := service + `(\..*)?`
		if err := api.Permit(s.VHost(), service, `^`+own+`$`, `^`+own+`$`, `^(`+own+`|`+source+`)$`); err != nil {
			return err
		}
	}
	if err := api.PutUser(Operator, s.Password, "management"); err != nil {
		return err
	}
	return api.Permit(s.VHost(), Operator, ".*", ".*", ".*")
}

// Drop deletes the databases and the virtual host of a named shop, whoever is connected; the roles and
// users stay for others. It refuses the shop without a name.
func (s Shop) Drop(ctx context.Context) error {
	if s.Name == "" {
		return errors.New("only a named shop is dropped")
	}
	admin, err := postgres.Open(postgres.Config{URL: s.Stack.DatabaseURL, MaxConnections: 1, StatementLimit: time.Minute})
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	var errs []error
	for _, service := range Services() {
		name := pgx.Identifier{s.Database(service)}.Sanitize()
		if _, err := admin.ExecContext(ctx, `DROP DATABASE IF EXISTS `+name+` WITH (FORCE)`); err != nil {
			errs = append(errs, fmt.Errorf("drop database %s: %w", name, err))
		}
	}
	api, err := management.New(s.Stack.AMQPAPI)
	if err == nil {
		err = api.DeleteVHost(s.VHost())
	}
	return errors.Join(append(errs, err)...)
}

// Ping returns nil if both servers and the management API answer and let us in.
func Ping(ctx context.Context, found stack.Stack) error {
	db, err := postgres.Open(postgres.Config{URL: found.DatabaseURL, MaxConnections: 1})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if err := db.PingContext(ctx); err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	if err := broker.Ping(ctx, found.AMQPURL); err != nil {
		return fmt.Errorf("RabbitMQ: %w", err)
	}
	api, err := management.New(found.AMQPAPI)
	if err != nil {
		return err
	}
	return api.Ping(ctx)
}
