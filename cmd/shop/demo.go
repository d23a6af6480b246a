package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"onceshop/cmd/shop/audit"
	"onceshop/cmd/shop/process"
	"onceshop/cmd/shop/setup"
	"onceshop/cmd/shop/story"
	"onceshop/pkg/broker"
)

const (
	demoOrders  = 200
	repeatEvery = 10
	demoLimit   = 3 * time.Minute // for all orders to reach an end
)

// demo tells the story: products, orders, declined cards, cancellations, repeated events, a service that is
// killed, and what the audit says of it all.
type demo struct {
	shop    setup.Shop
	running *process.Shop // nil where the services run elsewhere, and nothing is killed
	keep    bool
	story   *story.Story
	watcher *story.Watcher
	begun   time.Time
	mu      sync.Mutex // guards the terminal
	live    bool       // the last line is progress, to be overwritten
}

func newDemo(o *options) *cobra.Command {
	var keep bool
	ordersURL := os.Getenv("ORDERS_URL")
	command := &cobra.Command{
		Use:   "demo",
		Short: "Tell the story of a shop in which things go wrong, and audit it",
		Long: `Starts a shop of its own, on fresh databases and a fresh virtual host, lets clients order, repeats events,
kills billing and restarts catalog-view meanwhile, waits until all orders have ended, and audits the shop.
It exits with 0 only if the audit holds.

With --orders-url, the story happens in a shop that is running, and nothing is killed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := &demo{begun: time.Now(), keep: keep}
			if ordersURL == "" {
				o.name = fmt.Sprintf("demo_%d", time.Now().UnixMilli())
			}
			var err error
			if d.shop, err = o.shop(); err != nil {
				return err
			}
			if ordersURL != "" {
				return d.tell(cmd.Context(), ordersURL)
			}
			return d.inOwnShop(cmd.Context())
		},
	}
	command.Flags().BoolVar(&keep, "keep", false, "leave the shop running until Ctrl-C after the story")
	command.Flags().StringVar(&ordersURL, "orders-url", ordersURL, "the API of orders in a running shop (ORDERS_URL)")
	return command
}

func (d *demo) inOwnShop(ctx context.Context) (err error) {
	if err := d.shop.Run(ctx); err != nil {
		return err
	}
	defer func() {
		dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		err = errors.Join(err, d.shop.Drop(dropping))
	}()
	if d.running, err = newProcesses(d.shop, "", false); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopAll(d.running)) }()
	d.say("a fresh shop: databases %s, virtual host %s", d.shop.Database("…"), d.shop.VHost())
	if err := d.running.StartAll(ctx); err != nil {
		return err
	}
	for _, service := range setup.Services() {
		d.say("%-12s is ready at %s, log %s", service, d.running.URL(service), d.running.Log(service))
	}
	if err := d.tell(ctx, d.running.URL(setup.Orders)); err != nil {
		return err
	}
	if d.keep {
		d.say("the shop keeps running; Ctrl-C stops it and drops its databases")
		<-ctx.Done()
	}
	return nil
}

// tell is the story itself.
func (d *demo) tell(ctx context.Context, ordersURL string) error {
	d.story = story.New(story.Config{URL: ordersURL, Orders: demoOrders})
	var err error
	if d.watcher, err = story.NewWatcher(d.shop); err != nil {
		return err
	}
	defer d.watcher.Close()
	before, err := d.watcher.Progress(ctx)
	if err != nil {
		return err
	}
	repeated, err := d.repeating(ctx, func(ctx context.Context) error { return d.happen(ctx, before.Total()) })
	if err != nil {
		return err
	}
	progress, err := d.watcher.Progress(ctx)
	if err != nil {
		return err
	}
	d.say("all orders have ended; auditing")
	report, err := audit.Run(ctx, d.shop, demoLimit)
	if err != nil {
		return err
	}
	d.say("done")
	fmt.Printf("\n  %-20s %5d\n  %-20s %5d\n  %-20s %5d\n  %-20s %5d\n  %-20s %5d\n\n", "orders", progress.Total(),
		"confirmed", progress.Confirmed, "rejected", progress.Rejected, "cancelled", progress.Cancelled, "events repeated", repeated)
	report.Print(os.Stdout)
	if !report.OK {
		return errAudit
	}
	return nil
}

// repeating runs fn while every tenth event is published a second time, straight to the broker, and returns
// how many were.
func (d *demo) repeating(ctx context.Context, fn func(context.Context) error) (int, error) {
	url, err := d.shop.AMQPURL(setup.Operator)
	if err != nil {
		return 0, err
	}
	repeating, stop := context.WithCancel(ctx)
	defer stop()
	started, ended := make(chan struct{}), make(chan error, 1)
	var repeated int
	go func() {
		var err error
		repeated, err = broker.Repeat(repeating, url, repeatEvery, []string{setup.Orders, setup.Billing}, func() { close(started) })
		ended <- err
	}()
	select {
	case <-started:
	case err := <-ended:
		return 0, err
	}
	d.say("from now on, every %dth event is published twice", repeatEvery)
	err = fn(ctx)
	stop()
	return repeated, errors.Join(err, <-ended)
}

// happen lets clients order, breaks what there is to break, and returns when all orders have ended.
func (d *demo) happen(ctx context.Context, before int) error {
	if err := d.story.PutUpProducts(ctx); err != nil {
		return err
	}
	d.say("5 products are up; 8 clients begin to place %d orders", demoOrders)
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { d.watch(watching) })
	defer func() { stop(); watcher.Wait() }()
	ordering := make(chan error, 1)
	go func() { ordering <- d.story.Order(ctx) }()
	if d.running != nil {
		if err := d.breakThings(ctx); err != nil {
			return err
		}
	}
	if err := <-ordering; err != nil {
		return err
	}
	d.say("all orders are placed")
	return d.awaitEnd(ctx, before)
}

// breakThings kills billing half way and starts it again a moment later, then restarts catalog-view.
func (d *demo) breakThings(ctx context.Context) error {
	if err := d.until(ctx, func() bool { return d.story.Placed() >= demoOrders/2 }); err != nil {
		return err
	}
	if err := d.running.Kill(setup.Billing); err != nil {
		return err
	}
	d.say("billing was killed (SIGKILL), wherever it was")
	if err := d.until(ctx, func() bool { return d.story.Placed() >= demoOrders*3/4 }); err != nil {
		return err
	}
	if err := d.running.Start(setup.Billing); err != nil {
		return err
	}
	d.say("billing is started again")
	if err := d.running.Stop(ctx, setup.CatalogView); err != nil {
		return err
	}
	if err := d.running.Start(setup.CatalogView); err != nil {
		return err
	}
	d.say("catalog-view was restarted (SIGTERM)")
	return nil
}

func (d *demo) awaitEnd(ctx context.Context, before int) error {
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	return d.until(ctx, func() bool {
		progress, err := d.watcher.Progress(ctx)
		return err == nil && progress.Placed == 0 && progress.Total() >= before+demoOrders && progress.Shown == progress.Total()
	})
}

func (d *demo) until(ctx context.Context, reached func() bool) error {
	for !reached() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the story does not go on: %w", ctx.Err())
		}
	}
	return nil
}

// watch shows the progress: a line that changes on a terminal, a line a second elsewhere.
func (d *demo) watch(ctx context.Context) {
	terminal := isatty.IsTerminal(os.Stdout.Fd())
	every := time.Second
	if terminal {
		every = 100 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		progress, err := d.watcher.Progress(ctx)
		if err != nil {
			continue
		}
		d.print(progress.String(), terminal)
	}
}

func (d *demo) say(format string, args ...any) { d.print(fmt.Sprintf(format, args...), false) }

// print prints a line; a live one is overwritten by the next.
func (d *demo) print(line string, live bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.live {
		fmt.Print("\r\033[K")
	}
	fmt.Printf("%6.1fs  %s", time.Since(d.begun).Seconds(), line)
	if !live {
		fmt.Println()
	}
	d.live = live
}
