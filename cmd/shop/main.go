// Shop is the operator's one tool: it sets the servers up, runs the shop, tells its story, and audits it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"onceshop/cmd/shop/audit"
	"onceshop/cmd/shop/setup"
	"onceshop/pkg/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "shop:", printable(err.Error()))
		os.Exit(1)
	}
}

// options are what all commands share.
type options struct {
	name string
}

// shop returns the shop that the options and the environment name.
func (o *options) shop() (setup.Shop, error) {
	found, err := stack.Find()
	if err != nil {
		return setup.Shop{}, err
	}
	password := os.Getenv("SHOP_PASSWORD")
	if password == "" {
		password = "development"
	}
	return setup.Shop{Stack: found, Name: o.name, Password: password}, nil
}

func newCommand() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "shop",
		Short: "Sets the servers up, runs the shop, tells its story, and audits it",
		Long: `Sets the servers up, runs the shop, tells its story, and audits it.

The servers are those of STACK_DATABASE_URL, STACK_AMQP_URL and STACK_AMQP_API, or of the file .stack.env
that scripts/stack leaves behind. SHOP_PASSWORD is the password of all roles and users that are made
("development" if it is not set).`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&o.name, "name", "", "the name of a shop beside the main one; its databases and its virtual host begin with it")
	root.AddCommand(newPing(), newSetup(o), newUp(o), newDemo(o), newAudit(o), newOutbox(o), newDeadLetters(o))
	return root
}

func newPing() *cobra.Command {
	var timeout time.Duration
	command := &cobra.Command{
		Use: "ping", Short: "Say whether PostgreSQL and RabbitMQ answer and let us in", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := stack.Find()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return setup.Ping(ctx, found)
		},
	}
	command.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait")
	return command
}

func newSetup(o *options) *cobra.Command {
	var wait time.Duration
	command := &cobra.Command{
		Use: "setup", Short: "Make databases, roles, the virtual host, broker users and their permissions", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			shop, err := o.shop()
			if err != nil {
				return err
			}
			for deadline := time.Now().Add(wait); ; {
				ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Second)
				err := setup.Ping(ctx, shop.Stack)
				cancel()
				if err == nil {
					return shop.Run(cmd.Context())
				}
				if cmd.Context().Err() != nil || time.Now().After(deadline) {
					return err
				}
				time.Sleep(200 * time.Millisecond)
			}
		},
	}
	command.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait until the servers answer")
	return command
}

// errAudit is the audit's verdict; the report has been printed.
var errAudit = errors.New("audit: not ok")

func newAudit(o *options) *cobra.Command {
	var wait time.Duration
	var asJSON bool
	command := &cobra.Command{
		Use: "audit", Short: "Compare the four databases and the queues, and say whether every promise holds", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			shop, err := o.shop()
			if err != nil {
				return err
			}
			report, err := audit.Run(cmd.Context(), shop, wait)
			if err != nil {
				return err
			}
			if asJSON {
				encoder := json.NewEncoder(os.Stdout)
				encoder.SetIndent("", "  ")
				if err := encoder.Encode(report); err != nil {
					return err
				}
			} else {
				report.Print(os.Stdout)
			}
			if !report.OK {
				return errAudit
			}
			return nil
		},
	}
	command.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait until the shop is quiet: two equal readings a second apart, nothing under way")
	command.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return command
}
