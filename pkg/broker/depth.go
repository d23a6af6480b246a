package broker

import (
	"fmt"
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
