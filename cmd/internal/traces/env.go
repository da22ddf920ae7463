package traces

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// check fails when the environment says where traces are sent in a way that the exporters do not understand: they would send them
// elsewhere, or without their headers. The error names the variable and not its value, which may have a password.
func check(env func(string) string) error {
	for _, name := range []string{endpoint, tracesEndpoint} {
		text := env(name)
		if text == "" {
			continue
		}
		if u, err := url.Parse(text); err != nil || u.Scheme == "" || u.Host == "" && u.Scheme != "unix" {
			return fmt.Errorf("%s: want a URL with scheme and host, such as http://localhost:4318", name)
		}
	}
	for _, name := range []string{headers, tracesHeaders} {
		text := env(name)
		if text == "" {
			continue
		}
		for pair := range strings.SplitSeq(text, ",") {
			key, value, ok := strings.Cut(pair, "=")
			if strings.TrimSpace(pair) == "" { // after the last comma
				continue
			}
			if _, err := url.PathUnescape(value); !ok || err != nil || key == "" || strings.ContainsAny(strings.TrimSpace(key), " \t()<>@:;\"/[]?{}\\") {
				return fmt.Errorf("%s: want NAME=VALUE,… with values in URL encoding", name)
			}
		}
	}
	return nil
}

// values returns what may be secret in the environment: of headers and attributes the values, of endpoints who logs in, and how.
func values(env func(string) string) (list []string) {
	add := func(text string) {
		text = strings.TrimSpace(text)
		plain, err := url.PathUnescape(text)
		for _, s := range []string{text, plain} {
			if len(s) > 3 && (err == nil || s == text) { // a shorter one is in any text
				list = append(list, s)
			}
		}
	}
	for _, name := range []string{headers, tracesHeaders, resources} {
		for pair := range strings.SplitSeq(env(name), ",") {
			if _, value, ok := strings.Cut(pair, "="); ok {
				add(value)
			} else {
				add(pair)
			}
		}
	}
	for _, name := range []string{endpoint, tracesEndpoint} {
		if u, err := url.Parse(env(name)); err == nil && u.User != nil {
			password, _ := u.User.Password()
			add(u.User.String())
			add(u.User.Username())
			add(password)
		}
	}
	return list
}

// without returns scrub, which then also removes these texts.
func without(scrub func(string) string, secrets []string) func(string) string {
	return func(text string) string {
		text = scrub(text)
		for _, s := range secrets {
			text = strings.ReplaceAll(text, s, "***")
		}
		return text
	}
}

// A valueless handler logs messages only: what OpenTelemetry says about its settings has their values, which may be secret.
type valueless struct{ slog.Handler }

// Handle implements [slog.Handler].
func (h *valueless) Handle(ctx context.Context, r slog.Record) error {
	return h.Handler.Handle(ctx, slog.NewRecord(r.Time, r.Level, "traces: "+r.Message, r.PC))
}

// WithAttrs implements [slog.Handler].
func (h *valueless) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup implements [slog.Handler].
func (h *valueless) WithGroup(string) slog.Handler { return h }

// A gate is the handler of a logger until it is shut. What the SDK goes on with when nobody waits for it any longer is in no log: nobody
// reads it, and it may be closed.
type gate struct {
	slog.Handler
	door *door
}

// A door is shut once, for all handlers of a gate.
type door struct {
	mu   sync.Mutex
	shut bool
}

func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
}

// Handle implements [slog.Handler].
func (g gate) Handle(ctx context.Context, r slog.Record) error {
	g.door.mu.Lock()
	defer g.door.mu.Unlock()
	if g.door.shut {
		return nil
	}
	return g.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (g gate) WithAttrs(attrs []slog.Attr) slog.Handler {
	return gate{g.Handler.WithAttrs(attrs), g.door}
}

// WithGroup implements [slog.Handler].
func (g gate) WithGroup(name string) slog.Handler { return gate{g.Handler.WithGroup(name), g.door} }

// ended sends spans in batches, and counts all that ended.
type ended struct {
	sdktrace.SpanProcessor
	spans atomic.Int64
}

// OnEnd implements [sdktrace.SpanProcessor].
func (e *ended) OnEnd(s sdktrace.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		e.spans.Add(1)
	}
	e.SpanProcessor.OnEnd(s)
}

// batches fails where the SDK would panic, because of what the environment says about its sizes.
func batches(to sdktrace.SpanExporter, env func(string) string) (e *ended, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New(fmt.Sprint(p))
		}
	}()
	size, err := strconv.Atoi(cmp.Or(env(queueSize), strconv.Itoa(queue)))
	if err != nil || size < 1 || size > 1<<24 {
		return nil, fmt.Errorf("%s: want a number from 1 to %d", queueSize, 1<<24)
	}
	return &ended{SpanProcessor: sdktrace.NewBatchSpanProcessor(to, sdktrace.WithMaxQueueSize(size))}, nil
}
