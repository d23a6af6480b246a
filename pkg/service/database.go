package service

import (
	"context"
	"errors"
	"log/slog"

	"github.com/jmoiron/sqlx"

	"onceshop/pkg/fault"
	"onceshop/pkg/postgres"
)

// OpenDatabase opens the service's database, waits until it answers, applies the migrations, and adds the
// readiness check "database". It returns an error when ctx ends, and where no repetition can help.
func OpenDatabase(ctx context.Context, name string, url URL, admin *Admin, logger *slog.Logger, sets ...postgres.Migrations) (*sqlx.DB, error) {
	db, err := postgres.Open(postgres.Config{URL: string(url), ApplicationName: name})
	if err != nil {
		return nil, err
	}
	for {
		waiting := func(err error) { logger.Warn("waiting for the database", "error", err) }
		if err = postgres.Await(ctx, db, waiting); err != nil {
			return nil, errors.Join(err, db.Close())
		}
		if err = postgres.Migrate(ctx, db, sets...); err == nil {
			admin.Check("database", db.PingContext)
			return db, nil
		}
		if ctx.Err() != nil || fault.ClassOf(err) != fault.Outage {
			return nil, errors.Join(err, db.Close())
		}
		logger.Warn("the database went away", "error", err)
	}
}
