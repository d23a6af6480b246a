// Package fault names the three classes of error that a consumer, an executor or a relay can meet, and
// recognises them in what PostgreSQL and the network return.
//
//   - Permanent: no repetition can help (an undecodable message, an unknown version, a broken rule).
//     A consumer moves the message to its dead-letter queue at once.
//   - Transient: of this one message; a repetition may help (a deadlock, a lock timeout). It is the
//     default: an error that nobody classified is tried again a few times, then set aside.
//   - Outage: nobody's failure (the database or the broker is out of reach). The work is kept, not
//     counted as failed, and tried again when the outage is over.
package fault

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Class is one of Transient, Permanent and Outage.
type Class int

// The classes; the package comment says what each means.
const (
	Transient Class = iota
	Permanent
	Outage
)

// String returns the class's name in lower case, as used in logs and metrics.
func (c Class) String() string {
	switch c {
	case Permanent:
		return "permanent"
	case Outage:
		return "outage"
	default:
		return "transient"
	}
}

type classified struct {
	error
	class Class
}

func (c classified) Unwrap() error { return c.error }

// AsPermanent marks err, and every error that wraps it, as Permanent. It returns nil for nil.
func AsPermanent(err error) error { return mark(err, Permanent) }

// AsTransient marks err, and every error that wraps it, as Transient. It returns nil for nil.
func AsTransient(err error) error { return mark(err, Transient) }

// AsOutage marks err, and every error that wraps it, as an Outage. It returns nil for nil.
func AsOutage(err error) error { return mark(err, Outage) }

func mark(err error, class Class) error {
	if err == nil {
		return nil
	}
	return classified{err, class}
}

// ClassOf returns the class of err: the outermost mark if it has one, else what a connection that can't be
// made, PostgreSQL's SQLSTATE, or a broken connection says, else Transient. A deadline alone says nothing
// about whose fault it was and is Transient; whoever holds a connection can ask the server and call AsOutage.
//
// A connection that can't be made is an Outage whatever the reason, also a password that was changed: no
// message is to blame. Of the SQLSTATEs (PostgreSQL manual, appendix A), classes 22 (data exception) and 23
// (integrity constraint violation) are Permanent: the same statement breaks the same rule again. Not so
// 23503 and 23P01 (foreign key, exclusion): what stands in the way may come or go. Class 08, 25006 (read-only
// after a failover), 53 (insufficient resources, such as too many connections; but 53400 is a limit of this
// statement), 57P01 to 57P05 (shutdown, starting up, database dropped, idle session) and 58 (system error)
// are Outages.
func ClassOf(err error) Class {
	class, _ := classify(err)
	return class
}

// BrokeOff says whether err is that of a connection which broke while it was used, and nobody said why. It
// looks like an outage, but may be what the work did: a statement that crashes the server, or an end of file
// in what it read. Whoever tries again should count these.
func BrokeOff(err error) bool {
	_, brokeOff := classify(err)
	return brokeOff
}

func classify(err error) (class Class, brokeOff bool) {
	if marked, ok := errors.AsType[classified](err); ok {
		return marked.class, false
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return Outage, false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return ofState(pg.Code), false
	}
	if !brokenConnection(err) {
		return Transient, false
	}
	operation, ok := errors.AsType[*net.OpError](err)
	return Outage, !ok || operation.Op != "dial"
}

func ofState(code string) Class {
	is := func(prefix string) bool { return strings.HasPrefix(code, prefix) }
	switch {
	case is("23503"), is("23P01"), is("53400"):
		return Transient
	case is("22"), is("23"):
		return Permanent
	case is("08"), is("25006"), is("53"), is("57P"), is("58"):
		return Outage
	}
	return Transient
}

func brokenConnection(err error) bool {
	// The deadline of a context is set on the connection; any other timeout is the network's.
	if _, ok := errors.AsType[*net.OpError](err); ok && !errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	for _, target := range []error{driver.ErrBadConn, sql.ErrConnDone, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, pgconn.ErrConnClosed} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
