package events

import "context"

// What travels beside the body: as Watermill metadata inside a service, as AMQP properties and
// CloudEvents 1.0 headers on the wire (pkg/broker). The message's id is Watermill's UUID.
const (
	Type          = "type"           // the event's name
	Source        = "source"         // "/onceshop/<service>"
	Subject       = "subject"        // the aggregate's id
	Time          = "time"           // when it occurred, RFC 3339 in UTC
	CorrelationID = "correlation_id" // the same for all that one request led to
	CausationID   = "causation_id"   // the id of the message that led to this one; absent if a request did
	Force         = "shop-force"     // why an operator has it handled although it is too old for the inbox
	Traceparent   = "traceparent"    // W3C Trace Context; absent if there is none
)

// Cause is why something happens: what an event inherits from the request or the message that led to it.
type Cause struct {
	CorrelationID string
	CausationID   string
	Traceparent   string
}

type causeKey struct{}

// WithCause returns a context in which events are caused by cause.
func WithCause(ctx context.Context, cause Cause) context.Context {
	return context.WithValue(ctx, causeKey{}, cause)
}

// CauseOf returns the cause in ctx, or an empty one.
func CauseOf(ctx context.Context) Cause {
	cause, _ := ctx.Value(causeKey{}).(Cause)
	return cause
}
