// Package management administers RabbitMQ through its management API: virtual hosts, users and their
// permissions. It is for set-up, tests and the operator's tool; services never need it.
package management

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
)

// Client talks to one management API. It is safe for concurrent use.
type Client struct {
	hole *rabbithole.Client
}

// New returns a client of the API at address, http://user:password@host:port, with administrator's
// credentials. It does not connect.
func New(address string) (*Client, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("parse management API address: %w", err)
	}
	if parsed.User == nil || parsed.Host == "" {
		return nil, errors.New("management API address: want http://user:password@host:port")
	}
	password, _ := parsed.User.Password()
	user := parsed.User.Username()
	parsed.User = nil
	hole, err := rabbithole.NewClient(parsed.String(), user, password)
	if err != nil {
		return nil, fmt.Errorf("management API: %w", err)
	}
	hole.SetTimeout(30 * time.Second)
	return &Client{hole}, nil
}

// Ping returns nil if the API answers and takes the credentials, within ctx's time.
func (c *Client) Ping(ctx context.Context) error {
	answered := make(chan error, 1)
	go func() {
		_, err := c.hole.Overview()
		answered <- err
	}()
	select {
	case err := <-answered:
		if err != nil {
			return fmt.Errorf("management API: %w", err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("management API: %w", ctx.Err())
	}
}

// PutVHost creates the virtual host unless it exists.
func (c *Client) PutVHost(name string) error {
	return done("create virtual host "+name, func() (*http.Response, error) {
		return c.hole.PutVhost(name, rabbithole.VhostSettings{Description: "onceshop"})
	})
}

// DeleteVHost deletes the virtual host with all its queues and connections. A missing one is no error.
func (c *Client) DeleteVHost(name string) error {
	return done("delete virtual host "+name, func() (*http.Response, error) { return c.hole.DeleteVhost(name) })
}

// PutUser creates the user, or sets its password. The tags are RabbitMQ's, such as "management".
func (c *Client) PutUser(name, password string, tags ...string) error {
	return done("create user "+name, func() (*http.Response, error) {
		return c.hole.PutUser(name, rabbithole.UserSettings{Name: name, Password: password, Tags: tags})
	})
}

// Permit sets what the user may configure, write and read in the virtual host, as regular expressions on
// the names of queues and exchanges.
func (c *Client) Permit(vhost, user, configure, write, read string) error {
	return done("set permissions of "+user, func() (*http.Response, error) {
		return c.hole.UpdatePermissionsIn(vhost, user, rabbithole.Permissions{Configure: configure, Write: write, Read: read})
	})
}

// Queue is what the API says of a queue. Its numbers are up to five seconds old.
type Queue struct {
	Name    string
	Ready   int // waiting to be delivered
	Unacked int // delivered, not yet acked
	Durable bool
}

// Queues lists the queues of the virtual host.
func (c *Client) Queues(vhost string) ([]Queue, error) {
	infos, err := c.hole.ListQueuesIn(vhost)
	if err != nil {
		return nil, fmt.Errorf("list queues of %s: %w", vhost, err)
	}
	queues := make([]Queue, len(infos))
	for i, info := range infos {
		queues[i] = Queue{Name: info.Name, Ready: info.MessagesReady, Unacked: info.MessagesUnacknowledged, Durable: info.Durable}
	}
	return queues, nil
}

func done(what string, call func() (*http.Response, error)) error {
	response, err := call()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	return response.Body.Close()
}
