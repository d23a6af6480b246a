// The orders service. Its settings are in orders.Config.
package main

import (
	"context"
	"log/slog"

	"onceshop/pkg/service"
	"onceshop/services/orders"
)

func main() {
	cfg := orders.DefaultConfig()
	service.Main("orders", cfg, func(ctx context.Context, admin *service.Admin, logger *slog.Logger) error {
		return orders.Run(ctx, cfg, admin, logger)
	})
}
