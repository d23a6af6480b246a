package billing

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"onceshop/pkg/broker"
	"onceshop/pkg/httpapi"
	"onceshop/pkg/inbox"
	"onceshop/pkg/outbox"
	"onceshop/pkg/service"
)

// Config holds the settings of billing.
type Config struct {
	service.Config
	DatabaseURL    service.URL       `env:"DATABASE_URL,required,notEmpty"`
	AMQPURL        service.URL       `env:"AMQP_URL,required,notEmpty"`
	RequiredQueues []string          `env:"REQUIRED_QUEUES"` // of other services, that must exist before anything is published
	RetryDelays    service.Durations `env:"RETRY_DELAYS"`    // how long a message that failed waits, before it is dead
	StripeURL      service.URL       `env:"STRIPE_URL"`      // the payment provider
	StripeKey      string            `env:"STRIPE_KEY"`      // its secret key
	InboxWindow    service.Duration  `env:"INBOX_WINDOW"`    // how long a handled message is remembered; default 168h
}

// DefaultConfig returns the settings that the environment need not name.
func DefaultConfig() *Config {
	return &Config{
		Config:         service.Config{HTTPAddr: "127.0.0.1:8082", AdminAddr: "127.0.0.1:8092"},
		RequiredQueues: []string{broker.Queue("orders", "billing")},
		RetryDelays:    broker.DefaultRetryDelays(),
		StripeURL:      "http://127.0.0.1:8084",
		StripeKey:      "sk_test_development",
		InboxWindow:    service.Duration(inbox.DefaultWindow),
	}
}

// Validate returns an error unless the inbox remembers a message for longer than it may be tried again.
func (c *Config) Validate() error {
	if err := inbox.CheckWindow(time.Duration(c.InboxWindow), inbox.DefaultMargin, c.retrySpan()); err != nil {
		return fmt.Errorf("INBOX_WINDOW: %w", err)
	}
	return nil
}

func (c *Config) retrySpan() time.Duration {
	return broker.ConsumerConfig{RetryDelays: c.RetryDelays}.RetrySpan()
}

// Service does what HTTP requests and events ask for.
type Service struct {
	db     *sqlx.DB
	logger *slog.Logger
}

// Run runs the service until ctx ends. While PostgreSQL or RabbitMQ is out of reach it waits for them; an
// error means that it can't go on.
func Run(ctx context.Context, cfg *Config, admin *service.Admin, logger *slog.Logger) error {
	db, err := service.OpenDatabase(ctx, "billing", cfg.DatabaseURL, admin, logger,
		outbox.Migrations(), inbox.Migrations(), schema())
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	box, err := outbox.New(db, "/onceshop/billing")
	if err != nil {
		return err
	}
	billing := &Service{db: db, logger: logger}
	executor := &executor{
		db: db, box: box, provider: newProvider(string(cfg.StripeURL), cfg.StripeKey), logger: logger,
		wake: make(chan struct{}, 1),
	}
	once, err := inbox.New(inbox.Config{
		Consumer: broker.Queue("billing", "orders"),
		InTx: func(ctx context.Context, fn func(tx *sqlx.Tx) error) error {
			defer executor.woken()
			return box.InTx(ctx, fn)
		},
		Window:     time.Duration(cfg.InboxWindow),
		RetrySpan:  cfg.retrySpan(),
		Registerer: admin.Registry,
	})
	if err != nil {
		return err
	}
	cleaner, err := inbox.NewCleaner(inbox.CleanerConfig{Inbox: once, DB: db, Logger: logger, Registerer: admin.Registry})
	if err != nil {
		return err
	}
	api, err := billing.handler(logger)
	if err != nil {
		return err
	}
	consumer, err := broker.NewConsumer(broker.ConsumerConfig{
		URL: string(cfg.AMQPURL), Service: "billing", Source: "orders", Handlers: billing.handlers(),
		Middleware: []message.HandlerMiddleware{once.Middleware},
		Ping:       db.PingContext, Logger: logger, Metrics: broker.NewMetrics(admin.Registry),
		RetryDelays: cfg.RetryDelays,
	})
	if err != nil {
		return err
	}
	publisher, err := broker.NewPublisher(broker.PublisherConfig{
		URL: string(cfg.AMQPURL), Service: "billing", RequiredQueues: cfg.RequiredQueues, Logger: logger,
	})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(outbox.RelayConfig{
		Outbox: box, URL: string(cfg.DatabaseURL), Publisher: publisher, Logger: logger,
		Registerer: admin.Registry,
	})
	if err != nil {
		return err
	}
	admin.Check("consumer", func(context.Context) error { return consumer.Ready() })
	return service.Stages{
		{
			func(ctx context.Context) error { return httpapi.Serve(ctx, string(cfg.HTTPAddr), api, admin.Started) },
			consumer.Run,
			cleaner.Run,
		},
		{executor.Run},
		{relay.Run},
		{publisher.Run},
	}.Run(ctx)
}
