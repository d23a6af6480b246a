package catalogview

import (
	"context"
	"log/slog"

	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"

	"onceshop/pkg/broker"
	"onceshop/pkg/httpapi"
	"onceshop/pkg/service"
)

// Config holds the settings of catalog-view.
type Config struct {
	service.Config
	DatabaseURL service.URL       `env:"DATABASE_URL,required,notEmpty"`
	AMQPURL     service.URL       `env:"AMQP_URL,required,notEmpty"`
	RetryDelays service.Durations `env:"RETRY_DELAYS"` // how long a message that failed waits, before it is dead
}

// DefaultConfig returns the settings that the environment need not name.
func DefaultConfig() *Config {
	return &Config{
		Config:      service.Config{HTTPAddr: "127.0.0.1:8083", AdminAddr: "127.0.0.1:8093"},
		RetryDelays: broker.DefaultRetryDelays(),
	}
}

// Service does what HTTP requests and events ask for.
type Service struct {
	db    *sqlx.DB
	stale prometheus.Counter
}

// Run runs the service until ctx ends. While PostgreSQL or RabbitMQ is out of reach it waits for them; an
// error means that it can't go on.
func Run(ctx context.Context, cfg *Config, admin *service.Admin, logger *slog.Logger) error {
	db, err := service.OpenDatabase(ctx, "catalog-view", cfg.DatabaseURL, admin, logger, schema())
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	view := &Service{db: db, stale: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "view_stale_events_total", Help: "Events whose version the view had, or had passed.",
	})}
	admin.Registry.MustRegister(view.stale)
	api, err := view.handler(logger)
	if err != nil {
		return err
	}
	consumer, err := broker.NewConsumer(broker.ConsumerConfig{
		URL: string(cfg.AMQPURL), Service: "catalog-view", Source: "orders", Handlers: view.handlers(),
		Ping: db.PingContext, Logger: logger, Metrics: broker.NewMetrics(admin.Registry),
		RetryDelays: cfg.RetryDelays,
	})
	if err != nil {
		return err
	}
	admin.Check("consumer", func(context.Context) error { return consumer.Ready() })
	return service.Stages{{
		func(ctx context.Context) error { return httpapi.Serve(ctx, string(cfg.HTTPAddr), api, admin.Started) },
		consumer.Run,
	}}.Run(ctx)
}
