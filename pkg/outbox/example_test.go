package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"

	"onceshop/pkg/broker"
	"onceshop/pkg/broker/brokertest"
	"onceshop/pkg/events"
	"onceshop/pkg/outbox"
	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// A change and its event, committed and rolled back.
func Example() {
	ctx := context.Background()
	databaseURL, dropDatabase, err := postgrestest.Create(ctx, outbox.Migrations())
	must(0, err)
	defer func() { must(0, dropDatabase()) }()
	amqpURL, removeVHost, err := brokertest.Create()
	must(0, err)
	defer func() { must(0, removeVHost()) }()

	db := must(postgres.Open(postgres.Config{URL: databaseURL}))
	must(db.Exec(`CREATE TABLE products (sku text PRIMARY KEY, stock int)`))
	box := must(outbox.New(db, "/onceshop/orders"))
	change := func(stock int64, result error) {
		err := box.InTx(ctx, func(tx *sqlx.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO products VALUES ('mug', $1)
				ON CONFLICT (sku) DO UPDATE SET stock = excluded.stock`, stock); err != nil {
				return err
			}
			event := events.ProductChanged{Product: events.Product{SKU: "mug", Version: 100 - stock, Name: "Mug", Stock: stock}}
			if err := box.PublishTx(ctx, tx, event); err != nil {
				return err
			}
			return result
		})
		fmt.Println("stock", stock, "error", err)
	}
	change(10, nil)
	change(9, errors.New("card declined"))
	change(8, nil)

	publisher := must(broker.NewPublisher(broker.PublisherConfig{URL: amqpURL, Service: "orders"}))
	relay := must(outbox.NewRelay(outbox.RelayConfig{Outbox: box, URL: databaseURL, Publisher: publisher}))
	running, stop := context.WithCancel(ctx)
	var both sync.WaitGroup
	both.Go(func() { must(0, publisher.Run(running)) })
	both.Go(func() { must(0, relay.Run(running)) })
	must(0, publisher.Await(ctx)) // its exchange and queue are there
	for range 2 {
		fmt.Println(receive(amqpURL, broker.Unrouted("orders")))
	}
	stop()
	both.Wait()
	must(0, db.Close())
	// Output:
	// stock 10 error <nil>
	// stock 9 error card declined
	// stock 8 error <nil>
	// orders.product_changed.v1 {"sku":"mug","version":90,"name":"Mug","price":{"amount":0,"currency":""},"stock":10,"removed":false}
	// orders.product_changed.v1 {"sku":"mug","version":92,"name":"Mug","price":{"amount":0,"currency":""},"stock":8,"removed":false}
}

// receive waits for a message in the queue. Nobody consumes the events of this example, so they are unrouted.
func receive(url, queue string) string {
	conn := must(amqp.Dial(url))
	defer func() { _ = conn.Close() }()
	ch := must(conn.Channel())
	for {
		delivery, ok, err := ch.Get(queue, true)
		must(0, err)
		if ok {
			return delivery.Type + " " + string(delivery.Body)
		}
	}
}
