// The catalog-view service. Its settings are in catalogview.Config.
package main

import (
	"context"
	"log/slog"

	"onceshop/pkg/service"
	catalogview "onceshop/services/catalog-view"
)

func main() {
	cfg := catalogview.DefaultConfig()
	service.Main("catalog-view", cfg, func(ctx context.Context, admin *service.Admin, logger *slog.Logger) error {
		return catalogview.Run(ctx, cfg, admin, logger)
	})
}
