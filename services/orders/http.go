package orders

import (
	_ "embed"
	"errors"
	"fmt"
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
	api.Handle("GET /products", s.getProducts)
	api.Handle("POST /products", s.postProduct)
	api.Handle("GET /products/{sku}", s.getProduct)
	api.Handle("PUT /products/{sku}", s.putProduct)
	api.Handle("DELETE /products/{sku}", s.deleteProduct)
	api.Handle("POST /products/{sku}/restock", s.postRestock)
	api.Handle("GET /orders", s.getOrders)
	api.Handle("POST /orders", s.postOrder)
	api.Handle("GET /orders/{id}", s.getOrder)
	api.Handle("POST /orders/{id}/cancel", s.postCancel)
	return api, nil
}

// problemOf is what clients see of the domain's rules.
func problemOf(err error) *httpapi.Problem {
	status := 0
	for rule, code := range map[error]int{
		ErrUnknownProduct:  http.StatusNotFound,
		ErrUnknownOrder:    http.StatusNotFound,
		ErrProductExists:   http.StatusConflict,
		ErrNotEnoughStock:  http.StatusConflict,
		ErrAlreadyEnded:    http.StatusConflict,
		ErrTooMuchStock:    http.StatusUnprocessableEntity,
		ErrMixedCurrencies: http.StatusUnprocessableEntity,
		ErrTotalTooLarge:   http.StatusUnprocessableEntity,
		ErrRepeatedProduct: http.StatusUnprocessableEntity,
	} {
		if errors.Is(err, rule) {
			status = code
		}
	}
	if status == 0 {
		return nil
	}
	line, ok := errors.AsType[*LineError](err)
	switch {
	case errors.Is(err, ErrTooMuchStock):
		return httpapi.NewProblem(status, "quantity", err.Error())
	case !ok:
		return httpapi.NewProblem(status, "", err.Error())
	}
	if status == http.StatusNotFound {
		status = http.StatusUnprocessableEntity // the path exists; the body names what doesn't
	}
	field := "sku"
	if errors.Is(err, ErrNotEnoughStock) || errors.Is(err, ErrTotalTooLarge) {
		field = "quantity"
	}
	return httpapi.NewProblem(status, fmt.Sprintf("lines[%d].%s", line.Line, field), line.Err.Error())
}

func (s *Service) postOrder(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Customer      string `json:"customer"`
		PaymentMethod string `json:"payment_method"`
		Lines         []Line `json:"lines"`
	}
	if err := httpapi.Body(r, &body); err != nil {
		return err
	}
	placed, err := s.PlaceOrder(r.Context(), body.Customer, body.PaymentMethod, body.Lines)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/orders/"+placed.id)
	return httpapi.WriteJSON(w, http.StatusCreated, placed.state())
}

func (s *Service) postCancel(w http.ResponseWriter, r *http.Request) error {
	cancelled, err := s.CancelOrder(r.Context(), r.PathValue("id"), "cancelled by the customer")
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, cancelled.state())
}

func (s *Service) getOrder(w http.ResponseWriter, r *http.Request) error {
	found, err := oneOrder(r.Context(), s.db, readOrder, r.PathValue("id"))
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, found.state())
}

func (s *Service) getOrders(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	after := query.Get("after")
	if after == "" {
		after = "00000000-0000-0000-0000-000000000000"
	}
	found, err := manyOrders(r.Context(), s.db, readOrders, query.Get("customer"), after, httpapi.Limit(r))
	if err != nil {
		return err
	}
	page := make([]events.Order, len(found))
	for i, o := range found {
		page[i] = o.state()
	}
	return httpapi.WriteJSON(w, http.StatusOK, map[string]any{"orders": page})
}

type productBody struct {
	SKU   string       `json:"sku"`
	Name  string       `json:"name"`
	Price events.Money `json:"price"`
	Stock int64        `json:"stock"`
}

func (s *Service) postProduct(w http.ResponseWriter, r *http.Request) error {
	var body productBody
	if err := httpapi.Body(r, &body); err != nil {
		return err
	}
	created, err := s.CreateProduct(r.Context(), body.SKU, body.Name, body.Price, body.Stock)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/products/"+created.sku)
	return httpapi.WriteJSON(w, http.StatusCreated, created.state())
}

func (s *Service) putProduct(w http.ResponseWriter, r *http.Request) error {
	var body productBody
	if err := httpapi.Body(r, &body); err != nil {
		return err
	}
	changed, err := s.ChangeProduct(r.Context(), r.PathValue("sku"), body.Name, body.Price)
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, changed.state())
}

func (s *Service) postRestock(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Quantity int64 `json:"quantity"`
	}
	if err := httpapi.Body(r, &body); err != nil {
		return err
	}
	changed, err := s.Restock(r.Context(), r.PathValue("sku"), body.Quantity)
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, changed.state())
}

func (s *Service) deleteProduct(w http.ResponseWriter, r *http.Request) error {
	if err := s.RemoveProduct(r.Context(), r.PathValue("sku")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Service) getProduct(w http.ResponseWriter, r *http.Request) error {
	found, err := readOneProduct(r.Context(), s.db, r.PathValue("sku"))
	if err != nil {
		return err
	}
	return httpapi.WriteJSON(w, http.StatusOK, found.state())
}

func (s *Service) getProducts(w http.ResponseWriter, r *http.Request) error {
	found, err := readPageOfProducts(r.Context(), s.db, r.URL.Query().Get("after"), httpapi.Limit(r))
	if err != nil {
		return err
	}
	page := make([]events.Product, len(found))
	for i, p := range found {
		page[i] = p.state()
	}
	return httpapi.WriteJSON(w, http.StatusOK, map[string]any{"products": page})
}
