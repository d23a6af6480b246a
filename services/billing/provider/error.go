package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"onceshop/pkg/fault"
)

// Types of errors, under Stripe's names.
const (
	invalidRequest   = "invalid_request_error"
	cardError        = "card_error"
	idempotencyError = "idempotency_error"
	internalError    = "api_error"
)

// apiError is Stripe's error object; https://docs.stripe.com/api/errors says what its fields mean.
type apiError struct {
	status        int
	malformed     bool           // then it isn't stored under the idempotency key, as at Stripe
	Type          string         `json:"type"`
	Code          string         `json:"code,omitempty"`
	DeclineCode   string         `json:"decline_code,omitempty"`
	Message       string         `json:"message"`
	Param         string         `json:"param,omitempty"`
	PaymentIntent *paymentIntent `json:"payment_intent,omitempty"`
}

// Error returns the message.
func (e *apiError) Error() string { return e.Message }

// answer returns the error in Stripe's envelope.
func (e *apiError) answer() answer {
	body, err := json.Marshal(map[string]*apiError{"error": e})
	if err != nil {
		panic(err) // it is text, and JSON that the database has checked
	}
	return answer{Status: e.status, Body: body}
}

// refused is the refusal of a request by the state of things, with status 400. Code and param may be empty.
func refused(code, param, format string, args ...any) *apiError {
	return &apiError{status: 400, Type: invalidRequest, Code: code, Param: param, Message: fmt.Sprintf(format, args...)}
}

// malformed is the refusal of a request by its form, whatever the state of things; otherwise as refused.
func malformed(code, param, format string, args ...any) *apiError {
	err := refused(code, param, format, args...)
	err.malformed = true
	return err
}

// errorOf turns any error into Stripe's form. What is not a refusal is the server's fault, but for a row
// that is locked for too long, and for text that PostgreSQL can't store.
func errorOf(err error) *apiError {
	if known, ok := errors.AsType[*apiError](err); ok {
		return known
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case pg.Code == "55P03":
			return &apiError{status: 429, Type: invalidRequest, Code: "lock_timeout", Message: "Another request is accessing this object."}
		case strings.HasPrefix(pg.Code, "22"):
			return malformed("", "", "The request has characters that are not text.")
		}
	}
	failed := &apiError{status: 500, Type: internalError, Message: "An unexpected error; the provider's log has it."}
	if fault.ClassOf(err) == fault.Outage || errors.Is(err, context.DeadlineExceeded) {
		failed.status = 503
	}
	return failed
}
