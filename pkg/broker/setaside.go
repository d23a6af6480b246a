package broker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

// Metadata of a message that was set aside, parked or dead.
const (
	Attempts     = "shop-attempts"      // deliveries that failed, each with up to three tries
	LastError    = "shop-error"         // of the last try
	FirstFailure = "shop-first-failure" // RFC 3339
	LastFailure  = "shop-last-failure"  // RFC 3339
	OriginQueue  = "shop-origin-queue"
	HandledBy    = "shop-handler" // the consuming service
)

// ofFailure says of a header that a failure left it, or the redrive after one.
func ofFailure(header string) bool {
	switch header {
	case Attempts, LastError, FirstFailure, LastFailure, OriginQueue, HandledBy, events.Force:
		return true
	}
	return false
}

const maxErrorText = 1000 // bytes of LastError

// setAside moves a message whose handler failed out of the way of those behind it: to the queue's next
// retry queue, from which it comes back after the delay, or, after the last delay and at once for a
// permanent error, to the dead letters. The copy is confirmed by the broker before the original is acked,
// so a crash in between leaves two, never none.
//
// When the consumer stops, it is the message that goes back to its queue. So does one whose outage lasts
// too long to keep it in hand; as a copy, because the broker counts the deliveries of the original, and its
// limit would make a dead letter of it in the end.
func (c *Consumer) setAside(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		_, err := next(msg)
		if err == nil || errors.Is(err, errStopping) {
			return nil, err
		}
		if fault.ClassOf(err) == fault.Outage {
			c.log(msg).Warn("outage: message put back into its queue", "error", err)
			if err = c.publisher.publishTo(queues(c.cfg.Service), c.queue, marshal(msg)); err == nil {
				c.metrics.setAside.WithLabelValues(c.queue, c.queue).Inc()
			}
			return nil, err
		}
		attempts := attemptsOf(msg) + 1
		to := DeadLetters(c.queue)
		if fault.ClassOf(err) != fault.Permanent && attempts <= len(c.cfg.RetryDelays) {
			to = retryQueue(c.queue, c.cfg.RetryDelays[attempts-1])
		}
		return nil, c.move(msg, to, attempts, err)
	}
}

// attemptsOf returns how many deliveries of msg have failed. What is no such number counts as none: anybody
// may have sent the message.
func attemptsOf(msg *message.Message) int {
	attempts, err := strconv.ParseUint(msg.Metadata.Get(Attempts), 10, 16)
	if err != nil {
		return 0
	}
	return int(attempts)
}

// move sends a copy of msg to the queue, again and again while the broker is out of reach. Its error nacks
// the original.
func (c *Consumer) move(msg *message.Message, to string, attempts int, cause error) error {
	log := c.log(msg).With("to", to, "attempts", attempts, "cause", cause)
	publishing := marshal(withFailure(msg, c.cfg.Service, c.queue, attempts, cause))
	for started, wait := time.Now(), outagePause; ; wait = min(2*wait, maxOutagePause) {
		err := c.publisher.publishTo(queues(c.cfg.Service), to, publishing)
		if err == nil {
			log.Error("handler failed: message set aside")
			c.metrics.setAside.WithLabelValues(c.queue, to).Inc()
			return nil
		}
		log.Warn("message can't be set aside now: trying again", "error", err)
		if time.Since(started) > c.cfg.outageLimit {
			return fmt.Errorf("set aside: %w", err)
		}
		if err := waitUnlessStopping(msg.Context(), wait); err != nil {
			return err
		}
	}
}

func withFailure(msg *message.Message, service, queue string, attempts int, cause error) *message.Message {
	set := msg.Copy()
	now := time.Now().UTC().Format(time.RFC3339Nano)
	set.Metadata.Set(Attempts, strconv.Itoa(attempts))
	set.Metadata.Set(LastError, shortened(cause.Error()))
	set.Metadata.Set(LastFailure, now)
	set.Metadata.Set(OriginQueue, queue)
	set.Metadata.Set(HandledBy, service)
	if set.Metadata.Get(FirstFailure) == "" {
		set.Metadata.Set(FirstFailure, now)
	}
	return set
}

func shortened(text string) string {
	if len(text) > maxErrorText {
		text = text[:maxErrorText] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}
