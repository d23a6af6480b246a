package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/google/uuid"

	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

const maxBody = 1 << 20 // bytes of a request's body

// Handler handles a request that the OpenAPI document allows. It returns an error instead of writing one.
type Handler func(w http.ResponseWriter, r *http.Request) error

// API serves handlers whose requests are checked against an OpenAPI document first.
type API struct {
	router   routers.Router
	mux      *http.ServeMux
	problems func(error) *Problem
	logger   *slog.Logger
}

// New returns an API for the OpenAPI document. problems turns the service's own errors into problems, and
// returns nil for others, which become 503 for an outage (fault.Outage) and 500 otherwise, and are logged.
func New(document []byte, problems func(error) *Problem, logger *slog.Logger) (*API, error) {
	loaded, err := openapi3.NewLoader().LoadFromData(document)
	if err != nil {
		return nil, fmt.Errorf("OpenAPI document: %w", err)
	}
	router, err := gorillamux.NewRouter(loaded)
	if err != nil {
		return nil, fmt.Errorf("OpenAPI document: %w", err)
	}
	return &API{router: router, mux: http.NewServeMux(), problems: problems, logger: logger}, nil
}

// Handle registers a handler for a pattern of net/http's ServeMux, such as "GET /orders/{id}".
func (a *API) Handle(pattern string, handler Handler) {
	a.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if err := handler(w, r); err != nil {
			a.fail(w, r, err)
		}
	})
}

// ServeHTTP checks the request against the document and hands it to its handler. The correlation id is the
// client's (Correlation-Id header) or a new one; it is in the context for the events, and in the response.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	cause := causeOf(r)
	w.Header().Set("Correlation-Id", cause.CorrelationID)
	r = r.WithContext(events.WithCause(r.Context(), cause))
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := a.check(r); err != nil {
		a.fail(w, r, err)
		return
	}
	a.mux.ServeHTTP(w, r)
}

// check returns what the document has against the request.
func (a *API) check(r *http.Request) error {
	for name, values := range r.URL.Query() {
		if slices.ContainsFunc(values, func(v string) bool { return !utf8.ValidString(v) }) {
			return NewProblem(http.StatusBadRequest, name, "not UTF-8")
		}
	}
	route, params, err := a.router.FindRoute(r)
	switch {
	case r.URL.Path != path.Clean(r.URL.Path): // ServeMux would redirect it
		return NewProblem(http.StatusNotFound, "", "no such path: "+r.URL.Path)
	case errors.Is(err, routers.ErrMethodNotAllowed):
		return &notAllowed{NewProblem(http.StatusMethodNotAllowed, "", r.Method+" is not offered here"), a.allowed(r)}
	case err != nil:
		return NewProblem(http.StatusNotFound, "", "no such path: "+r.URL.Path)
	}
	if body := route.Operation.RequestBody; body != nil && r.ContentLength != 0 && body.Value.Content.Get(r.Header.Get("Content-Type")) == nil {
		return NewProblem(http.StatusUnsupportedMediaType, "", "the body must be application/json, and its Content-Type say so")
	}
	return openapi3filter.ValidateRequest(r.Context(), &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
	})
}

// notAllowed is the problem of a method that a path doesn't have, with those that it has.
type notAllowed struct {
	*Problem
	methods string
}

// Unwrap returns the problem.
func (n *notAllowed) Unwrap() error { return n.Problem }

// allowed returns the methods of the request's path, as in the header Allow (RFC 9110, 10.2.1).
func (a *API) allowed(r *http.Request) string {
	var methods []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPost, http.MethodPut} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, _, err := a.router.FindRoute(other); err == nil {
			methods = append(methods, method)
		}
	}
	return strings.Join(methods, ", ")
}

func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	if refused, ok := errors.AsType[*notAllowed](err); ok {
		w.Header().Set("Allow", refused.methods)
	}
	problem := a.problems(err)
	if problem == nil {
		problem = problemOf(err)
	}
	log := a.logger.With("method", r.Method, "path", r.URL.Path, "status", problem.Status,
		"correlation_id", events.CauseOf(r.Context()).CorrelationID, "error", err)
	if problem.Status >= http.StatusInternalServerError {
		log.Error("request failed")
	} else {
		log.Debug("request refused")
	}
	problem.ServeHTTP(w, r)
}

func problemOf(err error) *Problem {
	if problem, ok := errors.AsType[*Problem](err); ok {
		return problem
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return NewProblem(http.StatusRequestEntityTooLarge, "", fmt.Sprintf("the body may have %d bytes", maxBody))
	}
	if invalid, ok := errors.AsType[*openapi3filter.RequestError](err); ok {
		return invalidRequest(invalid)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return NewProblem(499, "", "the client went away")
	case fault.ClassOf(err) == fault.Outage, errors.Is(err, context.DeadlineExceeded):
		return NewProblem(http.StatusServiceUnavailable, "", "the database does not answer: try again")
	}
	return NewProblem(http.StatusInternalServerError, "", "an unexpected error; the service's log has it under the correlation id")
}

// invalidRequest names the field that breaks the document, and the rule.
func invalidRequest(err *openapi3filter.RequestError) *Problem {
	field := ""
	if err.Parameter != nil {
		field = err.Parameter.Name
	}
	detail := err.Error()
	if schema, ok := errors.AsType[*openapi3.SchemaError](err.Err); ok {
		detail = schema.Reason
		if path := schema.JSONPointer(); len(path) > 0 {
			field = joined(path)
		}
	} else if err.Err != nil {
		detail = strings.TrimSuffix(err.Reason, ".") + ": " + err.Err.Error()
	}
	return NewProblem(http.StatusBadRequest, field, detail)
}

// joined turns the path lines, 0, sku into lines[0].sku.
func joined(path []string) string {
	var field strings.Builder
	for _, part := range path {
		switch {
		case part != "" && strings.Trim(part, "0123456789") == "":
			field.WriteString("[" + part + "]")
		case field.Len() > 0:
			field.WriteString("." + part)
		default:
			field.WriteString(part)
		}
	}
	return field.String()
}

// Body decodes the request's body, which the document has allowed, into v.
func Body(r *http.Request, v any) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return NewProblem(http.StatusBadRequest, "", "the body is not what the OpenAPI document says: "+err.Error())
	}
	return nil
}

// Limit returns the query's limit, the length of a page. The document gives its bounds; its default is 100.
func Limit(r *http.Request) int {
	n, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		return 100
	}
	return n
}

var (
	correlationID = regexp.MustCompile(`^[!-~]{1,128}$`)
	// Version 00 of W3C Trace Context, section 3.2.
	traceparent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)
)

// causeOf takes the correlation id and the trace context of the request where they are well-formed.
func causeOf(r *http.Request) events.Cause {
	cause := events.Cause{CorrelationID: r.Header.Get("Correlation-Id"), Traceparent: r.Header.Get("Traceparent")}
	if !correlationID.MatchString(cause.CorrelationID) {
		cause.CorrelationID = uuid.NewString()
	}
	if !traceparent.MatchString(cause.Traceparent) {
		cause.Traceparent = ""
	}
	return cause
}
