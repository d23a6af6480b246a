package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"onceshop/cmd/shop/process"
	"onceshop/cmd/shop/setup"
)

// stopLimit is more than a service's own limits for its stop.
const stopLimit = 30 * time.Second

func newUp(o *options) *cobra.Command {
	var logs string
	command := &cobra.Command{
		Use: "up", Short: "Run the shop on the ports 8081 to 8084, until Ctrl-C", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			shop, err := o.shop()
			if err != nil {
				return err
			}
			if err := shop.Run(cmd.Context()); err != nil {
				return err
			}
			running, err := newProcesses(shop, logs, true)
			if err != nil {
				return err
			}
			if err := running.StartAll(cmd.Context()); err != nil {
				return errors.Join(err, stopAll(running))
			}
			for _, service := range setup.Services() {
				fmt.Printf("%-13s %s   log %s\n", service, running.URL(service), running.Log(service))
			}
			fmt.Println("Ctrl-C stops the shop")
			err = running.Watch(cmd.Context())
			return errors.Join(err, stopAll(running))
		},
	}
	command.Flags().StringVar(&logs, "logs", "", "the directory of the services' logs (default: a temporary one)")
	return command
}

// newProcesses returns the shop's services as processes that are not started yet. Their binaries lie beside
// this one.
func newProcesses(shop setup.Shop, logs string, fixedPorts bool) (*process.Shop, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if logs == "" {
		logs, err = os.MkdirTemp("", "onceshop-logs-")
	} else {
		err = os.MkdirAll(logs, 0o755)
	}
	if err != nil {
		return nil, err
	}
	return process.New(shop, filepath.Dir(self), logs, fixedPorts)
}

func stopAll(running *process.Shop) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	return running.StopAll(ctx)
}
