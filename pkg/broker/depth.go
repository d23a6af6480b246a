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
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("depth of queues: %w", err)
	}
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

// deadLettersEvery is how old the metric of the dead letters may be.
const deadLettersEvery = 5 * time.Second

// watchDeadLetters keeps the metric of the consumer's dead letters until ctx ends. While the broker is out
// of reach it stays as it was.
func (c *Consumer) watchDeadLetters(ctx context.Context) {
	if c.publisher.Await(ctx) != nil {
		return
	}
	for {
		if n, err := c.publisher.depth(DeadLetters(c.queue)); err == nil {
			c.metrics.deadLetters.WithLabelValues(c.queue).Set(float64(n))
		}
		if pause(ctx, deadLettersEvery) != nil {
			return
		}
	}
}

// depth returns how many messages wait in the queue, by a channel of its own: a missing queue closes it.
func (p *Publisher) depth(name string) (int, error) {
	s, err := p.current()
	if err != nil {
		return 0, err
	}
	ch, err := s.conn.Channel()
	if err != nil {
		return 0, err
	}
	defer func() { _ = ch.Close() }()
	queue, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
	return queue.Messages, err
}
