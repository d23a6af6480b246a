package broker

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Repeat publishes every nth event of the services a second time, some events later, until ctx ends; then it
// returns how many. It is for demonstrations and tests of what a broker may do anyway. started is called
// once nothing that is published afterwards is missed. The user at url must be allowed to declare a queue,
// to bind it to the services' exchanges, which must exist, and to publish to them.
func Repeat(ctx context.Context, url string, n int, services []string, started func()) (int, error) {
	conn, err := dial(url, "repeater")
	if err != nil {
		return 0, err
	}
	defer conn.cut()
	ch, err := conn.Channel()
	if err != nil {
		return 0, fmt.Errorf("repeat: %w", err)
	}
	queue, err := ch.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		return 0, fmt.Errorf("repeat: %w", err)
	}
	for _, service := range services {
		if err := ch.QueueBind(queue.Name, "#", service, false, nil); err != nil {
			return 0, fmt.Errorf("repeat events of %s: %w", service, err)
		}
	}
	deliveries, err := ch.ConsumeWithContext(ctx, queue.Name, "", true, true, false, false, nil)
	if err != nil {
		return 0, fmt.Errorf("repeat: %w", err)
	}
	started()
	return repeat(ctx, ch, deliveries, n)
}

// late is how many other events go by before one is repeated.
const late = 20

func repeat(ctx context.Context, ch *amqp.Channel, deliveries <-chan amqp.Delivery, n int) (int, error) {
	repeated := map[string]bool{}
	var waiting []amqp.Delivery
	for seen := 0; ; {
		select {
		case <-ctx.Done():
			return len(repeated), sendAgain(ch, waiting)
		case delivery, ok := <-deliveries:
			if !ok && ctx.Err() == nil {
				return len(repeated), fmt.Errorf("repeat: %w", amqp.ErrClosed)
			}
			if !ok || repeated[delivery.MessageId] { // its own work comes back
				continue
			}
			if seen++; seen%n == 0 {
				repeated[delivery.MessageId] = true
				waiting = append(waiting, delivery)
			}
			if seen%late == 0 {
				if err := sendAgain(ch, waiting); err != nil {
					return len(repeated), err
				}
				waiting = nil
			}
		}
	}
}

func sendAgain(ch *amqp.Channel, deliveries []amqp.Delivery) error {
	for _, delivery := range deliveries {
		if err := ch.Publish(delivery.Exchange, delivery.RoutingKey, false, false, amqp.Publishing{
			Headers: delivery.Headers, ContentType: delivery.ContentType, DeliveryMode: delivery.DeliveryMode,
			MessageId: delivery.MessageId, Type: delivery.Type, Timestamp: delivery.Timestamp,
			AppId: delivery.AppId, CorrelationId: delivery.CorrelationId, Body: delivery.Body,
		}); err != nil {
			return fmt.Errorf("repeat: %w", err)
		}
	}
	return nil
}
