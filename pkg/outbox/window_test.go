package outbox

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
)

// A nack that comes while the next batch is being read: that batch has later rows of the key, for the
// refused one was known when the read began.
func TestRefusalDuringAReadLetsNoLaterMessageOut(t *testing.T) {
	t.Parallel()
	w := newWindow(1)
	first, second := row{id: 1, key: "a", msg: message.NewMessage("1", nil)}, row{id: 2, key: "a", msg: message.NewMessage("2", nil)}
	w.add([]row{first})
	require.Len(t, w.take(), 1)
	known, _, _ := w.excluded()
	require.Equal(t, []int64{1}, known) // the read begins
	w.settle(first, broker.ErrNacked)
	w.add([]row{second}) // the read ends
	require.Empty(t, w.take())

	confirmed, refused := w.outcome()
	require.Empty(t, confirmed)
	require.Len(t, refused, 1)
	w.saved(0, 1)
	known, _, _ = w.excluded()
	require.Empty(t, known, "both are read again once the key is no longer held")
	w.add([]row{first, second})
	require.Equal(t, []row{first}, w.take())
}
