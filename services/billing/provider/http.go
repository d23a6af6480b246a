package provider

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

const (
	maxBody      = 64 << 10         // bytes of a request's body
	maxKey       = 255              // bytes of an idempotency key, as at Stripe
	requestLimit = 20 * time.Second // of a request's work, whether its client waits or not
)

// api is safe for concurrent use.
type api struct {
	db     *sqlx.DB
	logger *slog.Logger
}

// NewHandler returns the provider's HTTP interface to the data in db, to which Migrations have been
// applied. A confirmation is answered latency after its effect is committed: a client that gives up
// meanwhile does not know the outcome.
func NewHandler(db *sqlx.DB, latency time.Duration, logger *slog.Logger) http.Handler {
	a := &api{db, logger}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/payment_intents", a.endpoint(createIntent, 0, "amount", "currency", "payment_method",
		"metadata", "confirm", "confirmation_method", "payment_method_types", "automatic_payment_methods"))
	mux.Handle("GET /v1/payment_intents/{id}", a.endpoint(getIntent, 0))
	mux.Handle("POST /v1/payment_intents/{id}/confirm", a.endpoint(confirmIntent, latency))
	mux.Handle("POST /v1/payment_intents/{id}/cancel", a.endpoint(cancelIntent, 0))
	mux.Handle("POST /v1/refunds", a.endpoint(createRefund, 0, "payment_intent", "amount"))
	mux.Handle("GET /v1/refunds/{id}", a.endpoint(getRefund, 0))
	mux.Handle("GET /v1/refunds", a.endpoint(listRefunds, 0, "payment_intent", "limit"))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, &apiError{status: 404, Type: invalidRequest, Message: "Unrecognized request: " + r.Method + " " + r.URL.Path})
	})
	return a.authenticate(mux)
}

// authenticate lets every secret key pass, as Bearer token or as the user of Basic authentication.
func (a *api) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, _, ok := r.BasicAuth()
		if !ok {
			key = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		}
		if !strings.HasPrefix(key, "sk_") {
			a.fail(w, r, &apiError{status: 401, Type: invalidRequest, Message: "Invalid API key: want a secret one, sk_…"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// endpoint serves an operation that takes the parameters named, and answers after delay.
func (a *api) endpoint(run operation, delay time.Duration, names ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		result, err := a.do(r, run, names)
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
		}
		if err != nil {
			a.fail(w, r, err)
			return
		}
		if result.replayed {
			w.Header().Set("Idempotent-Replayed", "true")
		}
		write(w, result)
	})
}

// do does what the request asks for to the end, even if the client goes away meanwhile.
func (a *api) do(r *http.Request, run operation, names []string) (answer, error) {
	params, err := parameters(r, names)
	if err != nil {
		return answer{}, err
	}
	key := ""
	if r.Method == http.MethodPost {
		key = r.Header.Get("Idempotency-Key")
	}
	if len(key) > maxKey {
		return answer{}, malformed("", "", "An idempotency key has up to %d bytes.", maxKey)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), requestLimit)
	defer cancel()
	return once(ctx, a.db, key, r.URL.Path+"?"+params.Encode(), func(tx *sqlx.Tx) (answer, error) {
		object, err := run(ctx, tx, r.PathValue("id"), params)
		if known, ok := errors.AsType[*apiError](err); ok && !known.malformed {
			return known.answer(), nil
		}
		if err != nil {
			return answer{}, err
		}
		body, err := json.Marshal(object)
		return answer{Status: http.StatusOK, Body: body}, err
	})
}

// parameters returns the request's parameters, those of the body if it is a POST. One that is not named is
// refused.
func parameters(r *http.Request, names []string) (url.Values, error) {
	if err := r.ParseForm(); err != nil {
		return nil, malformed("", "", "The parameters can't be read: %v", err)
	}
	params := r.Form
	if r.Method == http.MethodPost {
		params = r.PostForm
	}
	for _, param := range slices.Sorted(maps.Keys(params)) {
		if name, _, _ := strings.Cut(param, "["); !slices.Contains(names, name) {
			return nil, malformed("parameter_unknown", param, "The parameter %s is unknown or not simulated.", param)
		}
	}
	return params, nil
}

func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	result := errorOf(err).answer()
	log := a.logger.With("method", r.Method, "path", r.URL.Path, "status", result.Status, "error", err)
	if result.Status >= http.StatusInternalServerError {
		log.Error("request failed")
	} else {
		log.Debug("request refused")
	}
	write(w, result)
}

func write(w http.ResponseWriter, result answer) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(result.Status)
	_, _ = w.Write(append(result.Body, '\n'))
}
