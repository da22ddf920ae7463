package api

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Limits of the servers.
const (
	MaxHeader   = 16 << 10 // bytes of the header of a request
	MaxRequests = 64       // that are answered at a time; /healthz, /readyz, /state and /v1/site do not count
	MaxSummary  = 16       // requests for /state and /v1/site that are answered at a time
	MaxConns    = 256      // connections of a listener at a time; one more is closed at once

	readTime  = 10 * time.Second
	writeTime = time.Minute
	idleTime  = 20 * time.Second // a connection without requests takes the place of another one
)

// Serve answers requests on a listener with a handler of an [API], until ctx is done; requests in progress then have a moment to end.
// It closes the listener, and fails when that can no longer be listened on. Of connections it holds [MaxConns] at a time.
func (a *API) Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return a.ServeTLS(ctx, l, h, nil)
}

// ServeTLS is [API.Serve] over TLS, or without it when the configuration is nil. A client's certificate that the configuration has
// verified is in the TLS of its requests.
func (a *API) ServeTLS(ctx context.Context, l net.Listener, h http.Handler, config *tls.Config) error {
	s := &http.Server{
		Handler: h, MaxHeaderBytes: MaxHeader, ReadHeaderTimeout: readTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		ErrorLog: slog.NewLogLogger(a.o.Logger.Handler(), slog.LevelDebug), // strangers cause these
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		brief, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.Shutdown(brief) != nil {
			_ = s.Close()
		}
	})
	var in net.Listener = &capped{Listener: l, max: MaxConns}
	if config != nil {
		in = tls.NewListener(in, config)
	}
	err := s.Serve(in)
	if !stop() {
		<-ended
	}
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// A Problem is the body of a response that is not what was asked for: application/problem+json, RFC 9457.
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// Error implements error.
func (p *Problem) Error() string { return p.Title + ": " + p.Detail }

func problem(status int, format string, args ...any) *Problem {
	return &Problem{Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, args...)}
}

// An answer returns the body of a response, and its status where that is not 200.
type answer func(r *http.Request) (body any, status int, err error)

// Handler returns what is served to programs and people: health, state, and the site's data below /v1.
func (a *API) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		headers(w, "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n")) // who has gone does not need it
	}))
	mux.Handle("/readyz", a.respond(func(*http.Request) (any, int, error) {
		r := a.Ready()
		return r, r.code(), nil
	}))
	slots, summary := make(chan struct{}, MaxRequests), make(chan struct{}, MaxSummary)
	limited := func(f answer, slots chan struct{}) http.Handler {
		h := a.respond(f)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				h.ServeHTTP(w, r)
			default:
				a.refuse(w, problem(http.StatusServiceUnavailable, "there are %d requests in progress already", cap(slots)))
			}
		})
	}
	for path, f := range a.routes() {
		in := slots
		if path == "/state" || path == "/v1/site" { // whoever looks what is wrong must not be kept out by what is
			in = summary
		}
		mux.Handle(path, limited(f, in))
	}
	mux.Handle("/", a.respond(func(r *http.Request) (any, int, error) {
		return nil, 0, problem(http.StatusNotFound, "there is nothing at %s; see /v1/openapi.json", r.URL.Path)
	}))
	return a.guard(mux)
}

// guard refuses what no route allows, and answers for a handler that panics.
func (a *API) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p == http.ErrAbortHandler {
				panic(p)
			} else if p != nil {
				a.o.Logger.Error("a request made the program fail: this is a bug", "path", r.URL.Path, "error", a.text(fmt.Sprint(p)), "stack", string(debug.Stack()))
				a.refuse(w, problem(http.StatusInternalServerError, "the program failed at this request; its log says how"))
			}
		}()
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			a.refuse(w, problem(http.StatusMethodNotAllowed, "this interface only reads: use GET or HEAD"))
		case r.URL.Path != "/healthz" && misdirected(r): // that the process lives is no secret, and probes name any host
			a.refuse(w, problem(http.StatusMisdirectedRequest, "the address of this server is one of this machine only, and the request names another host"))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// misdirected reports whether a request that arrived at a loopback address was meant for another host. A browser sends such requests
// for a web page whose name somebody has pointed at this machine, in order to read what the page's author cannot reach.
func misdirected(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if r.TLS != nil || !ok || !local.IP.IsLoopback() { // over TLS the browser has asked for the certificate of that name
		return false
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	ip, err := netip.ParseAddr(host)
	return !strings.EqualFold(host, "localhost") && (err != nil || !ip.IsLoopback())
}

func headers(w http.ResponseWriter, kind string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

// respond writes what f returns as JSON. Its tag is that of the content, so that who asks again and again need not read it again.
func (a *API) respond(f answer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, status, err := f(r)
		var p *Problem
		switch {
		case errors.As(err, &p):
			a.refuse(w, p)
			return
		case err != nil:
			a.o.Logger.Warn("a request could not be answered", "path", r.URL.Path, "error", err)
			a.refuse(w, problem(http.StatusServiceUnavailable, "%s", a.text(err.Error())))
			return
		}
		text, err := json.Marshal(body)
		if err != nil { // all bodies are JSON values
			a.refuse(w, problem(http.StatusInternalServerError, "%s", a.text(err.Error())))
			return
		}
		sum := sha256.Sum256(text)
		tag := `"` + hex.EncodeToString(sum[:16]) + `"`
		headers(w, "application/json")
		w.Header().Set("ETag", tag)
		if has := tags(r); status == 0 && (slices.Contains(has, tag) || slices.Contains(has, "*")) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		if status != 0 {
			w.WriteHeader(status)
		}
		_, _ = w.Write(append(text, '\n')) // who has gone does not need it
	})
}

// tags returns those that the sender has already.
func tags(r *http.Request) (list []string) {
	for tag := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		list = append(list, strings.TrimPrefix(strings.TrimSpace(tag), "W/"))
	}
	return list
}

// refuse writes a problem.
func (a *API) refuse(w http.ResponseWriter, p *Problem) {
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	headers(w, "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // who has gone does not need it
}
