package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"onceshop/pkg/events"
)

// Errors of letters.
var (
	// ErrNoQueue: there is no such queue, such as that of a service that was never started.
	ErrNoQueue = errors.New("no such queue")
	// ErrTooOld: an inbox may have forgotten the message, and could not tell a repetition.
	ErrTooOld = errors.New("too old to be recognised as a repetition")
)

// Letter is a message that waits for an operator, in dead letters or among the unrouted events.
type Letter struct {
	Queue    string    `json:"queue"`
	ID       string    `json:"id"`
	Type     string    `json:"type"`
	Occurred time.Time `json:"occurred,omitzero"` // zero if the message doesn't say
	Attempts int       `json:"attempts"`          // deliveries that failed
	Reason   string    `json:"reason"`
	// RFC 3339; "" where the broker moved the message by itself.
	FirstFailure string     `json:"first_failure,omitempty"`
	LastFailure  string     `json:"last_failure,omitempty"`
	Headers      amqp.Table `json:"-"`
	Body         []byte     `json:"-"`

	delivery amqp.Delivery
}

// Letters reads a queue of dead letters or of unrouted events. It takes each message that is there, one
// after the other, and gives back at Close those that were neither redriven nor dropped. Until then nobody
// else sees them. It is not safe for concurrent use.
type Letters struct {
	conn    *connection
	ch      *amqp.Channel
	returns chan amqp.Return
	queue   string
	left    int // how many of the messages there were at the beginning are left to read

	confirmed func() // is called between a confirm and the ack; for tests
}

// confirmLimit is how long a redrive waits for the broker's confirm.
const confirmLimit = 10 * time.Second

// OpenLetters opens the queue, by the name of the queue itself or of the one whose dead letters are meant.
// The user at url must be allowed to read it, and to write to the exchanges of its service. Close it.
func OpenLetters(url, queue string) (*Letters, error) {
	if !isUnrouted(queue) && !strings.HasSuffix(queue, DeadLetters("")) {
		queue = DeadLetters(queue)
	}
	conn, err := dial(url, "dead letters")
	if err != nil {
		return nil, err
	}
	l := &Letters{conn: conn, queue: queue, confirmed: func() {}}
	if err := l.open(); err != nil {
		conn.cut()
		return nil, err
	}
	return l, nil
}

func (l *Letters) open() error {
	var err error
	if l.ch, err = l.conn.Channel(); err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	queue, err := l.ch.QueueDeclarePassive(l.queue, true, false, false, false, nil)
	if notFound(err) {
		return fmt.Errorf("%w: %s", ErrNoQueue, l.queue)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", l.queue, err)
	}
	l.left = queue.Messages
	l.returns = l.ch.NotifyReturn(make(chan amqp.Return, 1))
	if err := l.ch.Confirm(false); err != nil {
		return fmt.Errorf("confirm mode: %w", err)
	}
	return nil
}

// Next returns the next message, or nil after as many as there were at the beginning: one that is redriven
// and fails once more is not met again.
func (l *Letters) Next() (*Letter, error) {
	if l.left == 0 {
		return nil, nil
	}
	l.left--
	delivery, ok, err := l.ch.Get(l.queue, false)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", l.queue, err)
	}
	if !ok {
		l.left = 0 // somebody else reads it
		return nil, nil
	}
	msg, err := Marshaler{}.Unmarshal(delivery)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", l.queue, err)
	}
	occurred, _ := time.Parse(time.RFC3339Nano, msg.Metadata.Get(events.Time))
	letter := &Letter{
		Queue: l.queue, ID: msg.UUID, Type: msg.Metadata.Get(events.Type), Occurred: occurred,
		Attempts: attemptsOf(msg), Reason: msg.Metadata.Get(LastError),
		FirstFailure: msg.Metadata.Get(FirstFailure), LastFailure: msg.Metadata.Get(LastFailure),
		Headers: delivery.Headers, Body: delivery.Body, delivery: delivery,
	}
	if why, ok := delivery.Headers["x-first-death-reason"]; ok && letter.Reason == "" {
		letter.Reason = "the broker gave up on it: " + headerText(why)
	}
	if isUnrouted(l.queue) && letter.Reason == "" {
		letter.Reason = "no queue was bound"
	}
	return letter, nil
}

// TooOld returns an error if the letter's event occurred longer ago than oldest, or at a time unknown. An
// inbox that handles nothing older can't tell whether it handled this one.
func (l *Letter) TooOld(oldest time.Duration) error {
	switch age := time.Since(l.Occurred); {
	case l.Occurred.IsZero():
		return fmt.Errorf("%w: it does not say when it occurred", ErrTooOld)
	case age > oldest:
		return fmt.Errorf("%w: it occurred %s ago, and the inbox handles nothing older than %s", ErrTooOld,
			age.Round(time.Minute), oldest)
	}
	return nil
}

// Redrive sends the letter to where it failed, a dead letter to its queue and an unrouted event to its
// exchange, as if it had never failed, and then removes it. force, if it is not empty, has it handled even
// if it is too old.
//
// The copy is confirmed by the broker before the original is acked. A crash in between leaves both, and so
// may an error: the second to be handled is then a repetition to the inbox, or to the guard that stands in
// its place.
func (l *Letters) Redrive(ctx context.Context, letter *Letter, force string) error {
	origin := strings.TrimSuffix(l.queue, DeadLetters(""))
	exchange, key := queues(events.Service(origin)), origin
	if isUnrouted(l.queue) {
		exchange, key = strings.TrimSuffix(l.queue, Unrouted("")), letter.Type
	}
	ctx, cancel := context.WithTimeout(ctx, confirmLimit)
	defer cancel()
	confirmation, err := l.ch.PublishWithDeferredConfirm(exchange, key, true, false, again(letter.delivery, force))
	if err != nil {
		return fmt.Errorf("redrive %s: %w", letter.ID, err)
	}
	acked, err := confirmation.WaitContext(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("redrive %s: no confirm: %w", letter.ID, err)
	case !acked && l.ch.IsClosed():
		return fmt.Errorf("redrive %s: %w", letter.ID, amqp.ErrClosed)
	case !acked:
		return fmt.Errorf("redrive %s: %w", letter.ID, ErrNacked)
	}
	select {
	case <-l.returns: // it comes before the confirm
		return fmt.Errorf("redrive %s to %s: %w", letter.ID, key, ErrReturned)
	default:
	}
	l.confirmed()
	return l.Drop(letter)
}

// Drop removes the letter for good.
func (l *Letters) Drop(letter *Letter) error {
	if err := letter.delivery.Ack(false); err != nil {
		return fmt.Errorf("remove %s: %w", letter.ID, err)
	}
	return nil
}

// Close gives back what is left. Its error means that it is unknown whether what was redriven or dropped
// last is gone. It takes ten seconds at most: a broker with an alarm answers nothing.
func (l *Letters) Close() error {
	defer l.conn.cut()
	defer time.AfterFunc(confirmLimit, l.conn.cut).Stop()
	if err := l.ch.Close(); err != nil {
		return fmt.Errorf("close %s: %w", l.queue, err)
	}
	return nil
}

// again returns the message of delivery as it was before it failed. What its sender wanted of the first
// delivery alone (an expiry, a user id) is left out.
func again(delivery amqp.Delivery, force string) amqp.Publishing {
	headers := maps.Clone(delivery.Headers)
	maps.DeleteFunc(headers, func(name string, _ any) bool { return reserved(name) || ofFailure(name) })
	if force != "" {
		if headers == nil {
			headers = amqp.Table{}
		}
		headers[events.Force] = force
	}
	return amqp.Publishing{
		Headers: headers, ContentType: delivery.ContentType, ContentEncoding: delivery.ContentEncoding,
		DeliveryMode: amqp.Persistent, Priority: delivery.Priority, CorrelationId: delivery.CorrelationId,
		MessageId: delivery.MessageId, Timestamp: delivery.Timestamp, Type: delivery.Type, AppId: delivery.AppId,
		Body: delivery.Body,
	}
}

func isUnrouted(queue string) bool { return strings.HasSuffix(queue, Unrouted("")) }
