package inbox_test

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"onceshop/pkg/events"
	"onceshop/pkg/inbox"
	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
)

// exampleDB returns a new database with an inbox and an empty account. The function drops it.
func exampleDB() (*sqlx.DB, func()) {
	url, drop, err := postgrestest.Create(context.Background(), inbox.Migrations())
	must(err)
	db, err := postgres.Open(postgres.Config{URL: url})
	must(err)
	_, err = db.Exec(`CREATE TABLE account AS SELECT 0 AS balance`)
	must(err)
	return db, func() { must(db.Close()); must(drop()) }
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Five deliveries of three deposits.
func Example() {
	db, closeDB := exampleDB()
	defer closeDB()
	box, err := inbox.New(inbox.Config{
		Consumer: "accounts",
		InTx: func(ctx context.Context, fn func(*sqlx.Tx) error) error {
			return postgres.InTx(ctx, db, fn)
		},
	})
	must(err)

	applied := false
	handle := box.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		amount, err := strconv.Atoi(string(msg.Payload))
		if err != nil {
			return nil, err
		}
		_, err = inbox.Tx(ctx).ExecContext(ctx, `UPDATE account SET balance = balance + $1`, amount)
		applied = true
		return nil, err
	})

	deposit := func(id, amount string) *message.Message {
		msg := message.NewMessage(id, []byte(amount))
		msg.Metadata.Set(events.Time, time.Now().Format(time.RFC3339Nano))
		return msg
	}
	fifty, thirty, five := deposit("1", "50"), deposit("2", "30"), deposit("3", "5")
	for _, delivered := range []*message.Message{fifty, thirty, fifty, thirty, five} {
		applied = false
		_, err := handle(delivered)
		must(err)
		var balance int
		must(db.Get(&balance, `SELECT balance FROM account`))
		fmt.Printf("deposit of %s: applied %t, balance %d\n", delivered.Payload, applied, balance)
	}
	// Output:
	// deposit of 50: applied true, balance 50
	// deposit of 30: applied true, balance 80
	// deposit of 50: applied false, balance 80
	// deposit of 30: applied false, balance 80
	// deposit of 5: applied true, balance 85
}

// A webhook has no Watermill handler, and claims by itself.
func ExampleClaim() {
	db, closeDB := exampleDB()
	defer closeDB()
	ctx := context.Background()

	receive := func(id, body string) error {
		return postgres.InTx(ctx, db, func(tx *sqlx.Tx) error {
			fresh, err := inbox.Claim(ctx, tx, "webhook", id, inbox.Fingerprint("charge.succeeded", []byte(body)))
			if err != nil || !fresh {
				return err
			}
			_, err = tx.ExecContext(ctx, `UPDATE account SET balance = balance + $1::int`, body)
			return err
		})
	}
	fmt.Println(receive("evt_1", "50"))
	fmt.Println(receive("evt_1", "50"))
	fmt.Println(receive("evt_1", "70"))
	var balance int
	must(db.Get(&balance, `SELECT balance FROM account`))
	fmt.Println("balance", balance)
	// Output:
	// <nil>
	// <nil>
	// message evt_1: another message with this id was handled before
	// balance 50
}
