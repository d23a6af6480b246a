package events_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"onceshop/pkg/events"
)

// optional are the fields that an event may leave out.
var optional = []string{"reason", "decline_code"}

// bodyOf returns the golden body, to be changed. Its numbers keep all their digits.
func bodyOf(t *testing.T, name string) any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(golden(t, name).Body))
	decoder.UseNumber()
	var body any
	require.NoError(t, decoder.Decode(&body))
	return body
}

func encode(t *testing.T, body any) []byte {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	return text
}

// eachObject calls visit for each object in value, with the path to it.
func eachObject(value any, path string, visit func(path string, object map[string]any)) {
	switch value := value.(type) {
	case map[string]any:
		visit(path, value)
		for field, inner := range value {
			eachObject(inner, strings.TrimPrefix(path+"."+field, "."), visit)
		}
	case []any:
		for i, element := range value {
			eachObject(element, fmt.Sprintf("%s[%d]", path, i), visit)
		}
	}
}

func TestMissingFieldIsNamed(t *testing.T) {
	t.Parallel()
	for _, s := range samples() {
		t.Run(s.event.Name(), func(t *testing.T) {
			t.Parallel()
			body := bodyOf(t, s.event.Name())
			var paths []string
			eachObject(body, "", func(path string, object map[string]any) {
				for _, field := range slices.Sorted(maps.Keys(object)) {
					at := strings.TrimPrefix(path+"."+field, ".")
					paths = append(paths, at)
					was := object[field]
					delete(object, field)
					_, absent := s.decode(encode(t, body))
					object[field] = nil
					_, null := s.decode(encode(t, body))
					object[field] = was
					if slices.Contains(optional, field) {
						require.NoError(t, absent)
						continue
					}
					for _, err := range []error{absent, null} {
						require.ErrorContains(t, err, fmt.Sprintf("missing field %q", at))
						require.ErrorContains(t, err, s.event.Name())
					}
				}
			})
			_, isOrder := body.(map[string]any)["lines"]
			if isOrder {
				require.Subset(t, paths, []string{"lines[0].sku", "lines[1].unit_price.amount", "total.currency", "placed_at"})
			}
			require.Contains(t, paths, "version")
		})
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	t.Parallel()
	for _, s := range samples() {
		t.Run(s.event.Name(), func(t *testing.T) {
			t.Parallel()
			body := bodyOf(t, s.event.Name())
			eachObject(body, "", func(_ string, object map[string]any) { object["gift_wrap"] = "stripes" })
			decoded, err := s.decode(encode(t, body))
			require.NoError(t, err)
			require.Equal(t, s.event, decoded)
		})
	}
}

func TestEventNeedsIDAndVersion(t *testing.T) {
	t.Parallel()
	for _, s := range samples() {
		id, version := s.event.Aggregate()
		for _, wrong := range []struct{ from, to string }{
			{fmt.Sprintf(`"version":%d`, version), `"version":0`},
			{fmt.Sprintf(`"version":%d`, version), `"version":-1`},
			{fmt.Sprintf(`"%s"`, id), `""`},
		} {
			t.Run(s.event.Name()+" "+wrong.to, func(t *testing.T) {
				t.Parallel()
				body := string(encode(t, s.event))
				require.Contains(t, body, wrong.from)
				_, err := s.decode([]byte(strings.Replace(body, wrong.from, wrong.to, 1)))
				require.ErrorContains(t, err, "an event needs an id and a version of 1 or more")
			})
		}
	}
}

func TestWrongTypeIsNamed(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"payment_id":"p","version":"1"}`, `{"payment_id":"p","version":1.5}`, `{"payment_id":"p","version":9223372036854775808}`,
	} {
		_, err := events.Decode[events.PaymentCaptured]([]byte(body))
		require.ErrorContains(t, err, events.PaymentCapturedV1)
		require.ErrorContains(t, err, "version")
	}
	for _, body := range []string{``, `null`, `[]`, `"text"`, `{`, `{} {}`} {
		_, err := events.Decode[events.PaymentCaptured]([]byte(body))
		require.ErrorContains(t, err, events.PaymentCapturedV1, "%s", body)
	}
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	t.Parallel()
	money := rapid.Custom(func(t *rapid.T) events.Money {
		return events.Money{Amount: rapid.Int64().Draw(t, "amount"), Currency: rapid.String().Draw(t, "currency")}
	})
	line := rapid.Custom(func(t *rapid.T) events.OrderLine {
		return events.OrderLine{
			SKU: rapid.String().Draw(t, "sku"), Name: rapid.String().Draw(t, "name"),
			Quantity: rapid.Int64().Draw(t, "quantity"), UnitPrice: money.Draw(t, "price"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		sent := events.OrderCancelled{Order: events.Order{
			OrderID: rapid.StringN(1, -1, -1).Draw(t, "id"), Version: rapid.Int64Min(1).Draw(t, "version"),
			Customer: rapid.String().Draw(t, "customer"), Status: rapid.String().Draw(t, "status"),
			Lines: rapid.SliceOf(line).Draw(t, "lines"), Total: money.Draw(t, "total"),
			PaymentMethod: rapid.String().Draw(t, "method"), Reason: rapid.String().Draw(t, "reason"),
			PlacedAt: time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "placed at")).UTC(),
		}}
		body, err := json.Marshal(sent)
		require.NoError(t, err)
		decoded, err := events.Decode[events.OrderCancelled](body)
		require.NoError(t, err)
		require.Equal(t, sent, decoded)
	})
}
