package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"onceshop/pkg/fault"
)

// subscriber is watermill-amqp's subscriber, subscribed several times to a queue with one message each,
// and drained when it stops. By itself watermill-amqp gives what is being handled back to the broker when
// it is closed, and cancels the handler's context, so that each stop has messages handled twice.
//
// It stops, when the context of Subscribe ends, in this order: it hands out no more messages; it waits
// until each that it handed out is acked or nacked, and until the broker was told; then Close ends the
// consumers, which gives back what nobody has seen. Handlers run under a context that the stop doesn't
// end; Stopping tells them.
type subscriber struct {
	inner       *wamqp.Subscriber
	concurrency int

	cancel context.CancelFunc // ends the inner subscriptions
	ctx    context.Context
	done   sync.WaitGroup // one per forwarding goroutine
}

// closeTimeout bounds how long the inner subscriber may take to close once nothing is under way. It waits
// for ever while the broker is out of reach.
const closeTimeout = 5 * time.Second

// dialSubscriber connects to the broker, with pauses of up to five seconds between tries, until ctx ends.
// After that watermill-amqp reconnects by itself.
func dialSubscriber(ctx context.Context, url, name string, concurrency int, logger watermill.LoggerAdapter) (*subscriber, error) {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	cfg := wamqp.Config{
		Connection: wamqp.ConnectionConfig{
			AmqpURI: url,
			AmqpConfig: &amqp.Config{
				Heartbeat: heartbeat, Properties: properties, Dial: amqp.DefaultDial(5 * time.Second),
			},
			Reconnect: &wamqp.ReconnectConfig{
				BackoffInitialInterval: 100 * time.Millisecond, BackoffMaxInterval: 5 * time.Second,
				BackoffMultiplier: 2, BackoffRandomizationFactor: 0.5,
			},
		},
		Marshaler:       Marshaler{},
		Exchange:        wamqp.ExchangeConfig{GenerateName: func(string) string { return "" }},
		Queue:           wamqp.QueueConfig{GenerateName: wamqp.GenerateQueueNameTopicName},
		Consume:         wamqp.ConsumeConfig{Qos: wamqp.QosConfig{PrefetchCount: 1}},
		TopologyBuilder: noTopology{},
	}
	for pauseFor := 100 * time.Millisecond; ; pauseFor = min(2*pauseFor, 5*time.Second) {
		inner, err := wamqp.NewSubscriber(cfg, logger)
		if err == nil {
			s := &subscriber{inner: inner, concurrency: concurrency}
			s.ctx, s.cancel = context.WithCancel(context.Background())
			return s, nil
		}
		logger.Error("No connection to the broker: trying again", err, watermill.LogFields{"pause": pauseFor.String()})
		if err := pause(ctx, pauseFor); err != nil {
			return nil, err
		}
	}
}

// Subscribe hands out the messages of the queue until ctx ends or Close is called. The channel is closed
// once every message it handed out was acked or nacked and the broker knows.
func (s *subscriber) Subscribe(ctx context.Context, queue string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	var forwarders sync.WaitGroup
	for range s.concurrency {
		in, err := s.inner.Subscribe(s.ctx, queue)
		if err != nil {
			return nil, fault.AsOutage(err)
		}
		s.done.Add(1)
		forwarders.Go(func() {
			defer s.done.Done()
			forward(ctx, in, out)
		})
	}
	go func() {
		forwarders.Wait()
		close(out)
	}()
	return out, nil
}

func forward(ctx context.Context, in <-chan *message.Message, out chan<- *message.Message) {
	for {
		select {
		case <-ctx.Done():
			return
		case msg, ok := <-in:
			if !ok {
				return
			}
			told := msg.Context().Done()
			msg.SetContext(context.WithValue(context.WithoutCancel(msg.Context()), stoppingKey{}, ctx.Done()))
			select {
			case <-ctx.Done():
				return // nobody has seen it; Close gives it back
			case out <- msg:
			}
			// Not when the message is acked, but when the inner subscriber has passed that on: in between,
			// a close would still make it a nack.
			<-told
		}
	}
}

// Close waits until what was handed out is settled, and ends the consumers and the connection.
func (s *subscriber) Close() error {
	s.done.Wait()
	s.cancel()
	closed := make(chan error, 1)
	go func() { closed <- s.inner.Close() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(closeTimeout):
		return errors.New("the subscriber did not close: the broker is out of reach")
	}
}

type stoppingKey struct{}

// Stopping returns a channel that is closed when the consumer that handed out the message of ctx stops.
// The handler may finish; whoever waits to repeat it should give up.
func Stopping(ctx context.Context) <-chan struct{} {
	stopping, _ := ctx.Value(stoppingKey{}).(<-chan struct{})
	return stopping
}

func stopping(ctx context.Context) bool {
	select {
	case <-Stopping(ctx):
		return true
	default:
		return false
	}
}

// noTopology declares nothing: the consumer's publisher connection has declared all before, once rather
// than for each subscription.
type noTopology struct{}

// BuildTopology does nothing.
func (noTopology) BuildTopology(*amqp.Channel, string, string, wamqp.Config, watermill.LoggerAdapter) error {
	return nil
}

// ExchangeDeclare does nothing.
func (noTopology) ExchangeDeclare(*amqp.Channel, string, wamqp.Config) error { return nil }
