// The simulated payment provider. Its settings are in provider.Config.
package main

import (
	"context"
	"log/slog"

	"onceshop/pkg/service"
	"onceshop/services/billing/provider"
)

func main() {
	cfg := provider.DefaultConfig()
	service.Main("provider", cfg, func(ctx context.Context, admin *service.Admin, logger *slog.Logger) error {
		return provider.Run(ctx, cfg, admin, logger)
	})
}
