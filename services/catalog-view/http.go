package catalogview

import (
	_ "embed"
	"errors"
	"log/slog"
	"net/http"

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
	api.Handle("GET /products", s.getProducts)
	api.Handle("GET /products/{sku}", s.getProduct)
	api.Handle("GET /orders/{id}", s.getOrder)
	api.Handle("GET /best-sellers", s.getBestSellers)
	return api, nil
}

func problemOf(err error) *httpapi.Problem {
	if errors.Is(err, errNotFound) {
		return httpapi.NewProblem(http.StatusNotFound, "", err.Error())
	}
	return nil
}

func (s *Service) getProducts(w http.ResponseWriter, r *http.Request) error {
	page, err := products(r.Context(), s.db, r.URL.Query().Get("after"), httpapi.Limit(r))
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, map[string]any{"products": page})
}

func (s *Service) getProduct(w http.ResponseWriter, r *http.Request) error {
	found, err := product(r.Context(), s.db, r.PathValue("sku"))
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, found)
}

func (s *Service) getOrder(w http.ResponseWriter, r *http.Request) error {
	found, err := order(r.Context(), s.db, r.PathValue("id"))
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, found)
}

func (s *Service) getBestSellers(w http.ResponseWriter, r *http.Request) error {
	best, err := bestSellers(r.Context(), s.db, httpapi.Limit(r))
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, map[string]any{"best_sellers": best})
}
