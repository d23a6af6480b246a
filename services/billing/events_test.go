package billing

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
)

// sequences returns all sequences in which index i comes times[i] times.
func sequences(times ...int) [][]int {
	var all [][]int
	for i, left := range times {
		if left == 0 {
			continue
		}
		fewer := slices.Clone(times)
		fewer[i]--
		for _, rest := range sequences(fewer...) {
			all = append(all, append([]int{i}, rest...))
		}
	}
	if all == nil {
		return [][]int{nil}
	}
	return all
}

// These are all sets of events that billing can get of an order: it is placed, and then rejected, or
// cancelled, or neither.
func TestOrderEventsEndTheSameInAnyOrderAndRepetition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Len(t, w.handlers(), 3)
	for name, test := range map[string]struct {
		sent func() []events.Event
		want books
	}{
		"placed": {
			func() []events.Event { return []events.Event{placed(visa)} },
			books{status: New, due: true, balance: 1999},
		},
		"placed and rejected": {
			func() []events.Event { e := placed(visa); return []events.Event{e, rejected(e.Order)} },
			books{status: New, due: true},
		},
		"placed and cancelled": {
			func() []events.Event { e := placed(visa); return []events.Event{e, cancelled(e.Order)} },
			books{status: Voided},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			three := slices.Repeat([]int{3}, len(test.sent()))
			for _, sequence := range sequences(three...) {
				sent := test.sent()
				ids := []string{uuid.NewString(), uuid.NewString()}
				for _, i := range sequence {
					require.NoError(t, w.deliver(t.Context(), ids[i], sent[i]))
				}
				got, err := w.booksOf(t.Context(), sent[0].(events.OrderPlaced).Order)
				require.NoError(t, err)
				require.Equal(t, test.want, got, sequence)
			}
		})
	}
}
