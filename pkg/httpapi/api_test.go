package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/fault"
	"onceshop/pkg/httpapi"
)

const document = `
openapi: 3.0.3
info: { title: test, version: "1" }
paths:
  /things:
    get: { responses: { "200": { description: ok } } }
`

var errRule = errors.New("a rule of the service")

// newAPI returns an API whose only handler answers GET /things, and what it logs.
func newAPI(t *testing.T, handler httpapi.Handler) (http.Handler, *bytes.Buffer) {
	t.Helper()
	var logged bytes.Buffer
	api, err := httpapi.New([]byte(document), func(err error) *httpapi.Problem {
		if errors.Is(err, errRule) {
			return httpapi.NewProblem(http.StatusConflict, "thing", err.Error())
		}
		return nil
	}, slog.New(slog.NewJSONHandler(&logged, nil)))
	require.NoError(t, err)
	api.Handle("GET /things", handler)
	return api, &logged
}

func getThings(t *testing.T, handler http.Handler, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/things", nil)
	maps.Copy(request.Header, header)
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, request)
	return response
}

func TestErrorBecomesAProblem(t *testing.T) {
	t.Parallel()
	const secret = "password of the database"
	for _, test := range []struct {
		name   string
		err    error
		status int
		field  string
		logged bool
	}{
		{"rule", fmt.Errorf("place: %w", errRule), 409, "thing", false},
		{"problem", fmt.Errorf("wrapped: %w", httpapi.NewProblem(418, "pot", "short and stout")), 418, "pot", false},
		{"unexpected", errors.New(secret), 500, "", true},
		{"outage", fault.AsOutage(errors.New(secret)), 503, "", true},
		{"end of file", io.EOF, 503, "", true},
		{"deadline", context.DeadlineExceeded, 503, "", true},
		{"body too large", &http.MaxBytesError{Limit: 1}, 413, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			api, logged := newAPI(t, func(http.ResponseWriter, *http.Request) error { return test.err })
			response := getThings(t, api, nil)
			require.Equal(t, "application/problem+json", response.Header().Get("Content-Type"))
			var problem httpapi.Problem
			require.NoError(t, json.Unmarshal(response.Body.Bytes(), &problem))
			require.Equal(t, []any{test.status, test.status, test.field}, []any{response.Code, problem.Status, problem.Field})
			require.Equal(t, http.StatusText(test.status), problem.Title)
			require.NotContains(t, problem.Detail, secret)
			require.Equal(t, test.logged, logged.Len() > 0)
			if test.logged {
				require.Contains(t, logged.String(), test.err.Error())
				require.Contains(t, logged.String(), response.Header().Get("Correlation-Id"))
			}
			require.Equal(t, test.status == http.StatusServiceUnavailable, response.Header().Get("Retry-After") != "")
		})
	}
}

func TestCauseIsTheClientsWhereItIsWellFormed(t *testing.T) {
	t.Parallel()
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, test := range []struct {
		correlation, trace           string
		keepsCorrelation, keepsTrace bool
	}{
		{"order-7", trace, true, true},
		{"", "", false, true},
		{"with space", "00-xyz", false, false},
		{"line\nbreak", trace + "-more", false, false},
		{string(bytes.Repeat([]byte("x"), 129)), "ff" + trace[2:], false, false},
	} {
		var cause events.Cause
		api, _ := newAPI(t, func(_ http.ResponseWriter, r *http.Request) error {
			cause = events.CauseOf(r.Context())
			return nil
		})
		response := getThings(t, api, http.Header{"Correlation-Id": {test.correlation}, "Traceparent": {test.trace}})
		require.Equal(t, cause.CorrelationID, response.Header().Get("Correlation-Id"))
		require.Equal(t, test.keepsCorrelation, cause.CorrelationID == test.correlation)
		if !test.keepsCorrelation {
			require.NoError(t, uuid.Validate(cause.CorrelationID))
		}
		if test.keepsTrace {
			require.Equal(t, test.trace, cause.Traceparent)
		} else {
			require.Empty(t, cause.Traceparent)
		}
		require.Empty(t, cause.CausationID)
	}
}

func TestWrongDocumentIsAnError(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"{", "openapi: 3.0.3\npaths: { /x: { get: { parameters: [{ $ref: '#/nowhere' }] } } }"} {
		_, err := httpapi.New([]byte(wrong), nil, nil)
		require.ErrorContains(t, err, "OpenAPI document: ")
	}
}
