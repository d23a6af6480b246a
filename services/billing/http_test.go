package billing

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/httpapi"
)

func (w *world) get(t *testing.T, path string) *httptest.ResponseRecorder {
	t.Helper()
	handler, err := w.handler(w.logger)
	require.NoError(t, err)
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return response
}

func TestPaymentIsFoundByItsOrderAndByItsID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	require.NoError(t, w.settleAll(t.Context()))
	want := w.paymentOf(t, event.Order).state()

	var byOrder struct{ Payments []events.Payment }
	require.NoError(t, json.Unmarshal(w.get(t, "/payments?order_id="+event.OrderID).Body.Bytes(), &byOrder))
	require.Equal(t, []events.Payment{want}, byOrder.Payments)
	var byID events.Payment
	require.NoError(t, json.Unmarshal(w.get(t, "/payments/"+want.PaymentID).Body.Bytes(), &byID))
	require.Equal(t, want, byID)
	require.JSONEq(t, `{"payments":[]}`, w.get(t, "/payments?order_id="+uuid.NewString()).Body.String())
}

func TestBadRequestIsAProblem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, test := range []struct {
		path   string
		status int
		field  string
	}{
		{"/payments", 400, "order_id"},
		{"/payments?order_id=x", 400, "order_id"},
		{"/payments/x", 400, "id"},
		{"/payments/" + uuid.NewString(), 404, ""},
		{"/accounts", 404, ""},
	} {
		response := w.get(t, test.path)
		require.Equal(t, "application/problem+json", response.Header().Get("Content-Type"), test.path)
		var problem httpapi.Problem
		require.NoError(t, json.Unmarshal(response.Body.Bytes(), &problem))
		require.Equal(t, []any{test.status, test.status, test.field}, []any{response.Code, problem.Status, problem.Field}, test.path)
	}
}
