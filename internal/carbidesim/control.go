package carbidesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc/status"

	"converge.dev/converge/providers/carbide/forge"
)

// controlServer lets another process see and control the world:
//
//	GET    /world                 the live world; with ?full=1 everything
//	GET    /calls                 how often each method has been called; DELETE resets the counts
//	GET    /faults                the faults that can still strike; POST declares one, DELETE clears them
//	POST   /advance               {"duration": "5m"} moves the clock
//	POST   /call/{method}         makes that call as a stranger; the body is the request
//	POST   /instances/{id}        {"phone_home": true}, {"state": "FAILED"} or {"behind": true}; an empty state shows the
//	                              instance's own
//	POST   /machines/{id}/alerts  {"ALERT": ["PreventAllocations"]} replaces the machine's alerts
//	POST   /machines/{id}/deaf    true makes its guest ignore requests to shut down
//
// A refused call is answered with status 422 and {"code": "NOT_FOUND", "message": "..."}.
type controlServer struct {
	world *World
	http  *http.Server
	done  chan struct{}
}

// ErrInUse reports that the control socket belongs to another simulated site.
var ErrInUse = errors.New("another simulated site answers there")

// listenControl serves on a socket that only the owner may use. It replaces a stale socket of an earlier run, and nothing else.
func listenControl(w *World, path string) (*controlServer, error) {
	switch there, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case there.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is there, and no socket", path)
	default:
		if other, err := net.Dial("unix", path); err == nil {
			other.Close()
			return nil, fmt.Errorf("%s: %w", path, ErrInUse)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	c := &controlServer{world: w, done: make(chan struct{})}
	c.http = &http.Server{Handler: c.routes(), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(c.done)
		_ = c.http.Serve(l) // it ends when stop closes the listener
	}()
	return c, nil
}

func (c *controlServer) stop() {
	c.http.Close()
	<-c.done
}

func (c *controlServer) routes() http.Handler {
	w := c.world
	mux := http.NewServeMux()
	mux.HandleFunc("GET /world", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("full") != "" {
			reply(rw, w.DumpAll(), nil)
			return
		}
		reply(rw, w.Dump(), nil)
	})
	mux.HandleFunc("GET /calls", func(rw http.ResponseWriter, _ *http.Request) { replyJSON(rw, w.Calls()) })
	mux.HandleFunc("DELETE /calls", func(rw http.ResponseWriter, _ *http.Request) { w.ResetCalls() })
	mux.HandleFunc("GET /faults", func(rw http.ResponseWriter, _ *http.Request) { replyJSON(rw, w.Faults()) })
	mux.HandleFunc("DELETE /faults", func(rw http.ResponseWriter, _ *http.Request) { w.ClearFaults() })
	mux.HandleFunc("POST /faults", order(func(_ *http.Request, f Fault) error { return w.Inject(f) }))
	mux.HandleFunc("POST /advance", order(func(_ *http.Request, o struct{ Duration string }) error {
		d, err := time.ParseDuration(o.Duration)
		if err != nil {
			return err
		}
		w.Advance(d)
		return nil
	}))
	mux.HandleFunc("POST /call/{method}", func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			reply(rw, nil, err)
			return
		}
		out, err := w.Call(r.Context(), r.PathValue("method"), body)
		reply(rw, out, err)
	})
	mux.HandleFunc("POST /instances/{id}", order(func(r *http.Request, o struct {
		PhoneHome bool `json:"phone_home"`
		State     *string
		Behind    *bool
	}) error {
		id := r.PathValue("id")
		switch {
		case o.PhoneHome:
			return w.PhoneHome(id)
		case o.Behind != nil:
			return w.LeaveBehind(id, *o.Behind)
		case o.State == nil:
			return errors.New("phone_home, state or behind is required")
		}
		if *o.State == "" {
			return w.SetInstanceState(id, nil)
		}
		number, ok := forge.TenantState_value[*o.State]
		if !ok {
			return fmt.Errorf("unknown state %q", *o.State)
		}
		return w.SetInstanceState(id, forge.TenantState(number).Enum())
	}))
	mux.HandleFunc("POST /machines/{id}/alerts", order(func(r *http.Request, alerts map[string][]string) error {
		return w.SetAlerts(r.PathValue("id"), alerts)
	}))
	mux.HandleFunc("POST /machines/{id}/deaf", order(func(r *http.Request, deaf bool) error { return w.Deafen(r.PathValue("id"), deaf) }))
	return mux
}

// order handles a request that carries JSON and has no result.
func order[T any](obey func(*http.Request, T) error) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		var body T
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&body); err != nil {
			reply(rw, nil, err)
			return
		}
		reply(rw, []byte("{}\n"), obey(r, body))
	}
}

func replyJSON(rw http.ResponseWriter, v any) { reply(rw, indent(v), nil) }

func reply(rw http.ResponseWriter, body []byte, err error) {
	rw.Header().Set("Content-Type", "application/json")
	if err != nil {
		rw.WriteHeader(http.StatusUnprocessableEntity)
		s := status.Convert(err)
		body = indent(refused{codeName(s.Code()), s.Message()})
	}
	_, _ = rw.Write(body) // a client that has left does not need the answer
}

// refused is the body of a response with status 422.
type refused struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}
