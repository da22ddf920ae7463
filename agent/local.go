package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"converge.dev/converge/internal/files"
)

// SocketName is the name of the socket of an agent in its directory.
const SocketName = "agent.sock"

// ListenLocal listens on the socket in the directory of an agent, which only the owner of that can open. A socket that is there already
// is replaced: [Run] calls it while no other agent uses the directory.
func ListenLocal(dir string) (net.Listener, error) {
	path := filepath.Join(dir, SocketName)
	switch info, err := os.Lstat(path); {
	case err == nil && info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is %s, not a socket: move it away", path, files.Kind(info.Mode()))
	case err == nil:
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
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

// The limits of the socket: whoever uses it must not be able to hold up the agent.
const (
	localConns     = 64
	localRequests  = 16 // at the same time
	localFollowers = 4  // of those, that follow the log
	localIdle      = 10 * time.Second
	localWrite     = 10 * time.Second
	localGuard     = 2 * time.Second // for what the guard says
)

// A local answers those on the machine who ask how the agent stands.
type local struct {
	a         *agent
	requests  chan struct{}
	followers chan struct{}
	renewing  chan struct{}
}

// serveLocal answers until ctx is done. It has closed the listener when it returns.
func (a *agent) serveLocal(ctx context.Context, l net.Listener) {
	s := &local{a, make(chan struct{}, localRequests), make(chan struct{}, localFollowers), make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", s.status)
	mux.HandleFunc("POST /renew", s.renew)
	mux.HandleFunc("POST /reset-clock", s.resetClock)
	mux.HandleFunc("GET /logs", s.logs)
	var conns atomic.Int64
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.one(mux, w, r) }),
		ReadHeaderTimeout: localIdle, IdleTimeout: localIdle, MaxHeaderBytes: 16 << 10,
		ConnState: func(c net.Conn, state http.ConnState) {
			switch {
			case state == http.StateNew && conns.Add(1) > localConns:
				_ = c.Close()
			case state == http.StateClosed:
				conns.Add(-1)
			}
		},
		ErrorLog:    slog.NewLogLogger(a.Logger.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		a.Logger.Warn("nobody can ask any more how the agent stands", "error", err)
		_ = l.Close()
	}
	<-done
	for range localRequests { // those in progress end with their connections
		s.requests <- struct{}{}
	}
}

// one answers a request, unless there are too many.
func (s *local) one(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	select {
	case s.requests <- struct{}{}:
		defer func() { <-s.requests }()
	default:
		fail(w, http.StatusServiceUnavailable, "the agent answers too many requests")
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(localWrite))
	if r.ContentLength != 0 { // it could come for ever
		w.Header().Set("Connection", "close")
		fail(w, http.StatusBadRequest, "a request has no body")
		return
	}
	mux.ServeHTTP(w, r)
}

// fail answers with an error: {"error": "…"}.
func fail(w http.ResponseWriter, code int, format string, args ...any) {
	answer(w, code, map[string]string{"error": fmt.Sprintf(format, args...)})
}

func answer(w http.ResponseWriter, code int, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil { // a time out of range
		code, text = http.StatusInternalServerError, []byte(`{"error": "the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // whoever asked may be gone
}

func (s *local) status(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), localGuard)
	defer cancel()
	answer(w, http.StatusOK, s.a.status(ctx))
}

// renew replaces the certificate, whether or not it is time.
func (s *local) renew(w http.ResponseWriter, r *http.Request) {
	select {
	case s.renewing <- struct{}{}:
		defer func() { <-s.renewing }()
	default:
		fail(w, http.StatusConflict, "the certificate is being renewed")
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(renewing + localWrite))
	ctx, cancel := context.WithTimeout(r.Context(), renewing)
	defer cancel()
	if err := s.a.refresh(ctx, true); err != nil {
		fail(w, http.StatusBadGateway, "the certificate could not be renewed: %v", err)
		return
	}
	ctx, cancel = context.WithTimeout(r.Context(), localGuard)
	defer cancel()
	answer(w, http.StatusOK, s.a.status(ctx).Certificate)
}

// A reset says what was forgotten.
type reset struct {
	Forgotten *time.Time `json:"forgotten"`
}

// resetClock makes the node believe its own clock again, when heads have said that it is later.
func (s *local) resetClock(w http.ResponseWriter, _ *http.Request) {
	now := s.a.Now()
	head := s.a.ahead(now)
	if head != nil {
		if err := s.a.book.ForgetTime(); err != nil {
			fail(w, http.StatusInternalServerError, "%v", err)
			return
		}
		s.a.Logger.Warn("the time of the newest head was forgotten, because somebody on this machine vouched for its clock", "head", *head, "clock", now)
	}
	answer(w, http.StatusOK, reset{head})
}

// renewing is how long a renewal that somebody waits for may take.
const renewing = 30 * time.Second

// logs answers with the newest records, one a line: n of them (default 100), as text or, with format=json, as JSON. With follow=true it
// goes on with those that come.
func (s *local) logs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	n, follow, err := 100, false, error(nil)
	if text := q.Get("n"); text != "" {
		if n, err = strconv.Atoi(text); err != nil || n < 0 {
			fail(w, http.StatusBadRequest, "n: want a number of records")
			return
		}
	}
	if text := q.Get("follow"); text != "" {
		if follow, err = strconv.ParseBool(text); err != nil {
			fail(w, http.StatusBadRequest, "follow: want true or false")
			return
		}
	}
	form := q.Get("format")
	if form != "" && form != "text" && form != "json" {
		fail(w, http.StatusBadRequest, "format: want text or json")
		return
	}
	log := s.a.Log
	if log == nil {
		fail(w, http.StatusNotFound, "this agent keeps no log")
		return
	}
	if follow {
		select {
		case s.followers <- struct{}{}:
			defer func() { <-s.followers }()
		default:
			fail(w, http.StatusServiceUnavailable, "the log is followed by too many")
			return
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if form == "json" {
		w.Header().Set("Content-Type", "application/x-ndjson")
	}
	out, at := http.NewResponseController(w), uint64(0)
	for most := n; ; most = math.MaxInt {
		lines, total, more := log.after(at, most)
		at = total
		_ = out.SetWriteDeadline(time.Now().Add(localWrite)) // a reader that does not read is left
		for _, line := range lines {
			text := line.text
			if form == "json" {
				text = line.json
			}
			if _, err := w.Write(text); err != nil {
				return
			}
		}
		if !follow || out.Flush() != nil {
			return
		}
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}

// A Local asks the agent of a directory, on the same machine, how it stands. It connects for each call.
type Local struct {
	path   string
	client *http.Client
}

// AskLocal returns one for the agent whose identity is in a directory. It does not connect yet.
func AskLocal(dir string) *Local {
	path := filepath.Join(dir, SocketName)
	return &Local{path, &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
			if err != nil {
				err = &AwayError{Path: path, Err: err}
			}
			return conn, err
		},
	}}}
}

// An AwayError reports that no agent can be asked at a socket.
type AwayError struct {
	Path string
	Err  error // of the socket: fs.ErrNotExist, fs.ErrPermission, or nobody listens
}

// Error implements error.
func (e *AwayError) Error() string { return fmt.Sprintf("no agent answers at %s: %v", e.Path, e.Err) }

// Unwrap returns the cause.
func (e *AwayError) Unwrap() error { return e.Err }

// Status returns how the agent stands.
func (l *Local) Status(ctx context.Context) (s Status, err error) {
	return s, l.ask(ctx, http.MethodGet, "/status", &s)
}

// Renew makes the agent renew its certificate now, and returns the new one.
func (l *Local) Renew(ctx context.Context) (c Certificate, err error) {
	return c, l.ask(ctx, http.MethodPost, "/renew", &c)
}

// ResetClock makes the agent believe the clock of its machine again, whatever the heads of its site have said, and returns the time that
// they said; nil when that was not later than the clock, so that nothing was to be done.
func (l *Local) ResetClock(ctx context.Context) (*time.Time, error) {
	var r reset
	err := l.ask(ctx, http.MethodPost, "/reset-clock", &r)
	return r.Forgotten, err
}

// Logs writes the newest n records of the agent's log, oldest first, one a line, as text or JSON. With follow it goes on with those that
// come, until ctx is done or the agent ends.
func (l *Local) Logs(ctx context.Context, w io.Writer, n int, follow, json bool) error {
	form := "text"
	if json {
		form = "json"
	}
	body, err := l.send(ctx, http.MethodGet, fmt.Sprintf("/logs?n=%d&follow=%t&format=%s", n, follow, form))
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(w, body)
	return err
}

// mostAnswer is the maximum size of an answer that is read as a whole.
const mostAnswer = 8 << 20

func (l *Local) ask(ctx context.Context, method, what string, v any) error {
	body, err := l.send(ctx, method, what)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(io.LimitReader(body, mostAnswer)).Decode(v); err != nil {
		return fmt.Errorf("what answers at %s is no agent of this version: %w", l.path, err)
	}
	return nil
}

func (l *Local) send(ctx context.Context, method, what string) (io.ReadCloser, error) {
	q, err := http.NewRequestWithContext(ctx, method, "http://agent"+what, nil)
	if err != nil {
		return nil, err
	}
	r, err := l.client.Do(q)
	if err != nil {
		if away := new(AwayError); errors.As(err, &away) {
			return nil, away
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("ask the agent at %s: %w", l.path, err)
	}
	if r.StatusCode == http.StatusOK {
		return r.Body, nil
	}
	defer r.Body.Close()
	var failure struct {
		Error string `json:"error"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, mostAnswer)).Decode(&failure); err != nil || failure.Error == "" {
		failure.Error = "the agent at " + l.path + " answers " + r.Status
	}
	return nil, errors.New(failure.Error)
}
