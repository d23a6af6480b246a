package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

// Errors of one message. Any other error of a publisher is an outage (fault.Outage): the message may or
// may not have arrived, and is to be sent again.
var (
	// ErrNacked: the broker refused the message, such as for a queue that is full.
	ErrNacked = errors.New("the broker refused the message")
	// ErrReturned: no queue takes the message, and the exchange has no alternate exchange.
	ErrReturned = errors.New("the broker returned the message: no queue takes it")
	// ErrChannel: the broker closed the channel while the message was under way. Of all messages that
	// were, one may be the cause.
	ErrChannel = errors.New("the broker closed the channel")
)

// ErrNotSent is the outage of a message that was not sent at all, such as for want of a connection.
var ErrNotSent = fault.AsOutage(errors.New("not sent: no connection to the broker"))

// PublisherConfig configures a Publisher. The zero value of each field but URL and Service is its default.
type PublisherConfig struct {
	URL     string // amqp://user:password@host:port/vhost, required
	Service string // the publishing service, required: its exchanges are declared at each connection
	// RequiredQueues must exist, with all their bindings, before the publisher is ready: what is published
	// before its consumer exists would be nobody's. Default none.
	RequiredQueues []string
	MaxInFlight    int           // messages sent and not yet confirmed; default 1024
	Timeout        time.Duration // for a confirm, after which the connection is cut; default 10 s
	Logger         *slog.Logger  // default: discards

	// setup replaces the declaration of Service's exchanges, for consumers.
	setup func(ctx context.Context, conn *connection) error
}

func (c *PublisherConfig) setDefaults() {
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 1024
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.setup == nil {
		c.setup = c.declareAndAwait
	}
}

func (c *PublisherConfig) validate() error {
	if c.URL == "" || c.Service == "" {
		return errors.New("broker.PublisherConfig: URL and Service are required")
	}
	return nil
}

func (c *PublisherConfig) declareAndAwait(ctx context.Context, conn *connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	if err := declarePublisher(ch, c.Service); err != nil {
		return err
	}
	for _, queue := range c.RequiredQueues {
		if err := awaitQueue(ctx, conn, queue, c.Logger); err != nil {
			return err
		}
	}
	return nil
}

// Publisher sends messages on one channel and matches each with the broker's confirm. Confirms are
// pipelined: any number of messages up to MaxInFlight are under way at once. On a quorum queue a confirm
// means that a majority of its members have the message on disk.
//
// It keeps itself connected while Run runs. It is safe for concurrent use.
type Publisher struct {
	cfg PublisherConfig

	mu      sync.Mutex
	session *session      // nil while not connected
	ready   chan struct{} // closed while session is not nil, replaced when it goes
}

// NewPublisher returns a publisher that connects once Run is called.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Publisher{cfg: cfg, ready: make(chan struct{})}, nil
}

// Run connects, declares, and connects again when the connection is lost, with pauses of up to five
// seconds, until ctx ends; then it closes the connection and returns nil. Messages still under way then
// end in an outage, so end their senders first. It returns an error where no repetition can help: a
// declaration that contradicts what exists, or credentials that the broker refuses at the first try.
func (p *Publisher) Run(ctx context.Context) error {
	pauseFor, connectedBefore := 100*time.Millisecond, false
	for {
		s, err := p.connect(ctx)
		switch {
		case err == nil:
			pauseFor, connectedBefore = 100*time.Millisecond, true
			p.setSession(s)
			p.cfg.Logger.Info("connected to broker", "publisher", p.cfg.Service)
			err = s.run(ctx)
			p.setSession(nil)
			s.end(err)
		case refused(err) && !connectedBefore:
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		p.cfg.Logger.Warn("no connection to the broker: trying again", "error", err, "pause", pauseFor)
		if pause(ctx, pauseFor) != nil {
			return nil
		}
		pauseFor = min(2*pauseFor, 5*time.Second)
	}
}

func (p *Publisher) connect(ctx context.Context) (*session, error) {
	conn, err := dial(p.cfg.URL, p.cfg.Service+" publisher")
	if err != nil {
		return nil, err
	}
	// A set-up that waits for another service, or on a blocked connection, ends with ctx.
	stop := context.AfterFunc(ctx, conn.cut)
	defer stop()
	s, err := newSession(ctx, conn, p.cfg)
	if err != nil {
		conn.cut()
		return nil, err
	}
	return s, nil
}

func (p *Publisher) setSession(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session = s
	if s != nil {
		close(p.ready)
	} else {
		p.ready = make(chan struct{})
	}
}

// Await returns nil as soon as the publisher is connected, has declared its exchanges, and found the
// required queues; or ctx's error if that ends first.
func (p *Publisher) Await(ctx context.Context) error {
	p.mu.Lock()
	ready := p.ready
	p.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ready returns nil if the publisher is connected, an outage otherwise.
func (p *Publisher) Ready() error {
	_, err := p.current()
	return err
}

func (p *Publisher) current() (*session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == nil {
		return nil, ErrNotSent
	}
	return p.session, nil
}

// Send publishes msg to the exchange of the service that its type begins with, under its type as routing
// key. It returns once the message is written, waiting while MaxInFlight others are under way, and calls
// done exactly once, possibly before it returns: with nil when the broker has confirmed the message,
// otherwise with why not. done must not block.
func (p *Publisher) Send(msg *message.Message, done func(error)) {
	publishing, err := Marshaler{}.Marshal(msg)
	if err != nil {
		done(err)
		return
	}
	p.send(events.Service(publishing.Type), publishing.Type, publishing, done)
}

func (p *Publisher) send(exchange, key string, publishing amqp.Publishing, done func(error)) {
	s, err := p.current()
	if err != nil {
		done(err)
		return
	}
	s.send(exchange, key, publishing, done)
}

// Publish sends all messages, as Send does, and returns when each is confirmed; or the first error, and
// those without one have arrived. The topic is not used: the messages' types say where they go. It
// satisfies message.Publisher.
func (p *Publisher) Publish(_ string, messages ...*message.Message) error {
	results := make(chan error, len(messages))
	for _, msg := range messages {
		p.Send(msg, func(err error) { results <- err })
	}
	var first error
	for range messages {
		if err := <-results; err != nil && first == nil {
			first = fmt.Errorf("publish: %w", err)
		}
	}
	return first
}

// publishTo sends one message to an exchange and returns when it is confirmed.
func (p *Publisher) publishTo(exchange, key string, publishing amqp.Publishing) error {
	result := make(chan error, 1)
	p.send(exchange, key, publishing, func(err error) { result <- err })
	return <-result
}

// Close satisfies message.Publisher. The connection ends with Run's context.
func (p *Publisher) Close() error { return nil }
