package broker

import (
	"context"
	"fmt"
	"time"
)

// Depth returns how many messages wait in each of the queues, exactly and now; the management API's numbers
// are up to five seconds old. Those that a consumer holds unacked are not counted.
func Depth(url string, queues ...string) (map[string]int, error) {
	conn, err := dial(url, "depth")
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.depths(queues...)
}

// depths returns how many messages wait in each of the queues, by a channel of its own: a queue that is
// missing closes it.
func (c *connection) depths(queues ...string) (map[string]int, error) {
	ch, err := c.Channel()
	if err != nil {
		return nil, fmt.Errorf("depth of queues: %w", err)
	}
	defer func() { _ = ch.Close() }()
	depths := make(map[string]int, len(queues))
	for _, name := range queues {
		queue, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		if err != nil {
			return nil, fmt.Errorf("depth of queue %s: %w", name, err)
		}
		depths[name] = queue.Messages
	}
	return depths, nil
}

// watchEvery is how old the metric of the dead letters may be.
const watchEvery = 5 * time.Second

// watchQueues keeps the metric of the consumer's dead letters until ctx ends; while the broker is out of
// reach it stays as it was. Where one of the queues was deleted, it has all of them declared again, because
// the subscriber would go on to ask for it for ever.
func (c *Consumer) watchQueues(ctx context.Context) {
	if c.publisher.Await(ctx) != nil {
		return
	}
	for {
		if s, err := c.publisher.current(); err == nil {
			depths, err := s.conn.depths(c.queues()...)
			switch {
			case err == nil:
				c.metrics.deadLetters.WithLabelValues(c.queue).Set(float64(depths[DeadLetters(c.queue)]))
			case notFound(err):
				c.cfg.Logger.Error("a queue was deleted: connecting again to declare it", "error", err)
				s.conn.cut()
			}
		}
		if pause(ctx, watchEvery) != nil {
			return
		}
	}
}

// queues returns the names of all queues that the consumer declares.
func (c *Consumer) queues() []string {
	names := []string{c.queue, DeadLetters(c.queue)}
	for _, delay := range c.cfg.RetryDelays {
		names = append(names, retryQueue(c.queue, delay))
	}
	return names
}
