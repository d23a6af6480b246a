package billing

import (
	_ "embed"
	"errors"
	"log/slog"
	"net/http"

	"onceshop/pkg/events"
	"onceshop/pkg/httpapi"
)

//go:embed openapi.yaml
var openapi []byte

// handler serves the API that openapi.yaml describes.
func (s *Service) handler(logger *slog.Logger) (http.Handler, error) {
	api, err := httpapi.New(openapi, problemOf, logger)
	if err != nil {
		return nil, err
	}
	api.Handle("GET /payments", s.getPayments)
	api.Handle("GET /payments/{id}", s.getPayment)
	return api, nil
}

func problemOf(err error) *httpapi.Problem {
	if errors.Is(err, errUnknownPayment) {
		return httpapi.NewProblem(http.StatusNotFound, "", err.Error())
	}
	return nil
}

func (s *Service) getPayment(w http.ResponseWriter, r *http.Request) error {
	found, err := onePayment(r.Context(), s.db, readByID, r.PathValue("id"))
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, found.state())
}

func (s *Service) getPayments(w http.ResponseWriter, r *http.Request) error {
	payments := []events.Payment{}
	found, err := onePayment(r.Context(), s.db, readByOrder, r.URL.Query().Get("order_id"))
	switch {
	case err == nil:
		payments = append(payments, found.state())
	case !errors.Is(err, errUnknownPayment):
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, map[string]any{"payments": payments})
}
