package catalogview

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
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

func TestProductEventsEndTheSameInAnyOrderAndRepetition(t *testing.T) {
	t.Parallel()
	for name, lastIsRemoved := range map[string]bool{"changed": false, "removed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			for n, sequence := range sequences(2, 2, 2) {
				sku := fmt.Sprintf("sku-%d", n)
				for _, i := range sequence {
					// Removed at version 2, and known again at 3, or the other way round.
					p := productAt(int64(i+1), (i == 1) != (lastIsRemoved && i > 0))
					p.SKU = sku
					require.NoError(t, s.onProduct(t.Context(), p))
				}
				want := productAt(3, false)
				want.SKU = sku
				got, err := product(t.Context(), s.db, sku)
				if lastIsRemoved {
					require.ErrorIs(t, err, errNotFound, sequence)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, want, got, sequence)
			}
		})
	}
}

func TestOrderEventsEndTheSameInAnyOrderAndRepetition(t *testing.T) {
	t.Parallel()
	for _, history := range [][]string{
		{"placed", "confirmed"}, {"placed", "rejected"}, {"placed", "cancelled"}, {"placed", "confirmed", "cancelled"},
	} {
		t.Run(fmt.Sprint(history), func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			last := len(history) - 1
			confirmed := 0
			for _, sequence := range sequences(slices.Repeat([]int{2}, len(history))...) {
				id := uuid.NewString()
				for _, i := range sequence {
					o := orderAt(int64(i+1), history[i], line("mug", 3))
					o.OrderID = id
					require.NoError(t, s.onOrder(t.Context(), o))
				}
				got, err := order(t.Context(), s.db, id)
				require.NoError(t, err)
				require.Equal(t, []any{history[last], int64(last + 1)}, []any{got.Status, got.Version}, sequence)
				if history[last] == "confirmed" {
					confirmed += 3
				}
				sold := 0
				best, err := bestSellers(t.Context(), s.db, 10)
				require.NoError(t, err)
				for _, each := range best {
					sold += int(each.Quantity)
				}
				require.Equal(t, confirmed, sold, sequence)
			}
		})
	}
}
