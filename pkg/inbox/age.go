package inbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

// ErrTooOld is the permanent error of a message that the inbox doesn't know, and that is older than the
// window less the margin: perhaps it was handled, and its row was deleted since. Whoever knows that it was
// not may set events.Force.
var ErrTooOld = errors.New("too old to deduplicate")

// CheckWindow returns an error, which shows the sum, unless the window is longer than the margin and the
// time for which a message may be tried again. It is New's check, for those who read a window from their
// settings.
func CheckWindow(window, margin, retrySpan time.Duration) error {
	if need := retrySpan + margin; window <= need {
		return fmt.Errorf("a window of %s is too short: want more than %s (retries %s + margin %s)", window, need, retrySpan, margin)
	}
	return nil
}

// checkAge returns a permanent error unless the message occurred within the window less the margin, or is
// forced (events.Force): an operator then has it handled whatever its age. It is still handled once for as long
// as the inbox knows it, a window from then on.
//
// A message without a time, or with one that can't be read or is more than half the margin ahead of now, is
// refused too: nobody could tell for how long its row is needed.
func (c *Config) checkAge(msg *message.Message, now time.Time) error {
	if msg.Metadata.Get(events.Force) != "" {
		return nil
	}
	occurred, err := time.Parse(time.RFC3339Nano, msg.Metadata.Get(events.Time))
	if err != nil {
		return fault.AsPermanent(fmt.Errorf("inbox: the age of message %s is unknown: metadata %q: %w", msg.UUID, events.Time, err))
	}
	age, limit := now.Sub(occurred), c.Window-c.Margin
	switch {
	case age > limit:
		return fault.AsPermanent(fmt.Errorf("message %s occurred at %s, more than %s ago: %w", msg.UUID, occurred.Format(time.RFC3339), limit, ErrTooOld))
	case age < -c.Margin/2:
		return fault.AsPermanent(fmt.Errorf("inbox: the age of message %s is unknown: %s is in the future", msg.UUID, occurred.Format(time.RFC3339)))
	}
	return nil
}
