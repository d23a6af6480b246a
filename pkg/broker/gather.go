package broker

import (
	"net"
	"sync"
)

// gatherLimit bounds what waits to be written.
const gatherLimit = 256 << 10 // bytes

// gatheringConn gathers writes: while one is on its way to the kernel, those that follow wait in a buffer
// and then go together. amqp091 writes once per message, which at full speed is most of what a message
// costs the client, and costs the broker a read each.
//
// A write returns before its bytes are sent, and a later one returns the error. Publishers don't mind:
// what counts for them is the confirm.
type gatheringConn struct {
	net.Conn

	mu      sync.Mutex
	changed *sync.Cond
	waiting []byte
	err     error // why nothing more is written
}

func newGatheringConn(conn net.Conn) *gatheringConn {
	g := &gatheringConn{Conn: conn}
	g.changed = sync.NewCond(&g.mu)
	go g.flush()
	return g
}

// Write takes p, and waits while more than gatherLimit is to be written before it.
func (g *gatheringConn) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.waiting) > gatherLimit && g.err == nil {
		g.changed.Wait()
	}
	if g.err != nil {
		return 0, g.err
	}
	g.waiting = append(g.waiting, p...)
	g.changed.Broadcast()
	return len(p), nil
}

// flush writes what waits until the connection is closed or a write fails.
func (g *gatheringConn) flush() {
	var written []byte
	for {
		g.mu.Lock()
		for len(g.waiting) == 0 && g.err == nil {
			g.changed.Wait()
		}
		if g.err != nil {
			g.mu.Unlock()
			return
		}
		written, g.waiting = g.waiting, written[:0]
		g.changed.Broadcast()
		g.mu.Unlock()
		if _, err := g.Conn.Write(written); err != nil {
			g.end(err)
		}
	}
}

// Close closes the connection. What was not written yet is lost, as it might be under way.
func (g *gatheringConn) Close() error {
	g.end(net.ErrClosed)
	return g.Conn.Close()
}

func (g *gatheringConn) end(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
	}
	g.changed.Broadcast()
}
