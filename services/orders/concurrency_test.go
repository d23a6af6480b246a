package orders

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/postgres/postgrestest"
)

// atOnce calls fn n times side by side, with 0 to n-1, and returns the results.
func atOnce[T any](n int, fn func(int) T) []T {
	results := make([]T, n)
	start := make(chan struct{})
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			<-start
			results[i] = fn(i)
		})
	}
	close(start)
	calls.Wait()
	return results
}

func counts[T comparable](of []T) map[T]int {
	n := map[T]int{}
	for _, each := range of {
		n[each]++
	}
	return n
}

func TestStockIsSoldOnceHoweverManyWantIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	handler := newHandler(t, s)
	stocked(t, s, 10, "mug")
	statuses := atOnce(50, func(int) int {
		return request(t, handler, http.MethodPost, "/orders", orderOf(`{"sku":"mug","quantity":1}`)).Code
	})
	require.Equal(t, map[int]int{http.StatusCreated: 10, http.StatusConflict: 40}, counts(statuses))
	require.Zero(t, stock(t, s, "mug"))
	audit(t, s)
}

func TestOrdersOfTheSameProductsNeverWaitInACircle(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	s := serviceAt(t, url)
	skus := []string{"a", "b", "c", "d", "e", "f"}
	stocked(t, s, 1000, skus...)
	errs := atOnce(200, func(i int) error {
		lines := make([]Line, len(skus))
		for j, k := range rand.Perm(len(skus)) {
			lines[j] = Line{SKU: skus[k], Quantity: 1}
		}
		placed, err := s.PlaceOrder(t.Context(), "ada", visa, lines)
		if err != nil || i%2 == 0 {
			return err
		}
		_, err = s.CancelOrder(t.Context(), placed.id, "why not")
		return err
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	for _, sku := range skus {
		require.EqualValues(t, 900, stock(t, s, sku))
	}
	audit(t, s)
	require.NoError(t, s.db.Close())
	require.Zero(t, postgrestest.Deadlocks(t, url))
}

func TestProductIsCreatedOnceHoweverManyTry(t *testing.T) {
	t.Parallel()
	s := newService(t)
	handler := newHandler(t, s)
	for round := range 5 {
		body := productOf(fmt.Sprintf(`"mug-%d"`, round), `"a mug"`, `{"amount":100,"currency":"EUR"}`, `10`)
		statuses := atOnce(8, func(int) int { return request(t, handler, http.MethodPost, "/products", body).Code })
		require.Equal(t, map[int]int{http.StatusCreated: 1, http.StatusConflict: 7}, counts(statuses))
	}
	audit(t, s)
}

func TestStockIsGivenBackOnceHoweverManyEndTheOrder(t *testing.T) {
	t.Parallel()
	s := newService(t)
	stocked(t, s, 10, "mug", "tea")
	for range 5 {
		id := place(t, s, "tea", "mug")
		errs := atOnce(9, func(i int) error {
			switch i % 3 {
			case 0:
				return s.RejectOrder(t.Context(), paymentOf(id, 4))
			case 1:
				return s.cancelIfPlaced(t.Context(), id, "late")
			}
			_, err := s.CancelOrder(t.Context(), id, "why not")
			return err
		})
		for _, err := range errs {
			if err != nil {
				require.ErrorIs(t, err, ErrAlreadyEnded)
			}
		}
		require.Len(t, names(t, s, id), 2)
		require.EqualValues(t, 10, stock(t, s, "mug"))
		require.EqualValues(t, 10, stock(t, s, "tea"))
	}
	audit(t, s)
}

func TestRestocksAtOnceAllCount(t *testing.T) {
	t.Parallel()
	s := newService(t)
	stocked(t, s, 0, "mug")
	for _, err := range atOnce(20, func(int) error { _, err := s.Restock(t.Context(), "mug", 3); return err }) {
		require.NoError(t, err)
	}
	require.EqualValues(t, 60, stock(t, s, "mug"))
	audit(t, s)
}
