package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// deliveryLimit is how often the broker itself delivers a message before it moves it to the dead letters.
// It is a backstop for a consumer that dies on a message; this package's own retries give up long before.
// It is explicit because the default differs: none in RabbitMQ 3.10, 20 in 4.0.
const deliveryLimit = 100

// Queue returns the name of the queue in which consumer receives the events of source.
func Queue(consumer, source string) string { return consumer + "." + source }

// DeadLetters returns the name of the queue that holds what the consumer of queue could not handle.
func DeadLetters(queue string) string { return queue + ".dead-letters" }

// retryQueue returns the name of the queue in which a message waits for delay, such as q.retry.10s.
func retryQueue(queue string, delay time.Duration) string {
	text := delay.String() // 10s, 1m0s, 1h0m0s
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return queue + ".retry." + text
}

// Unrouted returns the name of the queue that holds events of the service for which no queue was bound.
func Unrouted(service string) string { return service + ".unrouted" }

// queues is the direct exchange that binds each queue of a service under its own name. It stands in for
// the default exchange, which permissions can't restrict, and is the dead-letter exchange too.
func queues(service string) string { return service + ".queues" }

// bound is the marker that a consumer leaves once all bindings of its queue are made. AMQP can tell
// whether an exchange exists, but not what is bound to a queue.
func bound(queue string) string { return queue + ".bound" }

// queueArguments of a queue of service whose rejected and expired messages go to the queue next, or
// nowhere if that is empty. At-least-once dead lettering needs reject-publish (RabbitMQ manual, Quorum
// Queues): the broker keeps a message until its dead letter is confirmed.
func queueArguments(service, next string) amqp.Table {
	arguments := amqp.Table{
		"x-queue-type":     "quorum",
		"x-overflow":       "reject-publish",
		"x-delivery-limit": int64(deliveryLimit),
	}
	if next == "" {
		// Whoever reads such a queue is an operator who puts most of it back. Past the limit a message
		// would be dropped, so the limit is out of reach.
		arguments["x-delivery-limit"] = int64(1_000_000)
		return arguments
	}
	arguments["x-dead-letter-exchange"] = queues(service)
	arguments["x-dead-letter-routing-key"] = next
	arguments["x-dead-letter-strategy"] = "at-least-once"
	return arguments
}

// unroutedLimit bounds the queue of events that nobody consumes; beyond it the broker refuses them, and
// the outbox keeps them.
const unroutedLimit = 100_000

// declarePublisher declares what service publishes to: its exchange and, for events that no queue is
// bound for, the alternate exchange with its queue.
func declarePublisher(ch *amqp.Channel, service string) error {
	unrouted := Unrouted(service)
	if err := ch.ExchangeDeclare(unrouted, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		return declared("exchange", unrouted, err)
	}
	arguments := queueArguments(service, "")
	arguments["x-max-length"] = int64(unroutedLimit)
	if err := declareQueue(ch, service, unrouted, arguments); err != nil {
		return err
	}
	if err := ch.QueueBind(unrouted, "", unrouted, false, nil); err != nil {
		return declared("binding of", unrouted, err)
	}
	alternate := amqp.Table{"alternate-exchange": unrouted}
	err := ch.ExchangeDeclare(service, amqp.ExchangeTopic, true, false, false, false, alternate)
	return declared("exchange", service, err)
}

// declareConsumer declares the queue in which service receives the handled events of source, its retry
// queues, from which messages come back after their delay, and its dead letters; binds the names that it
// handles; and leaves the marker.
//
// It unbinds nothing. While one version of the service replaces another, both run on the same queue, and one
// that unbound what it doesn't handle would cut the other off: those events would be nobody's.
func declareConsumer(ch *amqp.Channel, queue string, cfg ConsumerConfig) error {
	service := cfg.Service
	if err := declareQueue(ch, service, DeadLetters(queue), queueArguments(service, "")); err != nil {
		return err
	}
	for _, delay := range cfg.RetryDelays {
		arguments := queueArguments(service, queue)
		arguments["x-message-ttl"] = delay.Milliseconds()
		if err := declareQueue(ch, service, retryQueue(queue, delay), arguments); err != nil {
			return err
		}
	}
	if err := declareQueue(ch, service, queue, queueArguments(service, DeadLetters(queue))); err != nil {
		return err
	}
	for name := range cfg.Handlers {
		if err := ch.QueueBind(queue, name, cfg.Source, false, nil); err != nil {
			return declared("binding of", queue, err)
		}
	}
	err := ch.ExchangeDeclare(bound(queue), amqp.ExchangeFanout, true, false, false, false, nil)
	return declared("exchange", bound(queue), err)
}

// declareQueue declares a durable queue and binds it to its service's direct exchange under its name.
func declareQueue(ch *amqp.Channel, service, name string, arguments amqp.Table) error {
	if err := ch.ExchangeDeclare(queues(service), amqp.ExchangeDirect, true, false, false, false, nil); err != nil {
		return declared("exchange", queues(service), err)
	}
	if _, err := ch.QueueDeclare(name, true, false, false, false, arguments); err != nil {
		return declared("queue", name, err)
	}
	return declared("binding of", name, ch.QueueBind(name, name, queues(service), false, nil))
}

// declared wraps the error of a declaration, if there is one, and says what to do about a contradiction.
func declared(what, name string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*amqp.Error](err); ok && e.Code == amqp.PreconditionFailed {
		return fmt.Errorf("%s %s exists with other arguments: empty it, delete it, and start the service again (docs/operating.md, \"Changing a queue\"): %w", what, name, err)
	}
	return fmt.Errorf("declare %s %s: %w", what, name, err)
}

// awaitExchange returns once the exchange exists. Another service declares it, at its own pace.
func awaitExchange(ctx context.Context, conn *connection, exchange string, logger *slog.Logger) error {
	return await(ctx, conn, "exchange "+exchange, logger, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(exchange, amqp.ExchangeTopic, true, false, false, false, nil)
	})
}

// awaitQueue returns once the queue exists and its consumer has made all its bindings.
func awaitQueue(ctx context.Context, conn *connection, queue string, logger *slog.Logger) error {
	return await(ctx, conn, "queue "+queue, logger, func(ch *amqp.Channel) error {
		if _, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil {
			return err
		}
		return ch.ExchangeDeclarePassive(bound(queue), amqp.ExchangeFanout, true, false, false, false, nil)
	})
}

// await repeats look until it succeeds. Each look has a channel of its own, because "not found" closes it.
func await(ctx context.Context, conn *connection, what string, logger *slog.Logger, look func(*amqp.Channel) error) error {
	for logged := false; ; {
		ch, err := conn.Channel()
		if err != nil {
			return fmt.Errorf("look for %s: %w", what, err)
		}
		err = look(ch)
		_ = ch.Close()
		if err == nil {
			return nil
		}
		if !notFound(err) {
			return fmt.Errorf("look for %s: %w", what, err)
		}
		if !logged {
			logger.Info("waiting until another service declares it", "missing", what)
			logged = true
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}
