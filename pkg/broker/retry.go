package broker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"onceshop/pkg/fault"
)

const (
	quickTries = 3                     // of a transient error, before the message is set aside
	quickPause = 50 * time.Millisecond // before the second try; doubles, with jitter

	outagePause    = 100 * time.Millisecond // between tries during an outage; doubles, with jitter
	maxOutagePause = 5 * time.Second
	// An outage is waited out for ten minutes at most, because RabbitMQ closes a channel that owes an ack
	// for 30 (consumer_timeout). Then the message goes back to the queue, and the next delivery waits.
	defaultOutageLimit = 10 * time.Minute

	// A connection that breaks in the midst of a message's work, so many times in one delivery, is taken for
	// the message's doing: some twenty seconds. One that can't be made in the first place never is.
	maxBrokeOff = 10

	pingTimeout = 2 * time.Second
)

// errStopping ends the tries of a message because its consumer stops; the message goes back to the queue.
// Watermill's router logs no error that is a cancellation.
var errStopping = fmt.Errorf("the consumer stops: %w", context.Canceled)

// retry calls next until it succeeds, by the class of its error (package fault):
//
//   - permanent: the error is returned at once.
//   - transient: next is called three times in all, a fraction of a second apart. A panic is transient too.
//   - outage: next is called again until the outage is over, for ten minutes at most. The message and its
//     place are kept, so that all handlers together pause the queue, and nothing counts as an attempt.
//
// A deadline that passed is an outage if the ping fails as well, transient if not. A connection that breaks
// off is transient at the tenth time (fault.BrokeOff). Once the consumer stops, a message that fails is
// neither tried again nor set aside, but goes back to its queue.
func (c *Consumer) retry(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		started, pauseFor, brokeOff := time.Now(), outagePause, 0
		for try := 1; ; {
			_, err := next(msg)
			if err == nil {
				return nil, nil
			}
			if stopping(msg.Context()) {
				c.log(msg).Warn("handler failed at the stop: message given back", "error", err)
				return nil, errStopping
			}
			if fault.BrokeOff(err) {
				if brokeOff++; brokeOff >= maxBrokeOff {
					err = fault.AsTransient(err)
				}
			}
			class := c.classOf(msg.Context(), err)
			c.metrics.failures.WithLabelValues(c.queue, class.String()).Inc()
			wait := quickPause << (try - 1)
			switch {
			case class == fault.Permanent, class == fault.Transient && try == quickTries:
				return nil, err
			case class == fault.Outage && time.Since(started) > c.cfg.outageLimit:
				return nil, fault.AsOutage(err)
			case class == fault.Transient:
				try++
			case class == fault.Outage:
				wait = pauseFor
				pauseFor = min(2*pauseFor, maxOutagePause)
			}
			c.log(msg).Warn("handler failed: trying again", "class", class, "error", err)
			if waitUnlessStopping(msg.Context(), wait) != nil {
				return nil, errStopping
			}
		}
	}
}

func (c *Consumer) classOf(ctx context.Context, err error) fault.Class {
	class := fault.ClassOf(err)
	if class != fault.Transient || !timedOut(err) || c.cfg.Ping == nil {
		return class
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if c.cfg.Ping(ctx) != nil {
		return fault.Outage
	}
	return class
}

func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// waitUnlessStopping waits between half of d and d, or returns errStopping.
func waitUnlessStopping(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-Stopping(ctx):
		return errStopping
	}
}

// recovered makes an error of a panic, with where it happened. Watermill's router would nack the message, and
// the broker deliver it at once again.
func recovered(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (_ []*message.Message, err error) {
		defer func() {
			if reason := recover(); reason != nil {
				err = fmt.Errorf("the handler panicked: %v\n%s", reason, debug.Stack())
			}
		}()
		return next(msg)
	}
}

// timeout gives each try a context of its own that ends after limit, and restores the message's context
// afterwards. Watermill's Timeout leaves the ended one behind, so that the next try fails at once.
func timeout(limit time.Duration) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			defer msg.SetContext(ctx)
			limited, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			msg.SetContext(limited)
			return next(msg)
		}
	}
}

// RetrySpan is the longest time from a message's first delivery to its last one, if it fails each time: the
// delays, and each delivery's quick tries with all the time that they may take. Outages and stops are not
// in it, nor the time that the message waits behind others.
func (c ConsumerConfig) RetrySpan() time.Duration {
	c.setDefaults()
	span := time.Duration(len(c.RetryDelays)+1) * quickTries * c.HandlerLimit
	for _, delay := range c.RetryDelays {
		span += delay
	}
	return span
}
