package events_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/events"
	"onceshop/pkg/outbox"
)

var update = flag.Bool("update", false, "write the golden files in testdata anew")

// wire is an event as a consumer gets it from the broker.
type wire struct {
	Properties properties      `json:"properties"`
	Headers    amqp.Table      `json:"headers"`
	Body       json.RawMessage `json:"body"`
}

// properties are those of AMQP 0-9-1 that events use, under their names there.
type properties struct {
	ContentType   string `json:"content-type"`
	DeliveryMode  uint8  `json:"delivery-mode"`
	CorrelationID string `json:"correlation-id"`
	MessageID     string `json:"message-id"`
	Timestamp     int64  `json:"timestamp"` // Unix seconds
	Type          string `json:"type"`
	AppID         string `json:"app-id"`
}

// publishingOf returns the event as it is sent, but for its id and time, which would differ each time.
func publishingOf(t *testing.T, event events.Event) amqp.Publishing {
	t.Helper()
	ctx := events.WithCause(context.Background(), events.Cause{
		CorrelationID: "5d8f8a5e-3c1b-4f0e-9a67-1b7d2f3e4c5a",
		CausationID:   "0193a5f0-6c1d-7a90-8c3e-2d4b6f8a0c1e",
		Traceparent:   "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	})
	msg, err := outbox.NewMessage(ctx, "/onceshop/"+events.Service(event.Name()), event)
	require.NoError(t, err)
	msg.UUID = "0193a5f0-6c20-7b31-a2d5-4e6f8091a2b3"
	msg.Metadata.Set(events.Time, "2026-01-02T15:04:05.987654321Z")
	sent, err := broker.Marshaler{}.Marshal(msg)
	require.NoError(t, err)
	return sent
}

func wireOf(t *testing.T, sent amqp.Publishing) wire {
	t.Helper()
	w := wire{Headers: sent.Headers, Body: sent.Body, Properties: properties{
		sent.ContentType, sent.DeliveryMode, sent.CorrelationId, sent.MessageId, sent.Timestamp.Unix(), sent.Type, sent.AppId,
	}}
	sent.Headers, sent.Body, sent.Timestamp, sent.DeliveryMode = nil, nil, time.Time{}, 0
	sent.ContentType, sent.CorrelationId, sent.MessageId, sent.Type, sent.AppId = "", "", "", "", ""
	require.Equal(t, amqp.Publishing{}, sent, "a property that the golden file would not show")
	return w
}

func goldenPath(name string) string { return filepath.Join("testdata", name+".json") }

func golden(t *testing.T, name string) wire {
	t.Helper()
	text, err := os.ReadFile(goldenPath(name))
	require.NoError(t, err, "no golden file: run go test with -update, and look at the difference")
	var w wire
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&w))
	return w
}

// It is not parallel, so that with -update the others read what it writes.
func TestWireFormIsTheGoldenFiles(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.event.Name(), func(t *testing.T) {
			got, err := json.MarshalIndent(wireOf(t, publishingOf(t, s.event)), "", "  ")
			require.NoError(t, err)
			if *update {
				require.NoError(t, os.WriteFile(goldenPath(s.event.Name()), append(got, '\n'), 0o644))
			}
			want, err := json.Marshal(golden(t, s.event.Name()))
			require.NoError(t, err)
			require.JSONEq(t, string(want), string(got))
		})
	}
}

func TestGoldenFilesAreReadBack(t *testing.T) {
	t.Parallel()
	for _, s := range samples() {
		t.Run(s.event.Name(), func(t *testing.T) {
			t.Parallel()
			w := golden(t, s.event.Name())
			msg, err := broker.Marshaler{}.Unmarshal(amqp.Delivery{
				Acknowledger: struct{ amqp.Acknowledger }{}, // without one it would be no delivery
				Headers:      w.Headers, Body: w.Body, MessageId: w.Properties.MessageID, Type: w.Properties.Type,
				Timestamp: time.Unix(w.Properties.Timestamp, 0), CorrelationId: w.Properties.CorrelationID,
			})
			require.NoError(t, err)
			decoded, err := s.decode(msg.Payload)
			require.NoError(t, err)
			require.Equal(t, s.event, decoded)
			id, _ := s.event.Aggregate()
			require.Equal(t, message.Metadata{
				events.Type: s.event.Name(), events.Subject: id, events.Time: "2026-01-02T15:04:05.987654321Z",
				events.Source:        "/onceshop/" + events.Service(s.event.Name()),
				events.CorrelationID: w.Properties.CorrelationID,
				events.CausationID:   "0193a5f0-6c1d-7a90-8c3e-2d4b6f8a0c1e",
				events.Traceparent:   "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			}, msg.Metadata)
			require.Equal(t, w.Properties.MessageID, msg.UUID)
		})
	}
}

func TestNamesListEveryEventOnce(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(goldenPath("*"))
	require.NoError(t, err)
	byService := map[string][]string{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		byService[events.Service(name)] = append(byService[events.Service(name)], name)
	}
	var sampled, types []string
	for _, s := range samples() {
		sampled = append(sampled, s.event.Name())
		types = append(types, reflect.TypeOf(s.event).Name())
	}
	require.ElementsMatch(t, declaredEvents(t), types, "a type with the method Name is an event, and needs a sample")
	require.ElementsMatch(t, sampled, slices.Concat(byService["orders"], byService["billing"]))
	require.Equal(t, byService["orders"], events.Names("orders"))
	require.Equal(t, byService["billing"], events.Names("billing"))
	require.Empty(t, events.Names("catalog-view"))
	require.Len(t, byService, 2)
}

// declaredEvents returns the types of package events that have a method Name.
func declaredEvents(t *testing.T) (types []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, declaration := range parsed.Decls {
			method, ok := declaration.(*ast.FuncDecl)
			if ok && method.Recv != nil && method.Name.Name == "Name" {
				types = append(types, fmt.Sprint(method.Recv.List[0].Type))
			}
		}
	}
	return types
}
