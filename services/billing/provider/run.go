package provider

import (
	"context"
	"log/slog"
	"time"

	"onceshop/pkg/httpapi"
	"onceshop/pkg/service"
)

// Config holds the settings of the provider.
type Config struct {
	service.Config
	DatabaseURL service.URL   `env:"DATABASE_URL,required,notEmpty"`
	Latency     time.Duration `env:"LATENCY"` // of a confirmation's answer; default 0. More than 15 s outlasts an orderly stop
}

// DefaultConfig returns the settings that the environment need not name.
func DefaultConfig() *Config {
	return &Config{Config: service.Config{HTTPAddr: "127.0.0.1:8084", AdminAddr: "127.0.0.1:8094"}}
}

// Run runs the provider until ctx ends. While PostgreSQL is out of reach it waits; an error means that it
// can't go on.
func Run(ctx context.Context, cfg *Config, admin *service.Admin, logger *slog.Logger) error {
	db, err := service.OpenDatabase(ctx, "provider", cfg.DatabaseURL, admin, logger, Migrations())
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	return httpapi.Serve(ctx, string(cfg.HTTPAddr), NewHandler(db, cfg.Latency, logger), admin.Started)
}
