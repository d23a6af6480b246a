// The billing service. Its settings are in billing.Config.
package main

import (
	"context"
	"log/slog"

	"onceshop/pkg/service"
	"onceshop/services/billing"
)

func main() {
	cfg := billing.DefaultConfig()
	service.Main("billing", cfg, func(ctx context.Context, admin *service.Admin, logger *slog.Logger) error {
		return billing.Run(ctx, cfg, admin, logger)
	})
}
