package secret

import (
	"context"
	"fmt"
	"log/slog"
)

// Handler returns a log handler whose records hold none of the values: not in the message, not in an attribute, however deep.
func (s *Scrubber) Handler(next slog.Handler) slog.Handler { return handler{s, next} }

type handler struct {
	scrubber *Scrubber
	next     slog.Handler
}

// Enabled implements [slog.Handler].
func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if h.scrubber.forms.Load() == nil {
		return h.next.Handle(ctx, r)
	}
	clean := slog.NewRecord(r.Time, r.Level, h.scrubber.ScrubText(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(h.attr(a))
		return true
	})
	return h.next.Handle(ctx, clean)
}

// WithAttrs implements [slog.Handler].
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.attr(a)
	}
	return handler{h.scrubber, h.next.WithAttrs(clean)}
}

// WithGroup implements [slog.Handler].
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.scrubber, h.next.WithGroup(name)}
}

// attr returns an attribute as it may be logged. A value of a complex type is logged as its text: another handler might
// print more of it than the text shows.
func (h handler) attr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindGroup:
		group := make([]slog.Attr, len(v.Group()))
		for i, e := range v.Group() {
			group[i] = h.attr(e)
		}
		v = slog.GroupValue(group...)
	case slog.KindString:
		v = slog.StringValue(h.scrubber.ScrubText(v.String()))
	case slog.KindAny:
		text := fmt.Sprintf("%+v", v.Any())
		if b, ok := v.Any().([]byte); ok {
			text = string(b)
		}
		v = slog.StringValue(h.scrubber.ScrubText(text))
	}
	return slog.Attr{Key: a.Key, Value: v}
}
