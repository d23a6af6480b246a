// Package story is what happens in a shop: products are put up, clients order, some cards are declined, some
// orders cancelled. The demonstration tells it, and tests run it while things break.
package story

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"onceshop/pkg/events"
)

// Client calls the API of orders.
type Client struct {
	url  string
	http *http.Client
}

// NewClient returns a client of the API of orders at url.
func NewClient(url string) *Client {
	return &Client{url: url, http: &http.Client{Timeout: 20 * time.Second}}
}

// StatusError is an answer that is no success.
type StatusError struct {
	Status int
	Body   string
}

// Error returns the status and the body.
func (e *StatusError) Error() string { return fmt.Sprintf("%d: %s", e.Status, e.Body) }

// Line is one product of an order.
type Line struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
}

// Order is what an order's client asks for.
type Order struct {
	Customer      string `json:"customer"`
	PaymentMethod string `json:"payment_method"`
	Lines         []Line `json:"lines"`
}

// Place places an order.
func (c *Client) Place(ctx context.Context, order Order) (placed events.Order, err error) {
	return placed, c.call(ctx, http.MethodPost, "/orders", order, &placed)
}

// Cancel cancels an order.
func (c *Client) Cancel(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodPost, "/orders/"+id+"/cancel", nil, nil)
}

// Get returns an order.
func (c *Client) Get(ctx context.Context, id string) (found events.Order, err error) {
	return found, c.call(ctx, http.MethodGet, "/orders/"+id, nil, &found)
}

// PutUp creates the product, or adds to its stock if it exists.
func (c *Client) PutUp(ctx context.Context, sku, name string, price events.Money, stock int64) error {
	product := map[string]any{"sku": sku, "name": name, "price": price, "stock": stock}
	err := c.call(ctx, http.MethodPost, "/products", product, nil)
	if answer, ok := err.(*StatusError); ok && answer.Status == http.StatusConflict { //nolint:errorlint // call returns it bare
		return c.call(ctx, http.MethodPost, "/products/"+sku+"/restock", map[string]int64{"quantity": stock}, nil)
	}
	return err
}

// call sends body and decodes the answer into result, where these are not nil.
func (c *Client) call(ctx context.Context, method, path string, body, result any) error {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return &StatusError{response.StatusCode, string(bytes.TrimSpace(answer))}
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer, result)
}
