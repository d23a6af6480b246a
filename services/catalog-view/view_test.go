package catalogview

import (
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/httpapi"
)

func TestLateChangeDoesNotBringARemovedProductBack(t *testing.T) {
	t.Parallel()
	s := newService(t)
	require.NoError(t, s.onProduct(t.Context(), productAt(1, false)))
	require.NoError(t, s.onProduct(t.Context(), productAt(3, true)))
	require.NoError(t, s.onProduct(t.Context(), productAt(2, false)))
	require.Equal(t, 1, staleSeen(t, s))
	var problem httpapi.Problem
	require.Equal(t, http.StatusNotFound, get(t, s, "/products/mug", &problem).Code)
	var page struct{ Products []events.Product }
	require.Equal(t, http.StatusOK, get(t, s, "/products", &page).Code)
	require.Empty(t, page.Products)

	require.NoError(t, s.onProduct(t.Context(), productAt(4, false))) // created again
	var shown events.Product
	require.Equal(t, http.StatusOK, get(t, s, "/products/mug", &shown).Code)
	require.Equal(t, productAt(4, false), shown)
	require.Equal(t, 1, staleSeen(t, s))
}

func TestRemovalThatComesFirstIsATombstone(t *testing.T) {
	t.Parallel()
	s := newService(t)
	require.NoError(t, s.onProduct(t.Context(), productAt(3, true)))
	require.NoError(t, s.onProduct(t.Context(), productAt(2, false)))
	var problem httpapi.Problem
	require.Equal(t, http.StatusNotFound, get(t, s, "/products/mug", &problem).Code)
}

func TestRepeatedAndStaleEventsAreCounted(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o := orderAt(2, "confirmed", line("mug", 3))
	older := o
	older.Version, older.Status = 1, "placed"
	for _, each := range []events.Order{o, o, older} {
		require.NoError(t, s.onOrder(t.Context(), each))
	}
	require.Equal(t, 2, staleSeen(t, s))
	for _, version := range []int64{2, 2, 1} {
		require.NoError(t, s.onProduct(t.Context(), productAt(version, false)))
	}
	require.Equal(t, 4, staleSeen(t, s))
}

func TestBestSellersCountConfirmedOrdersOnly(t *testing.T) {
	t.Parallel()
	s := newService(t)
	require.NoError(t, s.onProduct(t.Context(), productAt(1, false)))
	for _, each := range []events.Order{
		orderAt(1, "placed", line("mug", 100)), orderAt(2, "rejected", line("mug", 100)), orderAt(3, "cancelled", line("tea", 100)),
		orderAt(2, "confirmed", line("mug", 2), line("tea", 1)), orderAt(2, "confirmed", line("tea", 4), line("pot", 2)),
	} {
		require.NoError(t, s.onOrder(t.Context(), each))
	}
	sold := orderAt(2, "confirmed", line("mug", 50))
	require.NoError(t, s.onOrder(t.Context(), sold))
	sold.Version, sold.Status = 3, "cancelled"
	require.NoError(t, s.onOrder(t.Context(), sold))

	var best struct {
		BestSellers []BestSeller `json:"best_sellers"`
	}
	require.Equal(t, http.StatusOK, get(t, s, "/best-sellers", &best).Code)
	require.Equal(t, []BestSeller{{"tea", "", 5}, {"mug", "a mug", 2}, {"pot", "", 2}}, best.BestSellers)
	require.Equal(t, http.StatusOK, get(t, s, "/best-sellers?limit=1", &best).Code)
	require.Equal(t, []BestSeller{{"tea", "", 5}}, best.BestSellers)
}

func TestBadRequestIsAProblem(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct {
		path   string
		status int
		field  string
	}{
		{"/products/none", 404, ""},
		{"/products/a%20b", 400, "sku"},
		{"/products?limit=0", 400, "limit"},
		{"/products?limit=many", 400, "limit"},
		{"/products?after=a/b", 400, "after"},
		{"/orders/" + uuid.NewString(), 404, ""},
		{"/orders/1", 400, "id"},
		{"/best-sellers?limit=1001", 400, "limit"},
		{"/nothing", 404, ""},
		{"/orders", 404, ""},
	} {
		var problem httpapi.Problem
		response := get(t, s, test.path, &problem)
		require.Equal(t, "application/problem+json", response.Header().Get("Content-Type"), test.path)
		require.Equal(t, []any{test.status, test.status, test.field}, []any{response.Code, problem.Status, problem.Field}, test.path)
		require.Equal(t, http.StatusText(test.status), problem.Title)
		require.NotEmpty(t, problem.Detail)
	}
}

func TestPagesShowEachProductOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var want, got []string
	for _, sku := range []string{"c", "a", "e", "b", "d"} {
		p := productAt(1, sku == "e")
		p.SKU = sku
		require.NoError(t, s.onProduct(t.Context(), p))
	}
	want = []string{"a", "b", "c", "d"}
	for path := "/products?limit=3"; path != ""; {
		var page struct{ Products []events.Product }
		require.Equal(t, http.StatusOK, get(t, s, path, &page).Code)
		path = ""
		for _, p := range page.Products {
			got = append(got, p.SKU)
			path = "/products?limit=3&after=" + p.SKU
		}
	}
	require.Equal(t, want, got)
}
