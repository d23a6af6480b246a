package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

// Handler handles the events of one name.
type Handler struct {
	name   string
	decode func([]byte) (events.Event, error)
	handle func(context.Context, events.Event) error
}

// On returns a handler that decodes events of type E and calls handle.
//
// nil acks the message. An error of class fault.Permanent, and a message that can't be decoded, go to the
// dead letters; a transient one is tried again; an outage is waited out with the message in hand. ctx ends
// after the handler's time limit, not when the consumer stops.
func On[E events.Event](handle func(ctx context.Context, event E) error) Handler {
	var zero E
	return Handler{
		name:   zero.Name(),
		decode: func(body []byte) (events.Event, error) { return events.Decode[E](body) },
		handle: func(ctx context.Context, event events.Event) error { return handle(ctx, event.(E)) },
	}
}

// Handlers maps an event's name to its handler. What a queue is bound to follows from it.
type Handlers map[string]Handler

// NewHandlers returns the handlers by the names of their events.
func NewHandlers(handlers ...Handler) Handlers {
	byName := make(Handlers, len(handlers))
	for _, handler := range handlers {
		byName[handler.name] = handler
	}
	return byName
}

type eventKey struct{}

// EventOf returns the decoded event whose handler runs under ctx, nil outside of one.
func EventOf(ctx context.Context) events.Event {
	event, _ := ctx.Value(eventKey{}).(events.Event)
	return event
}

// decode checks and decodes a message before next is called, so that no transaction is begun for one that
// can't be handled, and makes the message the cause of all that next does. A message without a proper id
// or a type, an undecodable one, and an event whose name is known under another version are permanent errors.
//
// A name that is not known at all is a transient error: while a version of the service that handles one
// event more replaces this one, both take from the queue, and after a delay the message comes to the other.
func (h Handlers) decode(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		name := msg.Metadata.Get(events.Type)
		handler, ok := h[name]
		switch {
		case msg.UUID == "":
			return nil, fault.AsPermanent(errors.New("the message has no id (AMQP property message-id)"))
		case len(msg.UUID) > MaxShort || !text(msg.UUID):
			return nil, fault.AsPermanent(fmt.Errorf("the message's id of %d bytes: at most %d, UTF-8 without NUL", len(msg.UUID), MaxShort))
		case name == "":
			return nil, fault.AsPermanent(errors.New("the message has no type (AMQP property type)"))
		case !ok && h.otherVersion(name):
			return nil, fault.AsPermanent(fmt.Errorf("%.300q: no handler for this version", name))
		case !ok:
			return nil, fmt.Errorf("%.300q: no handler for this type", name)
		}
		event, err := handler.decode(msg.Payload)
		if err != nil {
			return nil, fault.AsPermanent(err)
		}
		ctx := msg.Context()
		defer msg.SetContext(ctx)
		inner := context.WithValue(ctx, eventKey{}, event)
		msg.SetContext(events.WithCause(inner, events.Cause{
			CorrelationID: msg.Metadata.Get(events.CorrelationID),
			CausationID:   msg.UUID,
			Traceparent:   msg.Metadata.Get(events.Traceparent),
		}))
		return next(msg)
	}
}

// dispatch is the innermost handler: it calls the one of the decoded event.
func (h Handlers) dispatch(msg *message.Message) error {
	event := EventOf(msg.Context())
	return h[event.Name()].handle(msg.Context(), event)
}

// otherVersion says whether a handler exists for the name up to its version suffix.
func (h Handlers) otherVersion(name string) bool {
	base := withoutVersion(name)
	for known := range h {
		if withoutVersion(known) == base {
			return true
		}
	}
	return false
}

func withoutVersion(name string) string {
	if i := strings.LastIndex(name, ".v"); i >= 0 {
		return name[:i]
	}
	return name
}
