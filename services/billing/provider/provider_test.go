package provider_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"onceshop/pkg/postgres/postgrestest"
	"onceshop/services/billing/provider"
)

const (
	accepted     = "pm_card_visa"
	declined     = "pm_card_chargeDeclined"
	insufficient = "pm_card_chargeDeclinedInsufficientFunds"
)

// fixture is a provider and Stripe's own client, which calls it.
type fixture struct {
	db     *sqlx.DB
	url    string
	client *stripe.Client
}

func start(t *testing.T, latency time.Duration) *fixture {
	t.Helper()
	db := postgrestest.New(t, provider.Migrations())
	db.SetMaxOpenConns(10) // the server's are for all tests
	server := httptest.NewServer(provider.NewHandler(db, latency, slog.New(slog.DiscardHandler)))
	t.Cleanup(server.Close)
	return &fixture{db, server.URL, newClient(server.URL, "sk_test_any")}
}

func newClient(url, key string) *stripe.Client {
	return stripe.NewClient(key, stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL:               &url,
		MaxNetworkRetries: new(int64(0)),
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		EnableTelemetry:   new(false),
	})))
}

func creation(method string) *stripe.PaymentIntentCreateParams {
	return &stripe.PaymentIntentCreateParams{
		Amount: new(int64(1999)), Currency: new("eur"), PaymentMethod: &method,
		PaymentMethodTypes: []*string{new("card")}, Metadata: map[string]string{"order_id": "order-1"},
	}
}

func (f *fixture) create(t *testing.T, method string) string {
	t.Helper()
	intent, err := f.client.V1PaymentIntents.Create(t.Context(), creation(method))
	require.NoError(t, err)
	return intent.ID
}

func (f *fixture) retrieve(t *testing.T, id string) *stripe.PaymentIntent {
	t.Helper()
	intent, err := f.client.V1PaymentIntents.Retrieve(t.Context(), id, nil)
	require.NoError(t, err)
	return intent
}

func (f *fixture) confirm(t *testing.T, id string) error {
	t.Helper()
	_, err := f.client.V1PaymentIntents.Confirm(t.Context(), id, nil)
	return err
}

func (f *fixture) cancel(t *testing.T, id string) error {
	t.Helper()
	_, err := f.client.V1PaymentIntents.Cancel(t.Context(), id, nil)
	return err
}

func (f *fixture) refund(t *testing.T, id string) error {
	t.Helper()
	_, err := f.client.V1Refunds.Create(t.Context(), &stripe.RefundCreateParams{PaymentIntent: &id})
	return err
}

func (f *fixture) refunds(t *testing.T, id string) (refunds []*stripe.Refund) {
	t.Helper()
	params := &stripe.RefundListParams{PaymentIntent: &id}
	for refund, err := range f.client.V1Refunds.List(t.Context(), params).All(t.Context()) {
		require.NoError(t, err)
		refunds = append(refunds, refund)
	}
	return refunds
}

func (f *fixture) count(t *testing.T, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, f.db.GetContext(t.Context(), &n, query, args...))
	return n
}

// refused requires that err is Stripe's error with that status and code.
func refused(t *testing.T, err error, status int, code stripe.ErrorCode) {
	t.Helper()
	_ = refusal(t, err, status, code)
}

// refusal is refused, and returns the error.
func refusal(t *testing.T, err error, status int, code stripe.ErrorCode) *stripe.Error {
	t.Helper()
	var found *stripe.Error
	require.ErrorAs(t, err, &found)
	require.Equal(t, status, found.HTTPStatusCode, found.Msg)
	require.Equal(t, code, found.Code, found.Msg)
	return found
}

// atOnce calls each n times at once and returns the errors.
func atOnce(n int, calls ...func() error) []error {
	results := make([]error, n*len(calls))
	begin := make(chan struct{})
	var running sync.WaitGroup
	for i := range results {
		running.Go(func() {
			<-begin
			results[i] = calls[i%len(calls)]()
		})
	}
	close(begin)
	running.Wait()
	return results
}

// onlyOne requires that one call succeeded and the others were refused with that code.
func onlyOne(t *testing.T, results []error, code stripe.ErrorCode) {
	t.Helper()
	successes := 0
	for _, err := range results {
		if err == nil {
			successes++
			continue
		}
		refused(t, err, http.StatusBadRequest, code)
	}
	require.Equal(t, 1, successes)
}

func TestAcceptedPaymentIsChargedOnce(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	created, err := f.client.V1PaymentIntents.Create(t.Context(), creation(accepted))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(created.ID, "pi_"))
	require.Equal(t, stripe.PaymentIntentStatusRequiresConfirmation, created.Status)
	require.Equal(t, accepted, created.PaymentMethod.ID)
	require.Zero(t, created.AmountReceived)
	require.Nil(t, created.LatestCharge)

	confirmed, err := f.client.V1PaymentIntents.Confirm(t.Context(), created.ID, nil)
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusSucceeded, confirmed.Status)
	require.EqualValues(t, 1999, confirmed.AmountReceived)
	require.Equal(t, stripe.CurrencyEUR, confirmed.Currency)
	require.Equal(t, "order-1", confirmed.Metadata["order_id"])
	require.True(t, strings.HasPrefix(confirmed.LatestCharge.ID, "ch_"))
	require.InDelta(t, time.Now().Unix(), confirmed.Created, 60)

	again := refusal(t, f.confirm(t, created.ID), 400, stripe.ErrorCodePaymentIntentUnexpectedState)
	require.Equal(t, stripe.ErrorTypeInvalidRequest, again.Type)
	require.Equal(t, stripe.PaymentIntentStatusSucceeded, again.PaymentIntent.Status)
	require.Equal(t, confirmed.LatestCharge.ID, f.retrieve(t, created.ID).LatestCharge.ID)
	require.Equal(t, 1, f.count(t, `SELECT count(*) FROM charges
		WHERE order_id = 'order-1' AND payment_intent_id = $1 AND amount = 1999 AND currency = 'eur'`, created.ID))
}

func TestDeclinedPaymentIsNotCharged(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	for method, code := range map[string]stripe.DeclineCode{
		declined: stripe.DeclineCodeGenericDecline, insufficient: stripe.DeclineCodeInsufficientFunds,
	} {
		id := f.create(t, method)
		err := refusal(t, f.confirm(t, id), http.StatusPaymentRequired, stripe.ErrorCodeCardDeclined)
		require.Equal(t, stripe.ErrorTypeCard, err.Type)
		require.Equal(t, code, err.DeclineCode)
		require.Equal(t, id, err.PaymentIntent.ID)
		require.Equal(t, stripe.PaymentIntentStatusRequiresPaymentMethod, err.PaymentIntent.Status)

		intent := f.retrieve(t, id)
		require.Equal(t, stripe.PaymentIntentStatusRequiresPaymentMethod, intent.Status)
		require.Nil(t, intent.PaymentMethod)
		require.Equal(t, stripe.ErrorCodeCardDeclined, intent.LastPaymentError.Code)
		require.Equal(t, code, intent.LastPaymentError.DeclineCode)
		refused(t, f.confirm(t, id), 400, stripe.ErrorCodePaymentIntentUnexpectedState)
		refused(t, f.refund(t, id), 400, "")
	}
	require.Zero(t, f.count(t, `SELECT count(*) FROM charges`))
}

func TestConfirmationsAtOnceChargeOnce(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	for range 5 {
		id := f.create(t, accepted)
		results := atOnce(20, func() error { return f.confirm(t, id) })
		require.Equal(t, 1, f.count(t, `SELECT count(*) FROM charges WHERE payment_intent_id = $1`, id))
		onlyOne(t, results, stripe.ErrorCodePaymentIntentUnexpectedState)
	}
}

func TestConfirmationAndCancellationAtOnceNeverBothHappen(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	for range 50 {
		id := f.create(t, accepted)
		results := atOnce(1, func() error { return f.confirm(t, id) }, func() error { return f.cancel(t, id) })
		onlyOne(t, results, stripe.ErrorCodePaymentIntentUnexpectedState)
		want, charges := stripe.PaymentIntentStatusSucceeded, 1
		if results[0] != nil {
			want, charges = stripe.PaymentIntentStatusCanceled, 0
		}
		require.Equal(t, want, f.retrieve(t, id).Status)
		require.Equal(t, charges, f.count(t, `SELECT count(*) FROM charges WHERE payment_intent_id = $1`, id))
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	waiting, failed, paid := f.create(t, accepted), f.create(t, declined), f.create(t, accepted)
	require.Error(t, f.confirm(t, failed))
	require.NoError(t, f.confirm(t, paid))
	for _, id := range []string{waiting, failed} {
		require.NoError(t, f.cancel(t, id))
		require.Equal(t, stripe.PaymentIntentStatusCanceled, f.retrieve(t, id).Status)
		refused(t, f.cancel(t, id), 400, stripe.ErrorCodePaymentIntentUnexpectedState)
		refused(t, f.confirm(t, id), 400, stripe.ErrorCodePaymentIntentUnexpectedState)
	}
	err := refusal(t, f.cancel(t, paid), 400, stripe.ErrorCodePaymentIntentUnexpectedState)
	require.Equal(t, stripe.PaymentIntentStatusSucceeded, err.PaymentIntent.Status)
}

func TestRefund(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	id := f.create(t, accepted)
	refused(t, f.refund(t, id), 400, "")
	require.NoError(t, f.confirm(t, id))
	_, err := f.client.V1Refunds.Create(t.Context(), &stripe.RefundCreateParams{PaymentIntent: &id, Amount: new(int64(1))})
	require.Equal(t, "amount", refusal(t, err, 400, "").Param)
	require.Empty(t, f.refunds(t, id))

	require.NoError(t, f.refund(t, id))
	refused(t, f.refund(t, id), 400, stripe.ErrorCodeChargeAlreadyRefunded)
	refunds := f.refunds(t, id)
	require.Len(t, refunds, 1)
	found, err := f.client.V1Refunds.Retrieve(t.Context(), refunds[0].ID, nil)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(found.ID, "re_"))
	require.Equal(t, stripe.RefundStatusSucceeded, found.Status)
	require.EqualValues(t, 1999, found.Amount)
	require.Equal(t, id, found.PaymentIntent.ID)
	require.Equal(t, f.retrieve(t, id).LatestCharge.ID, found.Charge.ID)
	require.Equal(t, 1, f.count(t, `SELECT count(*) FROM refunds WHERE order_id = 'order-1' AND payment_intent_id = $1`, id))
}

func TestRefundsAtOnceGiveBackOnce(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	for range 5 {
		id := f.create(t, accepted)
		require.NoError(t, f.confirm(t, id))
		results := atOnce(20, func() error { return f.refund(t, id) })
		require.Equal(t, 1, f.count(t, `SELECT count(*) FROM refunds WHERE payment_intent_id = $1`, id))
		onlyOne(t, results, stripe.ErrorCodeChargeAlreadyRefunded)
	}
}

func TestRepetitionWithTheKeyIsReplayed(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	params := creation(declined)
	params.SetIdempotencyKey(uuid.NewString())
	first, err := f.client.V1PaymentIntents.Create(t.Context(), params)
	require.NoError(t, err)
	require.Empty(t, first.LastResponse.Header.Get("Idempotent-Replayed"))
	again, err := f.client.V1PaymentIntents.Create(t.Context(), params)
	require.NoError(t, err)
	require.Equal(t, "true", again.LastResponse.Header.Get("Idempotent-Replayed"))
	require.Equal(t, string(first.LastResponse.RawJSON), string(again.LastResponse.RawJSON))
	require.Equal(t, 1, f.count(t, `SELECT count(*) FROM payment_intents`))

	confirm := &stripe.PaymentIntentConfirmParams{}
	confirm.SetIdempotencyKey(uuid.NewString())
	for range 2 { // a refusal is replayed as well: the second is no payment_intent_unexpected_state
		_, err = f.client.V1PaymentIntents.Confirm(t.Context(), first.ID, confirm)
		refused(t, err, http.StatusPaymentRequired, stripe.ErrorCodeCardDeclined)
	}

	_, err = f.db.ExecContext(t.Context(), `UPDATE idempotency_keys SET created_at = now() - interval '24 hours'`)
	require.NoError(t, err)
	for range 2 { // an expired key is as new: the first of these is no replay, the second is one of the first
		later, err := f.client.V1PaymentIntents.Create(t.Context(), params)
		require.NoError(t, err)
		require.NotEqual(t, first.ID, later.ID)
	}
	require.Equal(t, 2, f.count(t, `SELECT count(*) FROM payment_intents`))
}

func TestKeyIsForOneRequest(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	key := uuid.NewString()
	params := creation(accepted)
	params.SetIdempotencyKey(key)
	params.Amount = new(int64(0))
	_, err := f.client.V1PaymentIntents.Create(t.Context(), params)
	refused(t, err, 400, stripe.ErrorCodeParameterInvalidInteger)
	params.Amount = new(int64(1)) // the malformed request is not stored, so the key is still free
	first, err := f.client.V1PaymentIntents.Create(t.Context(), params)
	require.NoError(t, err)

	params.Amount = new(int64(2))
	_, err = f.client.V1PaymentIntents.Create(t.Context(), params)
	require.Equal(t, stripe.ErrorTypeIdempotency, refusal(t, err, 400, "").Type)
	confirm := &stripe.PaymentIntentConfirmParams{}
	confirm.SetIdempotencyKey(key)
	_, err = f.client.V1PaymentIntents.Confirm(t.Context(), first.ID, confirm)
	require.Equal(t, stripe.ErrorTypeIdempotency, refusal(t, err, 400, "").Type)
}

// holdRow locks the intent's row until release is called.
func (f *fixture) holdRow(t *testing.T, id string) (release func()) {
	t.Helper()
	tx, err := f.db.BeginTxx(context.Background(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	_, err = tx.ExecContext(t.Context(), `SELECT FROM payment_intents WHERE id = $1 FOR UPDATE`, id)
	require.NoError(t, err)
	return func() { require.NoError(t, tx.Rollback()) }
}

// awaitBlocked waits until a transaction waits for a lock.
func (f *fixture) awaitBlocked(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		return f.count(t, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	}, 4*time.Second, 10*time.Millisecond)
}

func TestKeyOfARequestUnderWayIsInUse(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	id := f.create(t, accepted)
	params := func() *stripe.PaymentIntentConfirmParams { // the client writes into its parameters
		p := &stripe.PaymentIntentConfirmParams{}
		p.SetIdempotencyKey("the same")
		return p
	}
	release := f.holdRow(t, id)
	first := make(chan error, 1)
	go func() {
		_, err := f.client.V1PaymentIntents.Confirm(t.Context(), id, params())
		first <- err
	}()
	f.awaitBlocked(t)
	_, err := f.client.V1PaymentIntents.Confirm(t.Context(), id, params())
	refused(t, err, http.StatusConflict, stripe.ErrorCodeIdempotencyKeyInUse)
	release()
	require.NoError(t, <-first)
	again, err := f.client.V1PaymentIntents.Confirm(t.Context(), id, params())
	require.NoError(t, err, "the conflict was not stored")
	require.Equal(t, "true", again.LastResponse.Header.Get("Idempotent-Replayed"))
}

func TestCreationsAtOnceWithOneKeyCreateOne(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	for _, err := range atOnce(20, func() error {
		params := creation(accepted)
		params.SetIdempotencyKey("the same")
		_, err := f.client.V1PaymentIntents.Create(t.Context(), params)
		return err
	}) {
		if err != nil {
			refused(t, err, http.StatusConflict, stripe.ErrorCodeIdempotencyKeyInUse)
		}
	}
	require.Equal(t, 1, f.count(t, `SELECT count(*) FROM payment_intents`))
}

func TestClientThatGivesUpDoesNotStopTheEffect(t *testing.T) {
	t.Parallel()
	t.Run("while the confirmation waits for its turn", func(t *testing.T) {
		t.Parallel()
		f := start(t, 0)
		id := f.create(t, accepted)
		release := f.holdRow(t, id)
		ctx, giveUp := context.WithCancel(t.Context())
		answered := make(chan error, 1)
		go func() {
			_, err := f.client.V1PaymentIntents.Confirm(ctx, id, nil)
			answered <- err
		}()
		f.awaitBlocked(t)
		giveUp()
		require.ErrorIs(t, <-answered, context.Canceled)
		release()
		require.Eventually(t, func() bool {
			return f.retrieve(t, id).Status == stripe.PaymentIntentStatusSucceeded
		}, 4*time.Second, 10*time.Millisecond)
	})
	t.Run("while the answer is late", func(t *testing.T) {
		t.Parallel()
		f := start(t, time.Hour)
		id := f.create(t, accepted)
		ctx, giveUp := context.WithCancel(t.Context())
		answered := make(chan error, 1)
		go func() {
			_, err := f.client.V1PaymentIntents.Confirm(ctx, id, nil)
			answered <- err
		}()
		require.Eventually(t, func() bool {
			return f.retrieve(t, id).Status == stripe.PaymentIntentStatusSucceeded
		}, 4*time.Second, 10*time.Millisecond)
		require.Empty(t, answered)
		giveUp()
		require.ErrorIs(t, <-answered, context.Canceled)
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	intents := f.client.V1PaymentIntents
	id := f.create(t, accepted)
	for name, test := range map[string]struct {
		change func(*stripe.PaymentIntentCreateParams)
		code   stripe.ErrorCode
		param  string
	}{
		"unknown method": {func(p *stripe.PaymentIntentCreateParams) { p.PaymentMethod = new("pm_other") }, stripe.ErrorCodeResourceMissing, "payment_method"},
		"no method":      {func(p *stripe.PaymentIntentCreateParams) { p.PaymentMethod = nil }, stripe.ErrorCodeParameterMissing, "payment_method"},
		"no amount":      {func(p *stripe.PaymentIntentCreateParams) { p.Amount = nil }, stripe.ErrorCodeParameterMissing, "amount"},
		"currency":       {func(p *stripe.PaymentIntentCreateParams) { p.Currency = new("EUR") }, "", "currency"},
		"confirm":        {func(p *stripe.PaymentIntentCreateParams) { p.Confirm = new(true) }, "", "confirm"},
		"not simulated":  {func(p *stripe.PaymentIntentCreateParams) { p.CaptureMethod = new("manual") }, stripe.ErrorCodeParameterUnknown, "capture_method"},
		"not text":       {func(p *stripe.PaymentIntentCreateParams) { p.Metadata["note"] = "\x00" }, "", ""},
	} {
		params := creation(accepted)
		test.change(params)
		_, err := intents.Create(t.Context(), params)
		require.Error(t, err, name)
		require.Equal(t, test.param, refusal(t, err, 400, test.code).Param, name)
	}
	refused(t, f.confirm(t, "pi_other"), http.StatusNotFound, stripe.ErrorCodeResourceMissing)
	refused(t, f.refund(t, "pi_other"), http.StatusNotFound, stripe.ErrorCodeResourceMissing)
	_, err := intents.Capture(t.Context(), id, nil)
	refused(t, err, http.StatusNotFound, "")
	for _, key := range []string{"", "pk_test_public"} {
		_, err := newClient(f.url, key).V1PaymentIntents.Retrieve(t.Context(), id, nil)
		require.Equal(t, stripe.ErrorTypeInvalidRequest, refusal(t, err, http.StatusUnauthorized, "").Type)
	}
}

func TestBasicAuthentication(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/v1/payment_intents/"+f.create(t, accepted), nil)
	require.NoError(t, err)
	request.SetBasicAuth("sk_test_any", "")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
}
