package httpapi_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/httpapi"
)

// freeAddress returns an address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	return listener.Addr().String()
}

// get returns the body of the response.
func get(ctx context.Context, addr string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func TestServeFinishesTheRequestUnderWay(t *testing.T) {
	t.Parallel()
	underWay, goOn := make(chan struct{}), make(chan struct{})
	cut := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(underWay)
		<-goOn
		cut <- r.Context().Err()
		_, _ = io.WriteString(w, "done")
	})
	addr := freeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	served, listening := make(chan error, 1), make(chan struct{})
	go func() { served <- httpapi.Serve(ctx, addr, handler, func() { close(listening) }) }()
	<-listening
	answered := make(chan error, 1)
	var body string
	go func() {
		var err error
		body, err = get(t.Context(), addr)
		answered <- err
	}()
	<-underWay
	stop()
	require.Eventually(t, func() bool { // it takes no new ones
		connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		if err == nil {
			_ = connection.Close()
		}
		return err != nil
	}, 10*time.Second, 5*time.Millisecond)
	select {
	case err := <-served:
		require.Fail(t, "it did not wait", "%v", err)
	default:
	}
	close(goOn)
	require.NoError(t, <-cut, "the request's context does not end with the service's")
	require.NoError(t, <-answered)
	require.Equal(t, "done", body)
	require.NoError(t, <-served)
}

func TestServeReturnsAnErrorIfItCanNotListen(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	never := func() { require.Fail(t, "it listens") }
	for _, addr := range []string{listener.Addr().String(), "nowhere", "127.0.0.1:99999"} {
		require.ErrorContains(t, httpapi.Serve(t.Context(), addr, nil, never), "listen: ")
	}
}
