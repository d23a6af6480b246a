package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

// What the broker or the protocol can carry. AMQP 0-9-1 gives short strings 255 bytes, and a message whose
// headers don't fit a frame (131,072 bytes by RabbitMQ's default) closes the connection for all others.
const (
	MaxShort   = 255      // bytes of an id, a type, a header's name
	MaxHeaders = 64 << 10 // bytes of all metadata, with headerOverhead for each piece
	MaxBody    = 1 << 20  // bytes of a payload
)

const (
	headerOverhead = 6       // bytes of a header beside its name and its text
	maxCopied      = 120_000 // bytes of the headers of a copy, for which a frame has room beside the properties
)

// cloudEvents prefixes the headers of CloudEvents 1.0 in binary mode (AMQP Protocol Binding, 3.1).
const cloudEvents = "cloudEvents:"

// headerOf returns the header that carries a piece of metadata: a CloudEvents attribute, or extension in
// CloudEvents' lower-case form, for those that package events names.
func headerOf(name string) string {
	switch name {
	case events.Type, events.Source, events.Subject, events.Time, events.Traceparent:
		return cloudEvents + name
	case events.CorrelationID:
		return cloudEvents + "correlationid"
	case events.CausationID:
		return cloudEvents + "causationid"
	}
	return name
}

// metadataOf returns the metadata that a header carries, "" for what is not kept. It is the opposite of
// headerOf, and takes a plain header of an attribute's name too.
func metadataOf(header string) string {
	switch {
	case reserved(header), header == cloudEvents+"id", header == cloudEvents+"specversion":
		return ""
	case header == cloudEvents+"correlationid":
		return events.CorrelationID
	case header == cloudEvents+"causationid":
		return events.CausationID
	}
	if name := strings.TrimPrefix(header, cloudEvents); headerOf(name) == header {
		return name
	}
	return header
}

// reserved says of a header that it is the broker's own or tells the broker where to route: CC and BCC would
// send a copy of the message to wherever the original went, and must be arrays (RabbitMQ, Sender-selected
// Distribution).
func reserved(header string) bool {
	return strings.HasPrefix(header, "x-") || header == "CC" || header == "BCC"
}

// Check returns nil if the broker can carry msg; otherwise a permanent error that says what is wrong. It
// is called before a message is stored in an outbox, because one that the broker chokes on would take
// the connection, and with it everybody else's messages, down each time it is tried.
func Check(msg *message.Message) error {
	if len(msg.Payload) > MaxBody {
		return fault.AsPermanent(fmt.Errorf("message %s: body of %d bytes: at most %d", msg.UUID, len(msg.Payload), MaxBody))
	}
	total := 0
	for name, value := range msg.Metadata {
		if reserved(name) || strings.HasPrefix(name, cloudEvents) {
			return fault.AsPermanent(fmt.Errorf("message %s: metadata %q: the name is reserved", msg.UUID, name))
		}
		if name == "" || len(name) > MaxShort || !text(name) || !text(value) {
			return fault.AsPermanent(fmt.Errorf("message %s: metadata %.40q: names of 1 to %d bytes and values must be UTF-8 without NUL", msg.UUID, name, MaxShort))
		}
		total += len(name) + len(value) + headerOverhead
	}
	if total > MaxHeaders {
		return fault.AsPermanent(fmt.Errorf("message %s: metadata of %d bytes: at most %d", msg.UUID, total, MaxHeaders))
	}
	for _, property := range [...]struct{ name, value string }{{"id", msg.UUID}, {events.Type, msg.Metadata.Get(events.Type)}} {
		if property.value == "" || len(property.value) > MaxShort || !text(property.value) {
			return fault.AsPermanent(fmt.Errorf("message %.40q: %s of %d bytes: 1 to %d, UTF-8 without NUL", msg.UUID, property.name, len(property.value), MaxShort))
		}
	}
	if id := msg.Metadata.Get(events.CorrelationID); len(id) > MaxShort {
		return fault.AsPermanent(fmt.Errorf("message %s: %s of %d bytes: at most %d", msg.UUID, events.CorrelationID, len(id), MaxShort))
	}
	return nil
}

func text(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// Marshaler turns Watermill messages into AMQP ones and back. It satisfies watermill-amqp's interface.
// On the wire the body is the payload; the metadata that package events names is in the AMQP properties
// (message-id, type, timestamp, correlation-id, app-id) and, where those don't hold it whole, in CloudEvents
// headers, so that a consumer needs no Watermill; any other metadata is a header. The forms of other
// producers are taken too: every attribute may be a header.
type Marshaler struct{}

// Marshal returns the persistent AMQP form of msg. It fails where Check does.
func (Marshaler) Marshal(msg *message.Message) (amqp.Publishing, error) {
	if err := Check(msg); err != nil {
		return amqp.Publishing{}, err
	}
	return marshal(msg), nil
}

// marshal is Marshal for a message that the broker has already carried once, whoever sent it: what does not
// fit a property is in the header of the same meaning, and headers that don't fit a frame together
// (those that were no text have grown) are left out: those of others first, the longest first.
func marshal(msg *message.Message) amqp.Publishing {
	headers := amqp.Table{cloudEvents + "specversion": "1.0"}
	if len(msg.UUID) > MaxShort {
		headers[cloudEvents+"id"] = msg.UUID
	}
	for name, value := range msg.Metadata {
		// What a property holds is not said twice: the three headers would cost an eighth of the rate.
		inProperty := name == events.Type || name == events.CorrelationID
		if !inProperty || len(value) > MaxShort {
			headers[headerOf(name)] = value
		}
	}
	fit(headers)
	occurred, _ := time.Parse(time.RFC3339Nano, msg.Metadata.Get(events.Time))
	return amqp.Publishing{
		Headers:       headers,
		ContentType:   "application/json",
		DeliveryMode:  amqp.Persistent,
		MessageId:     short(msg.UUID),
		Type:          short(msg.Metadata.Get(events.Type)),
		Timestamp:     occurred,
		AppId:         short(appID(msg.Metadata.Get(events.Source))),
		CorrelationId: short(msg.Metadata.Get(events.CorrelationID)),
		Body:          msg.Payload,
	}
}

// short returns what a property can hold: value, or nothing.
func short(value string) string {
	if len(value) > MaxShort {
		return ""
	}
	return value
}

// fit deletes headers, all of them text, until the rest fits a frame: the longest of others first, and then
// of ours, the longest first, which the sender has written. What is left tells how often a message failed.
func fit(headers amqp.Table) {
	size := func(name string) int { return len(name) + len(headers[name].(string)) + headerOverhead }
	total := 0
	for name := range headers {
		total += size(name)
	}
	if total <= maxCopied {
		return
	}
	longestFirst := slices.SortedFunc(maps.Keys(headers), func(a, b string) int { return size(b) - size(a) })
	for _, fromOurs := range []bool{false, true} {
		for _, name := range longestFirst {
			if total <= maxCopied {
				return
			}
			if ours(name) == fromOurs {
				total -= size(name)
				delete(headers, name)
			}
		}
	}
}

// ours says of a header that this package gives it a meaning: one of a failure, or an attribute that it knows.
func ours(header string) bool {
	name := metadataOf(header)
	return ofFailure(header) || headerOf(name) != name || header == cloudEvents+"id" || header == cloudEvents+"specversion"
}

// appID is the last part of a source: "orders" of "/onceshop/orders".
func appID(source string) string {
	return source[strings.LastIndex(source, "/")+1:]
}

// errNoDelivery is for the empty delivery that amqp091 hands out when a queue was deleted.
var errNoDelivery = errors.New("no message: the queue was deleted")

// Unmarshal returns the Watermill form of a delivery. Headers of any AMQP type are taken, those that are no
// strings as JSON. The broker's own (x-*, CC, BCC) are left out: a quorum queue adds an integer
// x-delivery-count at the first redelivery. A property wins over a header of the same meaning, and CloudEvents'
// over a plain one, so that each delivery of a message reads the same. The id, the type and the time may be
// missing; a consumer decides what to do about that.
func (Marshaler) Unmarshal(delivery amqp.Delivery) (*message.Message, error) {
	if delivery.Acknowledger == nil {
		return nil, errNoDelivery
	}
	msg := message.NewMessage(delivery.MessageId, delivery.Body)
	for _, isAttribute := range []bool{false, true} {
		for header, value := range delivery.Headers {
			name := metadataOf(header)
			if name != "" && strings.HasPrefix(header, cloudEvents) == isAttribute {
				msg.Metadata.Set(name, headerText(value))
			}
		}
	}
	if id, ok := delivery.Headers[cloudEvents+"id"]; ok && msg.UUID == "" {
		msg.UUID = headerText(id)
	}
	if delivery.Type != "" {
		msg.Metadata.Set(events.Type, delivery.Type)
	}
	if delivery.CorrelationId != "" {
		msg.Metadata.Set(events.CorrelationID, delivery.CorrelationId)
	}
	// The property has whole seconds only, so the CloudEvents header is better where there is one.
	if msg.Metadata.Get(events.Time) == "" && !delivery.Timestamp.IsZero() {
		msg.Metadata.Set(events.Time, delivery.Timestamp.UTC().Format(time.RFC3339Nano))
	}
	return msg, nil
}

func headerText(value any) string {
	if s, ok := value.(string); ok {
		return s
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(encoded)
}
