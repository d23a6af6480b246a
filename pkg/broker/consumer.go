package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/errgroup"

	"onceshop/pkg/events"
)

// ConsumerConfig configures a Consumer. The zero value of each optional field is its default.
type ConsumerConfig struct {
	URL      string   // amqp://user:password@host:port/vhost, required
	Service  string   // the consuming service, required
	Source   string   // the service whose events it consumes, required
	Handlers Handlers // at least one, required

	// Middleware stands around the handler and inside the retries and the time limit; the message is
	// decoded by then. An inbox goes here. Default none.
	Middleware []message.HandlerMiddleware
	// Ping asks the database whether it answers, to tell a slow handler from an outage. Default: every
	// deadline that passes is the handler's.
	Ping func(context.Context) error
	// Concurrency is how many messages are handled at a time; default 16.
	Concurrency int
	// HandlerLimit is the time that one try may take; default 15 s. It should be more than the statement's
	// and the lock's limit of the database.
	HandlerLimit time.Duration
	// StopLimit is how long a stop waits for handlers under way; default 20 s. It must be more than
	// HandlerLimit.
	StopLimit time.Duration
	// RetryDelays are the times that a message waits after a first, second … failed delivery before it is
	// delivered again; after the last it goes to the dead letters. Default DefaultRetryDelays.
	RetryDelays []time.Duration
	Logger      *slog.Logger // default: discards
	Metrics     *Metrics     // default: not registered

	outageLimit time.Duration // how long a message is kept in hand; shorter in tests
}

// DefaultRetryDelays returns 10 s, 1 min, 10 min.
func DefaultRetryDelays() []time.Duration {
	return []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute}
}

func (c *ConsumerConfig) setDefaults() {
	if c.Concurrency == 0 {
		c.Concurrency = 16
	}
	if c.HandlerLimit == 0 {
		c.HandlerLimit = 15 * time.Second
	}
	if c.StopLimit == 0 {
		c.StopLimit = 20 * time.Second
	}
	if c.RetryDelays == nil {
		c.RetryDelays = DefaultRetryDelays()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	if c.outageLimit == 0 {
		c.outageLimit = defaultOutageLimit
	}
}

func (c *ConsumerConfig) validate() error {
	if c.URL == "" || c.Service == "" || c.Source == "" || len(c.Handlers) == 0 {
		return errors.New("broker.ConsumerConfig: URL, Service, Source and Handlers are required")
	}
	if c.StopLimit <= c.HandlerLimit {
		return fmt.Errorf("broker.ConsumerConfig: StopLimit %s must be more than HandlerLimit %s", c.StopLimit, c.HandlerLimit)
	}
	for name := range c.Handlers {
		if events.Service(name) != c.Source {
			return fmt.Errorf("broker.ConsumerConfig: a handler for %s, which %s does not publish", name, c.Source)
		}
	}
	return nil
}

// Consumer handles the events of one source in one queue of the service. A message runs through
//
//	setAside(count(retry(recovered(timeout(decode(middleware(handler)))))))
//
// and is acked once that returns nil.
type Consumer struct {
	cfg       ConsumerConfig
	queue     string
	publisher *Publisher // declares the topology at each connection; sends what is set aside
	metrics   *Metrics
	consuming atomic.Pointer[subscriber] // nil while not subscribed
}

// NewConsumer returns a consumer that starts once Run is called.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Consumer{cfg: cfg, queue: Queue(cfg.Service, cfg.Source), metrics: cfg.Metrics}
	var err error
	c.publisher, err = NewPublisher(PublisherConfig{
		URL: cfg.URL, Service: cfg.Service, Logger: cfg.Logger, setup: c.declare,
	})
	return c, err
}

// declare waits for the source's exchange, then declares the queues and their bindings.
func (c *Consumer) declare(ctx context.Context, conn *connection) error {
	if err := awaitExchange(ctx, conn, c.cfg.Source, c.cfg.Logger); err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	return declareConsumer(ch, c.queue, c.cfg)
}

// Run consumes until ctx ends. Then it takes no more messages, lets the handlers under way finish within
// StopLimit, acks what they handled, gives the rest back, and returns nil. It waits, and reconnects, for as
// long as the broker or the source's exchange is missing. It returns an error where no repetition can
// help, such as a queue that exists with other arguments, and when a handler outlasts StopLimit.
func (c *Consumer) Run(ctx context.Context) error {
	// The publisher outlives the handlers, which may have to set a message aside.
	publishing, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopPublishing()
	group, groupCtx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(groupCtx, func() {
		if ctx.Err() == nil {
			stopPublishing() // the other one failed
		}
	})
	defer stop()
	group.Go(func() error { return c.publisher.Run(publishing) })
	group.Go(func() error { c.watchQueues(groupCtx); return nil })
	group.Go(func() error {
		defer stopPublishing()
		return c.consume(groupCtx)
	})
	return group.Wait()
}

func (c *Consumer) consume(ctx context.Context) error {
	for {
		if c.publisher.Await(ctx) != nil {
			return nil // stopped before it began
		}
		err := c.subscribe(ctx)
		if ctx.Err() != nil {
			return err
		}
		c.cfg.Logger.Warn("consumer ended: subscribing again", "queue", c.queue, "error", err)
		if pause(ctx, time.Second) != nil {
			return nil
		}
	}
}

// subscribe consumes until ctx ends, and then returns an error if a handler outlasts StopLimit; or until a
// subscription can't be made, such as for a connection that is lost just then.
func (c *Consumer) subscribe(ctx context.Context) error {
	logger := watermill.NewSlogLoggerWithLevelMapping(c.cfg.Logger, map[slog.Level]slog.Level{
		slog.LevelInfo: slog.LevelDebug,
	})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: c.cfg.StopLimit}, logger)
	if err != nil {
		return err
	}
	sub, err := dialSubscriber(ctx, c.cfg.URL, c.cfg.Service+" consumer", c.cfg.Concurrency, logger)
	if err != nil {
		return nil // stopped before it began
	}
	handler := router.AddConsumerHandler(c.queue, c.queue, sub, c.cfg.Handlers.dispatch)
	handler.AddMiddleware(c.setAside, c.count, c.retry, recovered, timeout(c.cfg.HandlerLimit),
		c.cfg.Handlers.decode)
	handler.AddMiddleware(c.cfg.Middleware...)
	running, end := context.WithCancel(ctx)
	defer end()
	closed, refused := make(chan error, 1), make(chan struct{})
	go func() {
		select {
		case <-router.Running():
			c.consuming.Store(sub)
			<-running.Done()
			closed <- router.Close()
		case <-refused:
			closed <- nil // a router that never ran waits for its handlers in vain
		}
	}()
	if err = router.Run(running); err != nil {
		close(refused)
	}
	end()
	closeErr := <-closed
	c.consuming.Store(nil)
	if closeErr != nil {
		return fmt.Errorf("consume %s: a handler outlasted the stop limit of %s: %w", c.queue, c.cfg.StopLimit, closeErr)
	}
	if err := sub.Close(); err != nil {
		c.cfg.Logger.Warn("consumer closed with an error", "queue", c.queue, "error", err)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("consume %s: %w", c.queue, err)
	}
	return fmt.Errorf("consume %s: the subscription ended", c.queue)
}

// Ready returns nil while the consumer is subscribed and connected to the broker.
func (c *Consumer) Ready() error {
	if sub := c.consuming.Load(); sub == nil || !sub.inner.IsConnected() {
		return fmt.Errorf("not consuming %s", c.queue)
	}
	return c.publisher.Ready()
}

func (c *Consumer) count(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		started := time.Now()
		_, err := next(msg)
		if err == nil {
			c.metrics.handled.WithLabelValues(c.queue).Observe(time.Since(started).Seconds())
			c.log(msg).Debug("handled")
		}
		return nil, err
	}
}

func (c *Consumer) log(msg *message.Message) *slog.Logger {
	return c.cfg.Logger.With("queue", c.queue, "event", msg.Metadata.Get(events.Type), "message_id", msg.UUID,
		"subject", msg.Metadata.Get(events.Subject), "correlation_id", msg.Metadata.Get(events.CorrelationID))
}
