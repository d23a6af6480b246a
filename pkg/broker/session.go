package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"onceshop/pkg/fault"
)

// session is one connection's worth of publishing: a channel in confirm mode and the messages under way
// on it. Tags, confirms and the queue of pending messages have the same order, so that the front of the
// queue is always the one confirmed next.
type session struct {
	conn     *connection
	ch       *amqp.Channel
	timeout  time.Duration
	confirms chan amqp.Confirmation
	returns  chan amqp.Return
	closed   chan *amqp.Error
	slots    chan struct{} // one token per message under way
	ended    chan struct{} // closed when the session ends

	sendMu sync.Mutex // held while a message is written, so that tags and pending keep one order

	mu       sync.Mutex // guards what follows; never held while writing
	pending  []pending
	returned map[string]int // message id → returns not yet matched with their confirm
	over     bool           // the session has ended
}

type pending struct {
	id   string
	sent time.Time
	done func(error)
}

func newSession(ctx context.Context, conn *connection, cfg PublisherConfig) (*session, error) {
	if err := cfg.setup(ctx, conn); err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("confirm mode: %w", err)
	}
	return &session{
		conn: conn, ch: ch, timeout: cfg.Timeout,
		// The library's reader drops a notification that nobody takes for five seconds, so each
		// channel has room for all that can be under way.
		confirms: ch.NotifyPublish(make(chan amqp.Confirmation, cfg.MaxInFlight)),
		returns:  ch.NotifyReturn(make(chan amqp.Return, cfg.MaxInFlight)),
		closed:   ch.NotifyClose(make(chan *amqp.Error, 1)),
		slots:    make(chan struct{}, cfg.MaxInFlight),
		ended:    make(chan struct{}),
		returned: map[string]int{},
	}, nil
}

func (s *session) send(exchange, key string, msg amqp.Publishing, done func(error)) {
	select {
	case s.slots <- struct{}{}:
	case <-s.ended:
		done(ErrNotSent)
		return
	}
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	s.mu.Lock()
	if s.over {
		// Whatever ended the session, this message was not under way and is not its cause.
		s.mu.Unlock()
		done(ErrNotSent)
		return
	}
	s.pending = append(s.pending, pending{msg.MessageId, time.Now(), done})
	s.mu.Unlock()
	// An error means that the channel has ended, and run will see why, or that the connection broke: Check
	// has seen to it that the message can be written. Either way the session ends, and with it this
	// message, which is in pending.
	if err := s.ch.Publish(exchange, key, true, false, msg); err != nil && !errors.Is(err, amqp.ErrClosed) {
		s.conn.cut()
	}
}

// run matches confirms until the connection or the channel is lost, or ctx ends. A message that waits
// longer than the timeout for its confirm ends the session: a connection that RabbitMQ blocks for an
// alarm gives no other sign. It returns why the session is over; then end is to be called.
func (s *session) run(ctx context.Context) error {
	defer s.conn.cut()
	tick := time.NewTicker(s.timeout / 10)
	defer tick.Stop()
	for {
		select {
		case confirm, ok := <-s.confirms:
			if !ok {
				return s.closeReason()
			}
			s.confirm(confirm)
		case <-tick.C:
			if s.overdue() {
				return fault.AsOutage(fmt.Errorf("no confirm within %s", s.timeout))
			}
		case <-ctx.Done():
			return fault.AsOutage(errors.New("publisher closed"))
		}
	}
}

func (s *session) closeReason() error {
	e := <-s.closed
	switch {
	case e == nil:
		return fault.AsOutage(amqp.ErrClosed)
	case e.Server && e.Recover: // a channel exception (AMQP 0-9-1, 1.5.2.5), whoever cut the connection since
		return fmt.Errorf("%w: %w", ErrChannel, e)
	default:
		return fault.AsOutage(fmt.Errorf("connection lost: %w", e))
	}
}

func (s *session) confirm(confirm amqp.Confirmation) {
	s.mu.Lock()
	// The broker sends a message's return before its confirm, and the library keeps that order, so the
	// returns that matter are in the channel by now.
	for len(s.returns) > 0 {
		s.returned[(<-s.returns).MessageId]++
	}
	first := s.pending[0]
	s.pending[0].done = nil
	s.pending = s.pending[1:]
	var err error
	switch {
	case !confirm.Ack:
		err = ErrNacked
	case s.returned[first.id] > 0:
		err = ErrReturned
		s.returned[first.id]--
		if s.returned[first.id] == 0 {
			delete(s.returned, first.id)
		}
	}
	s.mu.Unlock()
	<-s.slots
	first.done(err)
}

func (s *session) overdue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending) > 0 && time.Since(s.pending[0].sent) > s.timeout
}

// end tells every message under way why the session is over. A sender that sends again at once must not
// come upon this session, so the publisher forgets it first.
func (s *session) end(why error) {
	s.mu.Lock()
	s.over = true
	left := s.pending
	s.pending = nil
	s.mu.Unlock()
	close(s.ended)
	for _, p := range left {
		p.done(why)
	}
}
