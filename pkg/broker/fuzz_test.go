package broker_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/broker/brokertest"
	"onceshop/pkg/events"
	"onceshop/pkg/inbox"
	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
)

// Bits of a fuzzed message's shape.
const (
	idInHeader   = 1 << iota // where the id may be longer than a property
	typeInHeader             // likewise
	sentTwice
	expires // at once, if nobody takes it
	fresh   // with a new id
)

// parks is the customer whose orders fail, and are parked once.
const parks = "later"

const (
	huge         = 0xff // the shape of a message of hugeSize
	hugeSize     = 2 << 20
	fuzzLimit    = 8 * time.Second // go test kills a call of the fuzz target after 10
	otherVersion = "orders.order_placed.v9"
)

// FuzzConsumer delivers what anybody could send: each message ends handled or in the dead letters, whole and
// once, and the consumer goes on.
func FuzzConsumer(f *testing.F) {
	f.Add("", events.OrderPlacedV1, []byte{}, good(f), byte(0))
	f.Add("1", events.OrderPlacedV1, []byte{}, good(f), byte(sentTwice))
	f.Add("1", events.OrderPlacedV1, []byte{}, []byte{}, byte(0))
	f.Add("1", "", []byte{}, []byte("null"), byte(expires))
	f.Add("2", events.OrderPlacedV1, []byte{}, good(f), byte(huge))
	f.Add("3", events.OrderPlacedV1, []byte{}, bytes.Replace(good(f), []byte("ada"), []byte(`\u0000`), 1), byte(0))
	f.Add("3\x00", events.OrderPlacedV1, []byte{}, good(f), byte(0))
	f.Add("\xff", "orders.order_placed.v2", []byte{}, good(f), byte(sentTwice))
	f.Add(strings.Repeat("i", 10_000), events.OrderPlacedV1, []byte{}, good(f), byte(idInHeader))
	f.Add("4", events.OrderPlacedV1+strings.Repeat("t", 10_000), []byte{}, good(f), byte(typeInHeader))
	f.Add("5", otherVersion, []byte{3, 12, 5, 14, 3, 'a', 'b', 'c'}, good(f), byte(0)) // CC
	var grows []byte                                                                   // 92 kB of bytes, which are a third more as text
	for i := range byte(12) {
		grows = slices.Concat(grows, []byte{32 + i}, bytes.Repeat([]byte{i}, int(32+i)%16), []byte{11, i, 255})
	}
	f.Add("5", otherVersion, grows, good(f), byte(0))
	// Each name with an array of a number, a table and bytes, and with a number; on a message that is handled,
	// on one that is parked, and on one that is not.
	number := []byte{4, 255, 255, 255, 255, 255, 255, 255, 1}
	array := sized(12, slices.Concat(number, sized(13, slices.Concat([]byte{1}, sized(14, []byte("text")))), sized(9, []byte{1, 2, 3})))
	inTable := slices.Concat([]byte{0}, array)
	require.Equal(f, amqp.Table{hostileNames[0]: []any{int64(-255), amqp.Table{hostileNames[1]: "text"}, []byte{1, 2, 3}}}, tableOf(&inTable, 20))
	parked := bytes.Replace(good(f), []byte("ada"), []byte(parks), 1)
	for name := range hostileNames {
		for _, value := range [][]byte{array, number} {
			headers := slices.Concat([]byte{byte(name)}, value)
			f.Add("6"+string(value[0]), otherVersion, headers, good(f), byte(0))
			f.Add("", events.OrderPlacedV1, headers, good(f), byte(fresh))
			f.Add("", events.OrderPlacedV1, headers, parked, byte(fresh))
		}
	}
	pit := newPit(f)
	f.Fuzz(func(t *testing.T, id, name string, headers, body []byte, shape byte) {
		if len(id)+len(name)+len(headers) > 100_000 {
			t.Skip("more than a frame holds")
		}
		table := tableOf(&headers, 20)
		msg := amqp.Publishing{MessageId: id, Type: name, Headers: table, Body: body, Timestamp: time.Now(), DeliveryMode: amqp.Persistent}
		if shape&idInHeader != 0 || len(id) > broker.MaxShort {
			msg.MessageId, table["cloudEvents:id"] = "", id
		}
		if shape&typeInHeader != 0 || len(name) > broker.MaxShort {
			msg.Type, table["cloudEvents:type"] = "", name
		}
		if shape&expires != 0 {
			msg.Expiration = "0"
		}
		if shape == huge && len(body) > 0 {
			msg.Body = bytes.Repeat(body, hugeSize/len(body)+1)
		}
		if shape&fresh != 0 && shape != huge {
			msg.MessageId = uuid.NewString()
		}
		times := 1
		if shape&sentTwice != 0 {
			times = 2
		}
		pit.throw(t, msg, times)
	})
}

// No call of a fuzz target has the time for it.
func TestMessageOf20MiBIsSetAside(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	startConsumer(t, broker.ConsumerConfig{URL: url, Handlers: on(func(context.Context, events.OrderPlaced) error { return nil })})
	body := bytes.Repeat([]byte("no JSON "), 20<<20/8)
	deliver(t, channel(t, url), func(p *amqp.Publishing) { p.Body = body })
	awaitDepth(t, url, deadLetters, 1)
	letters := open(t, url, deadLetters)
	require.NoError(t, letters.Redrive(context.Background(), next(t, letters), ""))
	require.NoError(t, letters.Close())
	awaitDepth(t, url, deadLetters, 1)
	require.True(t, bytes.Equal(body, nextDeadLetter(t, channel(t, url)).Body))
}

// pit is a consumer with an inbox, whose handler writes to PostgreSQL what it is told.
type pit struct {
	url      string
	ch       *amqp.Channel
	registry *prometheus.Registry
}

func newPit(f *testing.F) *pit {
	f.Helper()
	p := &pit{url: brokertest.VHost(f), registry: prometheus.NewRegistry()}
	db := postgrestest.New(f, inbox.Migrations())
	_, err := db.Exec(`CREATE TABLE seen (order_id text, customer text, whole jsonb)`)
	require.NoError(f, err)
	box, err := inbox.New(inbox.Config{
		Consumer: "billing.orders",
		InTx:     func(ctx context.Context, fn func(*sqlx.Tx) error) error { return postgres.InTx(ctx, db, fn) },
	})
	require.NoError(f, err)
	startPublisher(f, broker.PublisherConfig{URL: p.url})
	startConsumer(f, broker.ConsumerConfig{
		URL: p.url, Concurrency: 4, RetryDelays: []time.Duration{10 * time.Millisecond}, Metrics: broker.NewMetrics(p.registry),
		Middleware: []message.HandlerMiddleware{box.Middleware},
		Handlers: on(func(ctx context.Context, event events.OrderPlaced) error {
			if event.Customer == parks {
				return errors.New("not today")
			}
			whole, err := json.Marshal(event)
			if err != nil {
				return err
			}
			_, err = inbox.Tx(ctx).ExecContext(ctx, `INSERT INTO seen VALUES ($1, $2, $3)`, event.OrderID, event.Customer, string(whole))
			return err
		}),
	})
	return p
}

func good(t testing.TB) []byte {
	t.Helper()
	body, err := json.Marshal(placed(uuid.NewString()))
	require.NoError(t, err)
	return body
}

// publish returns false if the broker refuses such a message.
func (p *pit) publish(t *testing.T, msg amqp.Publishing) bool {
	t.Helper()
	if p.ch == nil || p.ch.IsClosed() {
		conn, err := amqp.Dial(p.url)
		require.NoError(t, err)
		p.ch, err = conn.Channel()
		require.NoError(t, err)
		require.NoError(t, p.ch.Confirm(false))
	}
	confirmation, err := p.ch.PublishWithDeferredConfirm("orders", events.OrderPlacedV1, false, false, msg)
	require.NoError(t, err)
	return confirmation.Wait()
}

// throw sends the message some times, and a good one behind it, and requires that all of them end.
func (p *pit) throw(t *testing.T, msg amqp.Publishing, times int) {
	t.Helper()
	handled := func() int { return metric(t, p.registry, "consumer_handled_seconds") }
	before := handled()
	for range times {
		if !p.publish(t, msg) {
			t.Skip("the broker refuses it")
		}
	}
	require.True(t, p.publish(t, amqp.Publishing{MessageId: uuid.NewString(), Type: events.OrderPlacedV1, Body: good(t), Timestamp: time.Now()}))
	letters := 0
	require.Eventually(t, func() bool {
		letter, ok, err := p.ch.Get(deadLetters, true)
		require.NoError(t, err)
		if ok {
			letters++
			require.True(t, bytes.Equal(msg.Body, letter.Body), "the dead letter is whole")
			require.True(t, letter.Headers[broker.LastError] != nil || letter.Headers["x-first-death-reason"] == "expired", "it says why: %v", letter.Headers)
		}
		return handled()-before+letters >= times+1
	}, fuzzLimit, time.Millisecond, "a message is lost, or loops")
	require.Equal(t, times+1, handled()-before+letters)
	require.LessOrEqual(t, letters, times, "the good one is handled")
	require.Zero(t, depth(t, p.url, "billing.orders")+depth(t, p.url, "billing.orders.retry.10ms"))
}

// hostileNames are headers that mean something to somebody.
var hostileNames = []string{ //nolint:gochecknoglobals
	"x-delivery-count", "x-death", "x-first-death-queue", "CC", "BCC", broker.Attempts, broker.LastError, broker.FirstFailure,
	broker.OriginQueue, events.Force, "cloudEvents:id", "cloudEvents:type", "cloudEvents:time", "cloudEvents:source",
	"cloudEvents:subject", "cloudEvents:correlationid", "cloudEvents:specversion", "type", "time", "source", "correlation_id", "",
}

// take removes up to n bytes from the front of data; what is missing is 0.
func take(data *[]byte, n int) []byte {
	taken := make([]byte, n)
	*data = (*data)[copy(taken, *data):]
	return taken
}

// tableOf makes headers of data, of all AMQP types.
func tableOf(data *[]byte, depth int) amqp.Table {
	table := amqp.Table{}
	for len(*data) > 0 {
		name := string(take(data, 1))
		if n := int(name[0]); n < len(hostileNames) {
			name = hostileNames[n]
		} else {
			name += string(take(data, n%16))
		}
		table[name] = valueOf(data, depth)
	}
	return table
}

// sized returns what valueOf and tableOf read as a value of a kind that has a length.
func sized(kind byte, content []byte) []byte {
	return slices.Concat([]byte{kind, byte(len(content))}, content)
}

func valueOf(data *[]byte, depth int) any {
	kind := take(data, 1)[0]
	switch kind % 16 {
	case 0:
		return nil
	case 1:
		return take(data, 1)[0] != 0
	case 2:
		return int8(take(data, 1)[0])
	case 3:
		return int16(binary.BigEndian.Uint16(take(data, 2)))
	case 4:
		return int64(binary.BigEndian.Uint64(take(data, 8)))
	case 5:
		return int32(binary.BigEndian.Uint32(take(data, 4)))
	case 6:
		return math.Float32frombits(binary.BigEndian.Uint32(take(data, 4)))
	case 7:
		return math.Float64frombits(binary.BigEndian.Uint64(take(data, 8)))
	case 8:
		return amqp.Decimal{Scale: take(data, 1)[0], Value: int32(binary.BigEndian.Uint32(take(data, 4)))}
	case 9:
		return take(data, int(take(data, 1)[0]))
	case 10:
		return time.Unix(int64(binary.BigEndian.Uint64(take(data, 8))), 0)
	case 11: // long
		return bytes.Repeat(take(data, 1), 40*int(take(data, 1)[0]))
	case 12, 13:
		if depth == 0 {
			return nil
		}
		inner := slices.Clone(take(data, min(int(take(data, 1)[0]), len(*data))))
		if kind%16 == 13 {
			return tableOf(&inner, depth-1)
		}
		array := []any{}
		for len(inner) > 0 {
			array = append(array, valueOf(&inner, depth-1))
		}
		return array
	default:
		return string(take(data, int(take(data, 1)[0])))
	}
}
