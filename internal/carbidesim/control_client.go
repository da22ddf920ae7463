package carbidesim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"google.golang.org/grpc/status"
)

// Control steers a world in another process, through the socket of its server's control endpoint.
type Control struct {
	http http.Client
}

// NewControl returns a client for the socket at path. It connects on first use.
func NewControl(path string) *Control {
	return &Control{http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}}
}

// Close closes idle connections.
func (c *Control) Close() { c.http.CloseIdleConnections() }

// World returns the live world, or everything about it.
func (c *Control) World(ctx context.Context, full bool) ([]byte, error) {
	if full {
		return c.do(ctx, http.MethodGet, "/world?full=1", nil)
	}
	return c.do(ctx, http.MethodGet, "/world", nil)
}

// Calls returns how often each method has been called.
func (c *Control) Calls(ctx context.Context) (map[string]int, error) {
	var out map[string]int
	return out, c.get(ctx, "/calls", &out)
}

// ResetCalls resets the counts of calls.
func (c *Control) ResetCalls(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, "/calls", nil)
	return err
}

// Faults returns the faults that can still strike.
func (c *Control) Faults(ctx context.Context) ([]Fault, error) {
	var out []Fault
	return out, c.get(ctx, "/faults", &out)
}

// Inject declares a fault.
func (c *Control) Inject(ctx context.Context, f Fault) error { return c.post(ctx, "/faults", f) }

// ClearFaults forgets all faults.
func (c *Control) ClearFaults(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, "/faults", nil)
	return err
}

// Advance moves the world's clock forward.
func (c *Control) Advance(ctx context.Context, d time.Duration) error {
	return c.post(ctx, "/advance", map[string]string{"duration": d.String()})
}

// Call makes a call as a stranger; request and reply are the JSON of protocol buffers. A refusal is a gRPC status.
func (c *Control) Call(ctx context.Context, method string, request []byte) ([]byte, error) {
	return c.do(ctx, http.MethodPost, "/call/"+url.PathEscape(method), request)
}

// PhoneHome makes the guest of an instance phone home.
func (c *Control) PhoneHome(ctx context.Context, instance string) error {
	return c.post(ctx, "/instances/"+url.PathEscape(instance), map[string]bool{"phone_home": true})
}

// SetInstanceState shows a state, such as "FAILED", instead of an instance's own; "" shows its own again.
func (c *Control) SetInstanceState(ctx context.Context, instance, state string) error {
	return c.post(ctx, "/instances/"+url.PathEscape(instance), map[string]string{"state": state})
}

// LeaveBehind keeps changes of security groups from the host of an instance, or lets them through again.
func (c *Control) LeaveBehind(ctx context.Context, instance string, behind bool) error {
	return c.post(ctx, "/instances/"+url.PathEscape(instance), map[string]bool{"behind": behind})
}

// SetAlerts replaces the health alerts of a machine: each id with what it prevents.
func (c *Control) SetAlerts(ctx context.Context, machine string, alerts map[string][]string) error {
	return c.post(ctx, "/machines/"+url.PathEscape(machine)+"/alerts", alerts)
}

// Deafen makes the guest of a machine ignore requests to shut down, or obey them again.
func (c *Control) Deafen(ctx context.Context, machine string, deaf bool) error {
	return c.post(ctx, "/machines/"+url.PathEscape(machine)+"/deaf", deaf)
}

func (c *Control) get(ctx context.Context, path string, into any) error {
	b, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

func (c *Control) post(ctx context.Context, path string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	_, err = c.do(ctx, http.MethodPost, path, b)
	return err
}

func (c *Control) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://carbidesim"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	switch answer.StatusCode {
	case http.StatusOK:
		return b, nil
	case http.StatusUnprocessableEntity:
		var no refused
		if err := json.Unmarshal(b, &no); err != nil {
			return nil, err
		}
		return nil, status.Error(codeNames[no.Code], no.Message)
	}
	return nil, fmt.Errorf("%s %s: %s", method, path, answer.Status)
}
