package billing

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPausesGrowWhileOnlyTheChargeFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	inner := w.network.provider
	w.network.provider = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/confirm") {
			http.Error(rw, `{"error":{"type":"api_error"}}`, http.StatusServiceUnavailable)
			return
		}
		inner.ServeHTTP(rw, r)
	})
	event := placed(visa)
	w.receive(t, event)
	for tries := range 6 {
		_, err := w.db.ExecContext(t.Context(), allDue)
		require.NoError(t, err)
		p, err := lease(t.Context(), w.db, leaseLimit)
		require.NoError(t, err)
		w.executor.settle(t.Context(), p)
		require.Equal(t, tries+1, w.attempts(t))
	}
}
