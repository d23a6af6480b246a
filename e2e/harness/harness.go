// Package harness runs whole shops for tests: real processes, fresh databases, a fresh virtual host, and
// proxies in front of the servers that can be cut.
package harness

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"onceshop/cmd/shop/audit"
	"onceshop/cmd/shop/process"
	"onceshop/cmd/shop/setup"
	"onceshop/cmd/shop/story"
	"onceshop/pkg/stack"
)

// Build builds the services and the operator's tool into a new directory, once for all tests of a package, and returns it. Call it
// in TestMain, and remove the directory at the end.
func Build() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "onceshop-bin-"); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", dir+"/", //nolint:noctx // a build ends by itself
		"onceshop/services/orders/cmd/orders", "onceshop/services/billing/cmd/billing",
		"onceshop/services/catalog-view/cmd/catalog-view", "onceshop/services/billing/provider/cmd/provider",
		"onceshop/cmd/shop")
	if output, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build the services: %w\n%s", err, output)
	}
	return dir, nil
}

// Shop is a shop whose services run as processes.
type Shop struct {
	*process.Shop
	t testing.TB
}

// New returns a shop on the given servers whose services are not started yet. When the test ends, they are
// killed and what was made is dropped. Where the test fails, the services' logs stay, and it says where.
func New(t testing.TB, servers stack.Stack, binaries string) *Shop {
	t.Helper()
	ctx := context.Background()
	shop := setup.Shop{Stack: servers, Name: "test_" + uuid.NewString()[:13], Password: "development"}
	require.NoError(t, shop.Run(ctx), "the servers do not answer: run `make stack`")
	logs, err := os.MkdirTemp("", "onceshop-test-")
	require.NoError(t, err)
	processes, err := process.New(shop, binaries, logs, false)
	require.NoError(t, err)
	s := &Shop{processes, t}
	t.Cleanup(func() {
		for _, service := range setup.Services() {
			_ = s.Kill(service)
		}
		require.NoError(t, shop.Drop(ctx))
		if t.Failed() {
			t.Logf("logs of the services: %s", filepath.Join(logs, "*.log"))
			return
		}
		require.NoError(t, os.RemoveAll(logs))
	})
	return s
}

// Started is New with all services started and ready.
func Started(t testing.TB, servers stack.Stack, binaries string) *Shop {
	t.Helper()
	s := New(t, servers, binaries)
	s.StartEach()
	return s
}

// Stack returns the stack that tests share, or fails the test and says how to start one.
func Stack(t testing.TB) stack.Stack {
	t.Helper()
	found, err := stack.Find()
	require.NoError(t, err)
	return found
}

// limit bounds whatever a test waits for; it is generous, for machines are busy.
const limit = 3 * time.Minute

// Context returns a context that ends with the test, or after the limit.
func (s *Shop) Context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	s.t.Cleanup(cancel)
	return ctx
}

// StartEach starts all services and waits until each is ready.
func (s *Shop) StartEach() {
	s.t.Helper()
	require.NoError(s.t, s.StartAll(s.Context()))
}

// Story returns a story in this shop with its products put up. Clients of a patient one try again.
func (s *Shop) Story(orders int, patient bool) *story.Story {
	s.t.Helper()
	told := story.New(story.Config{URL: s.URL(setup.Orders), Orders: orders, Patient: patient})
	require.NoError(s.t, told.PutUpProducts(s.Context()))
	return told
}

// Until waits until reached returns true.
func (s *Shop) Until(what string, reached func() bool) {
	s.t.Helper()
	require.Eventually(s.t, reached, limit, 20*time.Millisecond, what)
}

// Replica returns a further replica of the shop's services, on ports of its own, none of them started. It
// uses the provider of the first.
func (s *Shop) Replica(binaries string) *process.Shop {
	s.t.Helper()
	replica, err := process.New(s.Shop.Shop, binaries, s.t.TempDir(), false)
	require.NoError(s.t, err)
	for _, service := range setup.Services() {
		replica.Set(service, "STRIPE_URL="+s.URL(setup.Provider))
		s.t.Cleanup(func() { _ = replica.Kill(service) }) // an error where it was not started
	}
	return replica
}

// AwaitEnd waits until at least so many orders are there and all have ended.
func (s *Shop) AwaitEnd(orders int) story.Progress {
	s.t.Helper()
	watcher, err := story.NewWatcher(s.Shop.Shop)
	require.NoError(s.t, err)
	defer watcher.Close()
	var progress story.Progress
	defer func() { s.t.Log(progress) }()
	s.Until("all orders have ended", func() bool {
		p, err := watcher.Progress(context.Background())
		if err == nil {
			progress = p
		}
		return err == nil && p.Placed == 0 && p.Total() >= orders
	})
	return progress
}

// Audit waits until the shop is quiet, and requires that every promise holds.
func (s *Shop) Audit() {
	s.t.Helper()
	report, err := audit.Run(s.Context(), s.Shop.Shop, limit)
	require.NoError(s.t, err)
	for _, result := range report.Results {
		require.Empty(s.t, result.Broken, result.Invariant)
	}
}

// Proxy stands before a server and can be cut.
type Proxy struct {
	*toxiproxy.Proxy
	t testing.TB
}

// NewProxy returns a proxy of the server that the URL names, and the URL with the proxy's address.
func NewProxy(t testing.TB, serverURL string) (*Proxy, string) {
	t.Helper()
	parsed, err := url.Parse(serverURL)
	require.NoError(t, err)
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, t.Name(), "127.0.0.1:0", parsed.Host)
	require.NoError(t, proxy.Start())
	t.Cleanup(proxy.Stop)
	parsed.Host = proxy.Listen
	return &Proxy{proxy, t}, parsed.String()
}

// Cut closes all connections and refuses new ones, until Mend.
func (p *Proxy) Cut() { p.Stop() }

// Mend lets connections through again.
func (p *Proxy) Mend() {
	p.t.Helper()
	require.NoError(p.t, p.Start())
}

// Slow delays by d what the server sends from now on, and nothing that is sent to it. What an earlier call
// delays arrives at once.
func (p *Proxy) Slow(d time.Duration) {
	p.t.Helper()
	attributes := fmt.Sprintf(`{"attributes": {"latency": %d}}`, d.Milliseconds())
	if slow := p.Toxics.GetToxic("slow"); slow != nil {
		_, err := p.Toxics.UpdateToxicJson("slow", strings.NewReader(attributes))
		require.NoError(p.t, err)
		return
	}
	p.toxic(`{"name": "slow", "type": "latency", "stream": "downstream", ` + attributes[1:])
}

// Silence lets connections stand, and nothing through: neither end hears of it.
func (p *Proxy) Silence() {
	p.t.Helper()
	p.toxic(`{"type": "timeout", "stream": "upstream"}`)
	p.toxic(`{"type": "timeout", "stream": "downstream"}`)
}

func (p *Proxy) toxic(settings string) {
	p.t.Helper()
	_, err := p.Toxics.AddToxicJson(strings.NewReader(settings))
	require.NoError(p.t, err)
}

// Unsilence ends what Silence began; the connections that were silenced are closed.
func (p *Proxy) Unsilence() { p.Toxics.ResetToxics(context.Background()) }
