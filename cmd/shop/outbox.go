package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/spf13/cobra"

	"onceshop/cmd/shop/setup"
	"onceshop/pkg/outbox"
	"onceshop/pkg/postgres"
)

// heldKey is a held key and whose outbox it is in.
type heldKey struct {
	Service string `json:"service"`
	outbox.Held
}

func newOutbox(o *options) *cobra.Command {
	command := &cobra.Command{
		Use: "outbox", Short: "Show and release the keys whose messages the broker refused",
		Long: `Show and release the keys whose messages the broker refused.

The relay holds back the later messages of such a key, so that their order holds, and nobody else's. It
tries the refused one again with growing pauses; after the last try the key waits for you. Remove the
cause, then redrive the key; or drop the message, and the later ones follow without it.`,
	}
	var service string
	command.PersistentFlags().StringVar(&service, "service", "", "look only into the outbox of this service (orders, billing)")
	command.AddCommand(newOutboxList(o, &service), newOutboxRedrive(o, &service), newOutboxDrop(o, &service))
	return command
}

func newOutboxList(o *options, service *string) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use: "list", Short: "List the keys that are held, those held for longest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			outboxes, err := o.outboxes(*service)
			if err != nil {
				return err
			}
			defer outboxes.close()
			held, err := outboxes.held(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(held)
			}
			printHeld(cmd.OutOrStdout(), held)
			return nil
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the list as JSON")
	return command
}

func newOutboxRedrive(o *options, service *string) *cobra.Command {
	return &cobra.Command{
		Use: "redrive KEY", Short: "Try the key's first message again at once, and as often as a new one", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.release(cmd.Context(), *service, args[0], func(held heldKey, db *sqlx.DB) error {
				if err := outbox.Redrive(cmd.Context(), db, held.Key); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s is tried again; see with `shop outbox list` whether it went through\n",
					held.Service, printable(held.Key))
				return err
			})
		},
	}
}

func newOutboxDrop(o *options, service *string) *cobra.Command {
	return &cobra.Command{
		Use: "drop KEY", Short: "Delete the key's first message for good, and print it; the later ones follow", Args: cobra.ExactArgs(1),
		Long: `Delete the key's first message for good, and let the later ones follow. Its consumers never learn of it.

The message is printed as JSON on standard output, so that it can be kept: shop outbox drop KEY >dropped.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.release(cmd.Context(), *service, args[0], func(held heldKey, db *sqlx.DB) error {
				row, err := outbox.Drop(cmd.Context(), db, held.Key)
				if err != nil {
					return err
				}
				if row == nil {
					_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s had no message; it is held no longer\n", held.Service, printable(held.Key))
					return err
				}
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", row); err != nil {
					return fmt.Errorf("the message is dropped, and could not be printed: %w: %s", err, row)
				}
				_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s: the first message of %s is dropped; %d later ones follow\n",
					held.Service, printable(held.Key), max(held.Waiting-1, 0))
				return err
			})
		},
	}
}

// outboxes are the databases of the services that have an outbox.
type outboxes map[string]*sqlx.DB

// outboxes opens the databases as their services' own roles; only one if service is not empty.
func (o *options) outboxes(service string) (outboxes, error) {
	shop, err := o.shop()
	if err != nil {
		return nil, err
	}
	services := setup.WithOutbox()
	if service != "" {
		if !slices.Contains(services, service) {
			return nil, fmt.Errorf("--service %s: only %s have an outbox", service, strings.Join(services, " and "))
		}
		services = []string{service}
	}
	opened := outboxes{}
	for _, name := range services {
		url, err := shop.DatabaseURL(name)
		if err != nil {
			return nil, err
		}
		if opened[name], err = postgres.Open(postgres.Config{URL: url, MaxConnections: 1, ApplicationName: "shop outbox"}); err != nil {
			return nil, err
		}
	}
	return opened, nil
}

func (o outboxes) close() {
	for _, db := range o {
		_ = db.Close()
	}
}

// held lists the held keys of all, those held for longest first.
func (o outboxes) held(ctx context.Context) ([]heldKey, error) {
	all := []heldKey{}
	for service, db := range o {
		held, err := outbox.ListHeld(ctx, db)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", service, err)
		}
		for _, h := range held {
			all = append(all, heldKey{service, h})
		}
	}
	slices.SortFunc(all, func(a, b heldKey) int { return a.Since.Compare(b.Since) })
	return all, nil
}

// release calls fn with the one outbox in which the key is held.
func (o *options) release(ctx context.Context, service, key string, fn func(heldKey, *sqlx.DB) error) error {
	outboxes, err := o.outboxes(service)
	if err != nil {
		return err
	}
	defer outboxes.close()
	held, err := outboxes.held(ctx)
	if err != nil {
		return err
	}
	held = slices.DeleteFunc(held, func(h heldKey) bool { return h.Key != key })
	switch len(held) {
	case 0:
		err = outbox.ErrNotHeld
	case 1:
		err = fn(held[0], outboxes[held[0].Service])
	default:
		return fmt.Errorf("%s is held in more than one outbox: say in which with --service", key)
	}
	if errors.Is(err, outbox.ErrNotHeld) {
		return fmt.Errorf("%s: %w, so there is nothing to do; `shop outbox list` shows those that are", key, outbox.ErrNotHeld)
	}
	return err
}

// printHeld writes the list for people.
func printHeld(w io.Writer, held []heldKey) {
	if len(held) == 0 {
		fmt.Fprintln(w, "No key is held: the broker takes every message.")
		return
	}
	for _, h := range held {
		next := "none, until you redrive or drop it"
		if h.NextTry != nil {
			next = "in " + max(time.Until(*h.NextTry), 0).Round(time.Second).String()
		}
		fmt.Fprintf(w, "%s %s\n", h.Service, printable(h.Key))
		fmt.Fprintf(w, "  first    %s %s, and %d more behind it\n", printable(h.Topic), printable(h.MessageID), max(h.Waiting-1, 0))
		fmt.Fprintf(w, "  error    %s\n", printable(h.Error))
		fmt.Fprintf(w, "  held     for %s, %d tries, next: %s\n", time.Since(h.Since).Round(time.Second), h.Attempts, next)
	}
}
