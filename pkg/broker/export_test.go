package broker

import "time"

// KeepInHand shortens how long a consumer waits out an outage before it puts the message back.
func (c *ConsumerConfig) KeepInHand(limit time.Duration) { c.outageLimit = limit }
