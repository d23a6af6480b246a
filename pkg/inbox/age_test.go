package inbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/fault"
	"onceshop/pkg/inbox"
)

func TestOnlyMessagesOfTheWindowAreHandled(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, func(cfg *inbox.Config) { cfg.Window, cfg.Margin = 10*time.Hour, 2*time.Hour })
	for _, test := range []struct {
		age     time.Duration
		refused string
	}{
		{0, ""},
		{8*time.Hour - time.Minute, ""},
		{8*time.Hour + time.Minute, "too old to deduplicate"},
		{9*time.Hour + time.Minute, "too old to deduplicate"}, // its row would still be there
		{1000 * time.Hour, "too old to deduplicate"},
		{-59 * time.Minute, ""}, // the publisher's clock may be ahead
		{-61 * time.Minute, "is in the future"},
	} {
		before := c.n(t)
		msg := occurred("", time.Now().Add(-test.age))
		err := c.handle(msg)
		if test.refused == "" {
			require.NoError(t, err, test.age)
			require.Equal(t, before+1, c.n(t), test.age)
			continue
		}
		require.ErrorContains(t, err, test.refused, test.age)
		require.Equal(t, fault.Permanent, fault.ClassOf(err))
		require.Equal(t, before, c.n(t), test.age)

		msg.Metadata.Set(events.Force, "nothing was handled that day")
		require.NoError(t, c.handle(msg))
		require.NoError(t, c.handle(msg))
		require.Equal(t, before+1, c.n(t), "what is forced is still handled once")
	}
}

func TestMessageWithoutATimeIsRefusedUnlessForced(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	for _, text := range []string{"", "yesterday", "2026-01-02", "1767312000"} {
		msg := newMessage("")
		msg.Metadata.Set(events.Time, text)
		err := c.handle(msg)
		require.ErrorContains(t, err, "the age of message "+msg.UUID+" is unknown", text)
		require.Equal(t, fault.Permanent, fault.ClassOf(err))
		msg.Metadata.Set(events.Force, "sent by hand")
		require.NoError(t, c.handle(msg))
	}
	require.Equal(t, 4, c.n(t))
}

// A repetition of a message that is still in the inbox is known, whatever its age.
func TestOldDuplicateIsADuplicate(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	msg := newMessage("")
	require.NoError(t, c.handle(msg))
	msg.Metadata.Set(events.Time, time.Now().Add(-inbox.DefaultWindow).Format(time.RFC3339))
	require.NoError(t, c.handle(msg))
	require.Equal(t, 1, c.n(t))
}

func TestWindowMustBeLongerThanRetriesAndMargin(t *testing.T) {
	t.Parallel()
	never := func(context.Context, func(*sqlx.Tx) error) error { return nil }
	for _, test := range []struct {
		cfg  inbox.Config
		want string
	}{
		{inbox.Config{}, ""},
		{inbox.Config{RetrySpan: inbox.DefaultWindow - inbox.DefaultMargin}, "a window of 168h0m0s is too short: want more than 168h0m0s (retries 167h0m0s + margin 1h0m0s)"},
		{inbox.Config{Window: time.Hour}, "a window of 1h0m0s is too short: want more than 1h0m0s (retries 0s + margin 1h0m0s)"},
		{inbox.Config{Window: time.Hour, Margin: 10 * time.Minute, RetrySpan: 50 * time.Minute}, "want more than 1h0m0s (retries 50m0s + margin 10m0s)"},
		{inbox.Config{Window: time.Hour + 1, Margin: 10 * time.Minute, RetrySpan: 50 * time.Minute}, ""},
		{inbox.Config{Margin: -1}, "a time is not negative"},
		{inbox.Config{RetrySpan: -1}, "a time is not negative"},
	} {
		test.cfg.Consumer, test.cfg.InTx = "test", never
		_, err := inbox.New(test.cfg)
		if test.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, test.want)
	}
	_, err := inbox.New(inbox.Config{InTx: never})
	require.ErrorContains(t, err, "required")
	_, err = inbox.New(inbox.Config{Consumer: "test"})
	require.ErrorContains(t, err, "required")
}
