package orders

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/httpapi"
)

// request returns the handler's response to a request with a JSON body, or with none.
func request(t *testing.T, handler http.Handler, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// requireProblem requires a problem in the form of RFC 9457.
func requireProblem(t *testing.T, w *httptest.ResponseRecorder, status int, field string) {
	t.Helper()
	require.Equal(t, status, w.Code, w.Body)
	require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	var problem httpapi.Problem
	decoder := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&problem))
	require.Equal(t, status, problem.Status)
	require.Equal(t, http.StatusText(status), problem.Title)
	require.NotEmpty(t, problem.Detail)
	require.Equal(t, field, problem.Field, problem.Detail)
	require.Equal(t, status == http.StatusMethodNotAllowed, w.Header().Get("Allow") != "")
}

const contents = `
SELECT jsonb_build_array(
    (SELECT jsonb_agg(p ORDER BY sku) FROM products p), (SELECT jsonb_agg(o ORDER BY id) FROM orders o),
    (SELECT jsonb_agg(l ORDER BY order_id, line) FROM order_lines l), (SELECT jsonb_agg(x ORDER BY x.id) FROM outbox x))`

// everything returns all that the service has stored.
func everything(t *testing.T, s *Service) (dump string) {
	t.Helper()
	require.NoError(t, s.db.GetContext(t.Context(), &dump, contents))
	return dump
}

func orderOf(lines string) string {
	return `{"customer":"ada","payment_method":"pm_card_visa","lines":[` + lines + `]}`
}

func productOf(sku, name, price, stock string) string {
	return fmt.Sprintf(`{"sku":%s,"name":%s,"price":%s,"stock":%s}`, sku, name, price, stock)
}

// furnish creates what the bad requests are about. It returns a rejected order, and lines whose sum is more
// than an int64 holds.
func furnish(t *testing.T, s *Service) (rejected, palaces string) {
	t.Helper()
	stocked(t, s, 10, "mug", "tea", "old")
	require.NoError(t, s.RemoveProduct(t.Context(), "old"))
	_, err := s.CreateProduct(t.Context(), "usd", "a dollar", events.Money{Amount: 100, Currency: "USD"}, 10)
	require.NoError(t, err)
	_, err = s.CreateProduct(t.Context(), "full", "all there is", euros(1), math.MaxInt64)
	require.NoError(t, err)
	lines := make([]string, 10)
	for i := range lines {
		sku := fmt.Sprintf("palace-%d", i)
		_, err = s.CreateProduct(t.Context(), sku, "a palace", euros(1e12), 1e6)
		require.NoError(t, err)
		lines[i] = fmt.Sprintf(`{"sku":%q,"quantity":1000000}`, sku)
	}
	rejected = place(t, s, "mug")
	require.NoError(t, s.RejectOrder(t.Context(), paymentOf(rejected, 4)))
	return rejected, strings.Join(lines, ",")
}

func TestBadRequestIsAProblemAndWritesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	handler := newHandler(t, s)
	rejected, palaces := furnish(t, s)
	none := uuid.NewString()
	const price = `{"amount":100,"currency":"EUR"}`

	for _, test := range []struct {
		name, method, path, body string
		status                   int
		field                    string
	}{
		{"no body", "POST", "/orders", ``, 400, ""},
		{"malformed", "POST", "/orders", `{"customer":`, 400, ""},
		{"not an object", "POST", "/orders", `[]`, 400, ""},
		{"null", "POST", "/orders", `null`, 400, ""},
		{"no lines", "POST", "/orders", orderOf(``), 400, "lines"},
		{"no field lines", "POST", "/orders", `{"customer":"ada","payment_method":"pm_card_visa"}`, 400, "lines"},
		{"no field customer", "POST", "/orders", `{"payment_method":"pm_card_visa","lines":[{"sku":"mug","quantity":1}]}`, 400, "customer"},
		{"no field sku", "POST", "/orders", orderOf(`{"quantity":1}`), 400, "lines[0].sku"},
		{"no field quantity", "POST", "/orders", orderOf(`{"sku":"mug","quantity":1},{"sku":"tea"}`), 400, "lines[1].quantity"},
		{"unknown field", "POST", "/orders", orderOf(`{"sku":"mug","quantity":1,"price":1}`), 400, "lines[0]"},
		{"field in capitals", "POST", "/orders", orderOf(`{"sku":"mug","quantity":1,"Quantity":99999999}`), 400, "lines[0]"},
		{"empty customer", "POST", "/orders", strings.Replace(orderOf(`{"sku":"mug","quantity":1}`), "ada", "", 1), 400, "customer"},
		{"customer with NUL", "POST", "/orders", strings.Replace(orderOf(`{"sku":"mug","quantity":1}`), "ada", `a\u0000`, 1), 400, "customer"},
		{"payment method", "POST", "/orders", strings.Replace(orderOf(`{"sku":"mug","quantity":1}`), visa, "cash", 1), 400, "payment_method"},
		{"quantity 0", "POST", "/orders", orderOf(`{"sku":"mug","quantity":0}`), 400, "lines[0].quantity"},
		{"quantity -1", "POST", "/orders", orderOf(`{"sku":"mug","quantity":-1}`), 400, "lines[0].quantity"},
		{"quantity 2147483648", "POST", "/orders", orderOf(`{"sku":"mug","quantity":2147483648}`), 400, "lines[0].quantity"},
		{"quantity 1e30", "POST", "/orders", orderOf(`{"sku":"mug","quantity":1e30}`), 400, "lines[0].quantity"},
		{"quantity 1.5", "POST", "/orders", orderOf(`{"sku":"mug","quantity":1.5}`), 400, "lines[0].quantity"},
		{"quantity in quotes", "POST", "/orders", orderOf(`{"sku":"mug","quantity":"1"}`), 400, "lines[0].quantity"},
		{"quantity null", "POST", "/orders", orderOf(`{"sku":"mug","quantity":null}`), 400, "lines[0].quantity"},
		{"quantity 1e0", "POST", "/orders", orderOf(`{"sku":"mug","quantity":1e0}`), 400, ""},
		{"unknown product", "POST", "/orders", orderOf(`{"sku":"mug","quantity":1},{"sku":"nope","quantity":1}`), 422, "lines[1].sku"},
		{"removed product", "POST", "/orders", orderOf(`{"sku":"old","quantity":1}`), 422, "lines[0].sku"},
		{"repeated product", "POST", "/orders", orderOf(`{"sku":"mug","quantity":1},{"sku":"mug","quantity":1}`), 422, "lines[1].sku"},
		{"mixed currencies", "POST", "/orders", orderOf(`{"sku":"mug","quantity":1},{"sku":"usd","quantity":1}`), 422, "lines[1].sku"},
		{"not enough", "POST", "/orders", orderOf(`{"sku":"tea","quantity":1},{"sku":"mug","quantity":11}`), 409, "lines[1].quantity"},
		{"total too large", "POST", "/orders", orderOf(palaces), 422, "lines[9].quantity"},
		{"too many lines", "POST", "/orders", orderOf(strings.TrimSuffix(strings.Repeat(`{"sku":"mug","quantity":1},`, 101), ",")), 400, "lines"},
		{"body over 1 MiB", "POST", "/orders", orderOf(`{"sku":"mug","quantity":1}` + strings.Repeat(" ", 1<<20)), 413, ""},

		{"price 0", "POST", "/products", productOf(`"new"`, `"new"`, `{"amount":0,"currency":"EUR"}`, `1`), 400, "price.amount"},
		{"price 1e30", "POST", "/products", productOf(`"new"`, `"new"`, `{"amount":1e30,"currency":"EUR"}`, `1`), 400, "price.amount"},
		{"price of 20 digits", "POST", "/products", productOf(`"new"`, `"new"`, `{"amount":18446744073709551617,"currency":"EUR"}`, `1`), 400, "price.amount"},
		{"price without currency", "POST", "/products", productOf(`"new"`, `"new"`, `{"amount":1}`, `1`), 400, "price.currency"},
		{"currency", "POST", "/products", productOf(`"new"`, `"new"`, `{"amount":1,"currency":"euro"}`, `1`), 400, "price.currency"},
		{"stock -1", "POST", "/products", productOf(`"new"`, `"new"`, price, `-1`), 400, "stock"},
		{"SKU with a slash", "POST", "/products", productOf(`"a/b"`, `"new"`, price, `1`), 400, "sku"},
		{"SKU of 65 bytes", "POST", "/products", productOf(`"`+strings.Repeat("a", 65)+`"`, `"new"`, price, `1`), 400, "sku"},
		{"name with a line break", "POST", "/products", productOf(`"new"`, `"a\nb"`, price, `1`), 400, "name"},
		{"product exists", "POST", "/products", productOf(`"mug"`, `"new"`, price, `1`), 409, ""},
		{"stock by PUT", "PUT", "/products/mug", `{"name":"mug","price":` + price + `,"stock":99}`, 400, ""},
		{"PUT of an unknown product", "PUT", "/products/nope", `{"name":"mug","price":` + price + `}`, 404, ""},
		{"PUT of a removed product", "PUT", "/products/old", `{"name":"mug","price":` + price + `}`, 404, ""},
		{"restock by 0", "POST", "/products/mug/restock", `{"quantity":0}`, 400, "quantity"},
		{"restock over the edge", "POST", "/products/full/restock", `{"quantity":1}`, 422, "quantity"},
		{"DELETE of an unknown product", "DELETE", "/products/nope", ``, 404, ""},
		{"DELETE of a removed product", "DELETE", "/products/old", ``, 404, ""},
		{"GET of a removed product", "GET", "/products/old", ``, 404, ""},
		{"GET of a bad SKU", "GET", "/products/a%20b", ``, 400, "sku"},

		{"order id", "GET", "/orders/1", ``, 400, "id"},
		{"order id in capitals", "GET", "/orders/" + strings.ToUpper("0193a5f0-6c1e-7d4a-9b57-3f1c5f2c8e01"), ``, 400, "id"},
		{"unknown order", "GET", "/orders/" + none, ``, 404, ""},
		{"cancel an unknown order", "POST", "/orders/" + none + "/cancel", ``, 404, ""},
		{"cancel a rejected order", "POST", "/orders/" + rejected + "/cancel", ``, 409, ""},
		{"cancel a bad id", "POST", "/orders/x/cancel", ``, 400, "id"},
		{"limit 0", "GET", "/orders?limit=0", ``, 400, "limit"},
		{"limit in words", "GET", "/products?limit=all", ``, 400, "limit"},
		{"limit 1001", "GET", "/products?limit=1001", ``, 400, "limit"},
		{"page after no id", "GET", "/orders?after=x", ``, 400, "after"},
		{"unknown path", "GET", "/order", ``, 404, ""},
		{"method of no path", "HEAD", "/products", ``, 405, ""},
		{"wrong method", "PATCH", "/orders", ``, 405, ""},
		{"method of another path", "DELETE", "/orders/" + none, ``, 405, ""},
		{"trailing slash", "GET", "/products/mug/", ``, 404, ""},
		{"two slashes", "GET", "/products//", ``, 404, ""},
		{"SKU that is a path", "POST", "/products", productOf(`".."`, `"new"`, price, `1`), 400, "sku"},
		{"GET of a path", "GET", "/products/..", ``, 404, ""},
		{"customer that is no text", "GET", "/orders?customer=%ff", ``, 400, "customer"},
		{"garbage after the body", "POST", "/products/mug/restock", `{"quantity":1}garbage`, 400, ""},
		{"two bodies", "POST", "/products/mug/restock", `{"quantity":1}{"quantity":2}`, 400, ""},
		{"root", "GET", "/", ``, 404, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := everything(t, s)
			requireProblem(t, request(t, handler, test.method, test.path, test.body), test.status, test.field)
			require.Equal(t, before, everything(t, s))
		})
	}
}

func TestWrongContentTypeIsAProblem(t *testing.T) {
	t.Parallel()
	s := newService(t)
	handler := newHandler(t, s)
	stocked(t, s, 10, "mug")
	before := everything(t, s)
	for _, contentType := range []string{"", "text/plain", "application/xml", "application/x-www-form-urlencoded", "application"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader(orderOf(`{"sku":"mug","quantity":1}`)))
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		requireProblem(t, w, http.StatusUnsupportedMediaType, "")
		require.Equal(t, before, everything(t, s))
	}
}

func TestOrderIsFoundWhereItsLocationSays(t *testing.T) {
	t.Parallel()
	s := newService(t)
	handler := newHandler(t, s)
	stocked(t, s, 10, "mug", "tea")
	placed := request(t, handler, http.MethodPost, "/orders", orderOf(`{"sku":"tea","quantity":2},{"sku":"mug","quantity":3}`))
	require.Equal(t, http.StatusCreated, placed.Code, placed.Body)
	found := request(t, handler, http.MethodGet, placed.Header().Get("Location"), "")
	require.Equal(t, http.StatusOK, found.Code)
	require.JSONEq(t, placed.Body.String(), found.Body.String())
	var state events.Order
	require.NoError(t, json.Unmarshal(found.Body.Bytes(), &state))
	require.Equal(t, euros(500), state.Total)
	require.Equal(t, "tea", state.Lines[0].SKU, "lines keep their order")
	for range 2 { // cancelling again changes nothing
		cancelled := request(t, handler, http.MethodPost, placed.Header().Get("Location")+"/cancel", "")
		require.Equal(t, http.StatusOK, cancelled.Code)
		require.NoError(t, json.Unmarshal(cancelled.Body.Bytes(), &state))
		require.Equal(t, "cancelled", state.Status)
		require.EqualValues(t, 2, state.Version)
	}
	audit(t, s)
}
