package broker_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/events"
)

// Each delivery of a message has to be read alike: the inbox asks for its type and its time.
func TestHeadersThatSayTheSameTwiceAreReadAlike(t *testing.T) {
	t.Parallel()
	delivery := amqp.Delivery{Acknowledger: &amqp.Channel{}, Headers: amqp.Table{
		"time": "2020-01-01T00:00:00Z", "cloudEvents:time": "2026-01-01T00:00:00Z",
		"type": "plain", "cloudEvents:type": "attribute", "correlation_id": "plain", "cloudEvents:correlationid": "attribute",
	}}
	for range 100 {
		msg, err := broker.Marshaler{}.Unmarshal(delivery)
		require.NoError(t, err)
		require.Equal(t, []string{"2026-01-01T00:00:00Z", "attribute", "attribute"},
			[]string{msg.Metadata.Get(events.Time), msg.Metadata.Get(events.Type), msg.Metadata.Get(events.CorrelationID)})
	}
}
