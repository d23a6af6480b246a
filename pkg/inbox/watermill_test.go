package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"
)

// The middleware asks nothing of the subscriber but that a nacked message comes again: here, Watermill's
// own GoChannel and router.
func TestAnySubscriberWillDo(t *testing.T) {
	t.Parallel()
	c := newCounter(t, nil, nil)
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	failures := 2
	router.AddConsumerHandler("test", "deposits", channel, func(msg *message.Message) error {
		if _, err := increment(msg); err != nil {
			return err
		}
		if failures--; failures >= 0 {
			return errors.New("not today")
		}
		return nil
	}).AddMiddleware(c.box.Middleware)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	for range 10 {
		msg := newMessage("")
		for range 3 { // each is acked when Publish returns
			require.NoError(t, channel.Publish("deposits", msg.Copy()))
		}
	}
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.Equal(t, 10, c.n(t))
	require.Equal(t, -10, failures, "ten were handled, and two failed before")
}
