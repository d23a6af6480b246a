package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jmoiron/sqlx"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// Migrations is one set of SQL migrations in goose's form. Each set keeps its own history in the table
// <Name>_migrations, so that a package such as outbox brings its tables along and numbers them itself.
type Migrations struct {
	Name string
	FS   fs.FS
}

// EmbeddedMigrations returns the set in the directory "migrations" of files. It panics if there is none,
// which the compiler has seen to: the files are embedded.
func EmbeddedMigrations(name string, files embed.FS) Migrations {
	sub, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err)
	}
	return Migrations{Name: name, FS: sub}
}

// Migrate applies what is missing of each set, in the order given. It is safe when replicas start
// together: each set is applied under a session advisory lock, and the others wait for it. A failed
// migration rolls back and is an error; those before it stay.
func Migrate(ctx context.Context, db *sqlx.DB, sets ...Migrations) error {
	for _, set := range sets {
		if err := migrate(ctx, db, set); err != nil {
			return fmt.Errorf("migrate %s: %w", set.Name, err)
		}
	}
	return nil
}

func migrate(ctx context.Context, db *sqlx.DB, set Migrations) error {
	// One second between tries, five minutes in all: a replica waits for the one that migrates.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db.DB, set.FS,
		goose.WithSessionLocker(locker),
		goose.WithTableName(set.Name+"_migrations"),
		goose.WithDisableGlobalRegistry(true),
	)
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}
