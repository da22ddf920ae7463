package fake

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/schema"
)

const (
	maxSocket = 100     // length of a socket's path; Linux takes 107 bytes, other systems fewer
	maxOrder  = 4 << 20 // size of a request
)

// socketOf returns where the process that has the world in a file open listens.
func socketOf(path string) string { return path + ".sock" }

// Serve lets other processes of this user see and change the world, with a [Control], until the world is closed. It listens on a socket
// beside the world's file, PATH.sock, and replaces one that a killed process has left there, but nothing that is no socket. It fails for a
// world in memory, and when the path of the socket is longer than 100 bytes.
//
//	GET    /world   the world in the form of its file
//	POST   /change  {"scope": "n1", "kind": "ovs.bridge", "id": "br0", "spec": {...}}: see [World.Change]
//	POST   /remove  {"scope": "n1", "kind": "ovs.bridge", "id": "br0"}
//	GET    /faults  the faults with how often each has matched; POST adds one, DELETE is [World.Mend]
//
// What is refused is answered with status 422 and {"message": "..."}.
func (w *World) Serve() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return errClosed
	case w.file == nil:
		return errors.New("a world in memory has no socket")
	case w.server != nil:
		return nil
	}
	// The journal is locked, so no other process listens here.
	l, err := listen(socketOf(w.file.path))
	if err != nil {
		return fmt.Errorf("serve world %s: %w", w.file.path, err)
	}
	s := &server{http: &http.Server{Handler: w.routes(), ReadHeaderTimeout: 10 * time.Second}, done: make(chan struct{})}
	w.server = s
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l) // it ends when stop closes the listener
	}()
	return nil
}

func listen(path string) (net.Listener, error) {
	if len(path) > maxSocket {
		return nil, fmt.Errorf("the path of the socket has %d bytes, and the system takes no more than %d: move the world to a shorter path", len(path), maxSocket)
	}
	switch there, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case there.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is %s, not a socket: move it away", path, files.Kind(there.Mode()))
	default:
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// A server is what Serve has started.
type server struct {
	http *http.Server
	done chan struct{}
}

// stop removes the socket and ends all connections. A request that waits for the world finds it closed.
func (s *server) stop() {
	s.http.Close()
	<-s.done
}

func (w *World) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /world", func(rw http.ResponseWriter, _ *http.Request) { reply(rw, []byte(w.Snapshot()), nil) })
	mux.HandleFunc("POST /change", order(func(o change) error { return w.Change(o.Scope, o.Kind, o.ID, o.Spec) }))
	mux.HandleFunc("POST /remove", order(func(o names) error { return w.take(o.Scope, o.Kind, o.ID) }))
	mux.HandleFunc("GET /faults", func(rw http.ResponseWriter, _ *http.Request) { reply(rw, toJSON(w.Faults()), nil) })
	mux.HandleFunc("POST /faults", order(w.Fail))
	mux.HandleFunc("DELETE /faults", func(rw http.ResponseWriter, _ *http.Request) { reply(rw, nil, w.Mend()) })
	return mux
}

// A change is the body of a request to change a thing.
type change struct {
	Scope string        `json:"scope"`
	Kind  string        `json:"kind"`
	ID    string        `json:"id"`
	Spec  schema.Object `json:"spec"`
}

// refused is the body of a response with status 422.
type refused struct {
	Message string `json:"message"`
}

// order handles a request that carries JSON and has no result.
func order[T any](obey func(T) error) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxOrder))
		var o T
		if err == nil {
			err = decode(bytes.NewReader(body), &o)
		}
		if err == nil {
			err = obey(o)
		}
		reply(rw, nil, err)
	}
}

func reply(rw http.ResponseWriter, body []byte, err error) {
	rw.Header().Set("Content-Type", "application/json")
	if err != nil {
		rw.WriteHeader(http.StatusUnprocessableEntity)
		body = toJSON(refused{err.Error()})
	}
	_, _ = rw.Write(body) // a client that has left does not need the answer
}

// Change changes a thing as somebody else would, behind the engine's back: the fields of spec replace those that the thing has, objects are
// merged field by field, and null removes a field. Everything else about the thing stays, with its mark and its uid. Where there is no such
// thing, it makes one without a mark. The id may be the name of the thing instead, when no other has that name. As with [World.Put], only
// the shape is checked.
func (w *World) Change(scope, kind, id string, spec schema.Object) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, old, err := w.find(scope, kind, id)
	if err != nil {
		return err
	}
	th := &thing{Spec: schema.Object{}}
	if old != nil {
		*th = *old
		if th.Spec = old.Spec.Clone(); th.Spec == nil {
			th.Spec = schema.Object{}
		}
	}
	merge(th.Spec, spec)
	if err := w.checkThing(at, th); err != nil {
		return err
	}
	return w.put(at, th)
}

// merge changes have as a JSON merge patch does (RFC 7396).
func merge(have, change map[string]any) {
	for name, v := range change {
		switch v := v.(type) {
		case nil:
			delete(have, name)
		case map[string]any:
			into, ok := have[name].(map[string]any)
			if !ok {
				into = map[string]any{}
				have[name] = into
			}
			merge(into, v)
		default:
			have[name] = schema.Clone(v)
		}
	}
}

// take removes a thing as a person would, who has to know when there is none.
func (w *World) take(scope, kind, id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, old, err := w.find(scope, kind, id)
	if err == nil && old == nil {
		err = fmt.Errorf("%s does not exist", at)
	}
	if err != nil {
		return err
	}
	return w.remove(at, false)
}

// find returns the thing that a person means by an id or, when nothing has that id, by a name; nil when there is none.
func (w *World) find(scope, kind, id string) (target, *thing, error) {
	at := target{schema.Place{Scope: scope, Kind: kind}, id}
	if err := w.ready(); err != nil {
		return at, nil, err
	}
	if err := w.checkPlace(at.Place); err != nil {
		return at, nil, fmt.Errorf("%s: %w", at, err)
	}
	things := w.things[at.Place]
	if th := things[id]; th != nil {
		return at, th, nil
	}
	var named []string
	for other, th := range things {
		if th.Name == id {
			named = append(named, other)
		}
	}
	switch len(named) {
	case 0:
		return at, nil, nil
	case 1:
		at.id = named[0]
		return at, things[at.id], nil
	}
	slices.Sort(named)
	return at, nil, fmt.Errorf("%s: %d things have this name: choose one by its id: %s", at, len(named), strings.Join(named, ", "))
}

// Faults returns the faults that were declared and not ended, each with how many calls it has matched.
func (w *World) Faults() []Fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Fault{}, w.faults...)
}
