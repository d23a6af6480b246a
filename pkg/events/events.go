// Package events holds the contracts between the services: each event's name, its body and the metadata
// that travels with it. It is all that two services share, and it imports the standard library only.
//
// An event carries its aggregate's whole state after the change, and the aggregate's version, which rises
// by one with each change. So a consumer that has seen version 5 can forget whatever it knew of 1 to 4,
// and never needs to ask back. Events are delivered at least once, and a repeated or delayed one may come
// after a later one: no consumer may rely on order.
//
// Contracts grow by adding fields: a reader ignores fields that it doesn't know. A change that breaks
// readers is a new event with the next suffix (".v2"), published beside the old one until nobody reads it.
// The files in testdata show the exact form of each event on the wire.
package events

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Event is the body of a message: the state of one aggregate after one change.
type Event interface {
	// Name is the stable name and version, such as "orders.order_placed.v1". Its first part is the
	// publishing service and names the exchange.
	Name() string
	// Aggregate returns what changed: the key, within which events are first published in the order of
	// their versions, and the version, 1 or more.
	Aggregate() (id string, version int64)
}

// Money is an amount in the currency's minor unit (cents), and the ISO 4217 code of the currency.
type Money struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// Names returns the names of all events that the service publishes, sorted.
func Names(service string) []string {
	names := []string{
		ProductChangedV1, ProductRemovedV1,
		OrderPlacedV1, OrderConfirmedV1, OrderRejectedV1, OrderCancelledV1,
		PaymentCapturedV1, PaymentDeclinedV1, PaymentRefundedV1,
	}
	names = slices.DeleteFunc(names, func(name string) bool { return Service(name) != service })
	slices.Sort(names)
	return names
}

// Service returns the name of the service that publishes the named event.
func Service(name string) string {
	service, _, _ := strings.Cut(name, ".")
	return service
}

// Decode reads the body of an event of type E. Unknown fields are ignored. A missing or null field, a
// wrong type and a version below 1 are errors that name the event and the field.
func Decode[E Event](body []byte) (E, error) {
	var event E
	if err := json.Unmarshal(body, &event); err != nil {
		return event, fmt.Errorf("%s: %w", event.Name(), err)
	}
	if err := requireFields(body, reflect.TypeFor[E](), ""); err != nil {
		return event, fmt.Errorf("%s: %w", event.Name(), err)
	}
	if id, version := event.Aggregate(); id == "" || version < 1 {
		return event, fmt.Errorf("%s: id %q, version %d: an event needs an id and a version of 1 or more", event.Name(), id, version)
	}
	return event, nil
}

// requireFields checks that the JSON text at path has every field that t doesn't mark as omitempty.
func requireFields(text []byte, t reflect.Type, path string) error {
	switch t.Kind() {
	case reflect.Slice:
		var elements []json.RawMessage
		if err := json.Unmarshal(text, &elements); err != nil {
			return fmt.Errorf("field %q: %w", path, err)
		}
		for i, element := range elements {
			if err := requireFields(element, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		if t.PkgPath() == "time" {
			return nil
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(text, &fields); err != nil {
			return fmt.Errorf("field %q: %w", path, err)
		}
		return requireEach(fields, text, t, path)
	}
	return nil
}

func requireEach(fields map[string]json.RawMessage, text []byte, t reflect.Type, path string) error {
	for field := range t.Fields() {
		if field.Anonymous {
			if err := requireFields(text, field.Type, path); err != nil {
				return err
			}
			continue
		}
		name, option, _ := strings.Cut(field.Tag.Get("json"), ",")
		if option == "omitempty" {
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		value, ok := fields[name]
		if !ok || string(value) == "null" {
			return fmt.Errorf("missing field %q", at)
		}
		if err := requireFields(value, field.Type, at); err != nil {
			return err
		}
	}
	return nil
}
