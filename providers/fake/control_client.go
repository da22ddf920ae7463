package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/schema"
)

// A Control sees and changes the world in a file as somebody else would, whether or not a process has it open: it talks to that process
// (see [World.Serve]), or has the world open itself until it is closed.
type Control struct {
	world  *World // nil: another process has it open
	client http.Client
}

// An UnreachableError says that a process has a world open and does not answer on its socket.
type UnreachableError struct {
	Path   string // of the world's file
	Socket string
	Err    error
}

// Error implements error.
func (e *UnreachableError) Error() string {
	return fmt.Sprintf("another process has world %s open, and cannot be reached at %s: %v", e.Path, e.Socket, e.Err)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// OpenControl returns a control of the world in the file at path. As with [Open], a missing file is an empty world. A process that has the
// world open but does not answer is an *[UnreachableError].
func OpenControl(ctx context.Context, path string, kinds schema.Kinds) (*Control, error) {
	switch w, err := Open(path, kinds); {
	case err == nil:
		return &Control{world: w}, nil
	case !errors.Is(err, files.ErrInUse):
		return nil, err
	}
	socket := socketOf(path)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	conn, err := dial(ctx, "", "")
	if err != nil {
		return nil, &UnreachableError{path, socket, err}
	}
	conn.Close()
	return &Control{client: http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
}

// Close writes the world to its file when no other process has it open.
func (c *Control) Close() error {
	if c.world != nil {
		return c.world.Close()
	}
	c.client.CloseIdleConnections()
	return nil
}

// World returns the whole world in the form of its file.
func (c *Control) World(ctx context.Context) ([]byte, error) {
	if c.world != nil {
		return []byte(c.world.Snapshot()), nil
	}
	return c.do(ctx, http.MethodGet, "/world", nil)
}

// Change changes a thing, or makes one without a mark: see [World.Change].
func (c *Control) Change(ctx context.Context, scope, kind, id string, spec schema.Object) error {
	if c.world != nil {
		return c.world.Change(scope, kind, id, spec)
	}
	return c.post(ctx, "/change", change{scope, kind, id, spec})
}

// Remove removes a thing. The id may be its name, as for Change. Unlike [World.Remove] it fails when there is none.
func (c *Control) Remove(ctx context.Context, scope, kind, id string) error {
	if c.world != nil {
		return c.world.take(scope, kind, id)
	}
	return c.post(ctx, "/remove", names{scope, kind, id})
}

// Faults returns the faults that were declared and not ended, each with how many calls it has matched.
func (c *Control) Faults(ctx context.Context) ([]Fault, error) {
	if c.world != nil {
		return c.world.Faults(), nil
	}
	b, err := c.do(ctx, http.MethodGet, "/faults", nil)
	if err != nil {
		return nil, err
	}
	var faults []Fault
	return faults, decode(bytes.NewReader(b), &faults)
}

// Fail adds a fault.
func (c *Control) Fail(ctx context.Context, f Fault) error {
	if c.world != nil {
		return c.world.Fail(f)
	}
	return c.post(ctx, "/faults", f)
}

// Mend ends all faults.
func (c *Control) Mend(ctx context.Context) error {
	if c.world != nil {
		return c.world.Mend()
	}
	_, err := c.do(ctx, http.MethodDelete, "/faults", nil)
	return err
}

func (c *Control) post(ctx context.Context, path string, body any) error {
	_, err := c.do(ctx, http.MethodPost, path, toJSON(body))
	return err
}

func (c *Control) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://world"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(io.LimitReader(answer.Body, maxFile))
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
		return nil, errors.New(no.Message)
	}
	return nil, fmt.Errorf("%s %s: %s", method, path, answer.Status)
}

// ParseFault reads a fault in the form of the world's file, with known fields only.
func ParseFault(text []byte) (f Fault, err error) {
	if err = decode(bytes.NewReader(text), &f); err == nil {
		err = f.check()
	}
	return f, err
}
