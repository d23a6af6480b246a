package broker

import "time"

// KeepInHand shortens how long a consumer waits out an outage before it puts the message back.
func (c *ConsumerConfig) KeepInHand(limit time.Duration) { c.outageLimit = limit }

// KillAfterConfirm makes the next Redrive end as if its process were killed between the confirm of the copy
// and the ack of the original.
func (l *Letters) KillAfterConfirm() { l.confirmed = l.conn.cut }
