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
	"maps"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/state"
	"converge.dev/converge/trust/certs"
)

// Limits of the servers.
const (
	MaxHeader   = 16 << 10 // bytes of the header of a request
	MaxRequests = 64       // that are answered at a time; /healthz, /readyz, /state and /v1/site do not count
	MaxSummary  = 16       // requests for /state and /v1/site that are answered at a time
	MaxPlans    = 2        // requests for a plan with its steps that are answered at a time
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
// verified is in the TLS of its requests. Where the configuration has HTTP/2, that is for the calls of operators only.
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
	if calls := a.operations(config); calls != nil {
		f := newFork(in, config, calls)
		defer calls.server.Stop()
		go func() { _ = calls.server.Serve(callers{f}) }()
		in = f
	} else if config != nil {
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
	Title    string               `json:"title"`
	Status   int                  `json:"status"`
	Detail   string               `json:"detail,omitempty"`
	Fix      string               `json:"fix,omitempty"`
	Problems []state.InboxProblem `json:"problems,omitempty"` // of a document
	More     int                  `json:"more_problems,omitempty"`
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
	on := map[string]map[string]http.Handler{}
	add := func(path, method string, h http.Handler) {
		if on[path] == nil {
			on[path] = map[string]http.Handler{}
		}
		on[path][method] = h
	}
	add("/healthz", http.MethodGet, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		headers(w, "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n")) // who has gone does not need it
	}))
	add("/readyz", http.MethodGet, a.respond(func(*http.Request) (any, int, error) {
		r := a.Ready()
		return r, r.code(), nil
	}))
	slots, summary, plans := make(chan struct{}, MaxRequests), make(chan struct{}, MaxSummary), make(chan struct{}, MaxPlans)
	writes, documents := make(chan struct{}, MaxWrites), make(chan struct{}, MaxDocuments)
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
		switch path {
		case "/state", "/v1/site", "/v1/holds": // whoever looks what is wrong must not be kept out by what is
			in = summary
		case "/v1/plans/{digest}": // its answer may have many megabytes, until it is read
			in = plans
		}
		add(path, http.MethodGet, limited(f, in))
	}
	for path, methods := range a.writers() {
		for method, w := range methods {
			in := writes
			if w.role == certs.WriteDocument { // whoever sends one slowly keeps nobody from stopping what goes wrong
				in = documents
			}
			add(path, method, a.write(w, in))
		}
	}
	return a.guard(on, "/v1/openapi.json")
}

// guard serves paths by their methods, refuses what none of them allows, and answers for a handler that panics. Who may GET may HEAD. See
// is where what there is can be seen.
func (a *API) guard(on map[string]map[string]http.Handler, see string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.refuse(w, problem(http.StatusNotFound, "there is nothing at %s; see %s", r.URL.Path, see))
	})
	for path, methods := range on {
		allow := slices.Sorted(maps.Keys(methods))
		if h, ok := methods[http.MethodGet]; ok {
			methods[http.MethodHead] = h
			allow = slices.Sorted(maps.Keys(methods))
		}
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			h, ok := methods[r.Method]
			if !ok {
				w.Header().Set("Allow", strings.Join(allow, ", "))
				a.refuse(w, problem(http.StatusMethodNotAllowed, "want %s here", strings.Join(allow, " or ")))
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p == http.ErrAbortHandler {
				panic(p)
			} else if p != nil {
				a.o.Logger.Error("a request made the program fail: this is a bug", "path", r.URL.Path, "error", a.text(fmt.Sprint(p)), "stack", string(debug.Stack()))
				a.refuse(w, problem(http.StatusInternalServerError, "the program failed at this request; its log says how"))
			}
		}()
		if r.URL.Path != "/healthz" && misdirected(r) { // that the process lives is no secret, and probes name any host
			a.refuse(w, problem(http.StatusMisdirectedRequest, "the address of this server is one of this machine only, and the request names another host"))
			return
		}
		if reads := r.Method == http.MethodGet || r.Method == http.MethodHead; reads && r.ContentLength != 0 {
			w.Header().Set("Connection", "close") // the server would wait for the body before it ends the answer
			a.refuse(w, problem(http.StatusBadRequest, "%s takes no body", r.Method))
			return
		}
		mux.ServeHTTP(w, r)
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
