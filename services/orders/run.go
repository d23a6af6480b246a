package orders

import (
	"context"
	"log/slog"
	"time"

	"onceshop/pkg/broker"
	"onceshop/pkg/httpapi"
	"onceshop/pkg/outbox"
	"onceshop/pkg/service"
)

// Config holds the settings of orders.
type Config struct {
	service.Config
	DatabaseURL    service.URL       `env:"DATABASE_URL,required,notEmpty"`
	AMQPURL        service.URL       `env:"AMQP_URL,required,notEmpty"`
	RequiredQueues []string          `env:"REQUIRED_QUEUES"` // of other services, that must exist before anything is published
	RetryDelays    service.Durations `env:"RETRY_DELAYS"`    // how long a message that failed waits, before it is dead
	PlacedLimit    service.Duration  `env:"PLACED_LIMIT"`    // after which an unpaid order is cancelled
}

// DefaultConfig returns the settings that the environment need not name.
func DefaultConfig() *Config {
	return &Config{
		Config:         service.Config{HTTPAddr: "127.0.0.1:8081", AdminAddr: "127.0.0.1:8091"},
		RequiredQueues: []string{broker.Queue("billing", "orders"), broker.Queue("catalog-view", "orders")},
		RetryDelays:    broker.DefaultRetryDelays(),
		PlacedLimit:    service.Duration(15 * time.Minute),
	}
}

// Run runs the service until ctx ends. While PostgreSQL or RabbitMQ is out of reach it waits for them; an
// error means that it can't go on.
func Run(ctx context.Context, cfg *Config, admin *service.Admin, logger *slog.Logger) error {
	db, err := service.OpenDatabase(ctx, "orders", cfg.DatabaseURL, admin, logger, outbox.Migrations(), schema())
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	box, err := outbox.New(db, "/onceshop/orders")
	if err != nil {
		return err
	}
	orders := &Service{db: db, box: box, logger: logger}
	api, err := orders.handler(logger)
	if err != nil {
		return err
	}
	consumer, err := broker.NewConsumer(broker.ConsumerConfig{
		URL: string(cfg.AMQPURL), Service: "orders", Source: "billing", Handlers: orders.handlers(),
		Ping: db.PingContext, Logger: logger, Metrics: broker.NewMetrics(admin.Registry),
		RetryDelays: cfg.RetryDelays,
	})
	if err != nil {
		return err
	}
	publisher, err := broker.NewPublisher(broker.PublisherConfig{
		URL: string(cfg.AMQPURL), Service: "orders", RequiredQueues: cfg.RequiredQueues, Logger: logger,
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
	// The outbox is there so that orders can be taken without the broker, so readiness doesn't ask for it.
	return service.Stages{
		{
			func(ctx context.Context) error { return httpapi.Serve(ctx, string(cfg.HTTPAddr), api, admin.Started) },
			func(ctx context.Context) error { return orders.CancelOverdue(ctx, time.Duration(cfg.PlacedLimit)) },
			consumer.Run,
		},
		{relay.Run},
		{publisher.Run},
	}.Run(ctx)
}
