// Package httpapi is what the services' HTTP APIs have in common: problems in the form of RFC 9457, requests
// checked against an OpenAPI document, and a server that stops without dropping a request.
package httpapi

import (
	"encoding/json"
	"net/http"
)

// Problem is an error for an HTTP client, in the form of RFC 9457. The type is "about:blank", so the title
// is that of the status.
type Problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`          // what is wrong, and what to do about it
	Field  string `json:"field,omitempty"` // the field of the request that is wrong, such as lines[0].quantity
}

// NewProblem returns a problem with the status's title.
func NewProblem(status int, field, detail string) *Problem {
	return &Problem{Status: status, Title: http.StatusText(status), Detail: detail, Field: field}
}

// Error satisfies error, so that a handler can return a problem.
func (p *Problem) Error() string {
	if p.Field != "" {
		return p.Field + ": " + p.Detail
	}
	return p.Detail
}

// ServeHTTP writes the problem as the response.
func (p *Problem) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/problem+json")
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// WriteJSON writes body as the response.
func WriteJSON(w http.ResponseWriter, status int, body any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, err = w.Write(append(encoded, '\n'))
	return err
}
