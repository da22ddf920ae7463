package agent

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
)

// A Log keeps the newest records of a log in memory. Its methods may be called concurrently.
type Log struct {
	most int // records

	mu    sync.Mutex
	lines []logLine     // the oldest first
	size  int           // bytes of them
	total uint64        // how many there have been
	came  chan struct{} // closed, and replaced, when there is one more
}

// A logLine is a record in both forms, each with its end of line.
type logLine struct{ text, json []byte }

// How much a log keeps at the most besides its number of records: long ones push out more than one.
const (
	logBytes  = 4 << 20
	lineBytes = 64 << 10 // a longer record is replaced by its message
)

// NewLog returns a log that keeps so many records.
func NewLog(most int) *Log { return &Log{most: most, came: make(chan struct{})} }

// Handler returns a handler whose records are kept, from a level on. They are kept as they come: what must not be in a log is
// to be taken out before.
func (l *Log) Handler(level slog.Leveler) slog.Handler { return &logHandler{log: l, level: level} }

type logHandler struct {
	log   *Log
	level slog.Leveler
	with  []func(slog.Handler) slog.Handler
}

func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.then(func(n slog.Handler) slog.Handler { return n.WithAttrs(attrs) })
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	return h.then(func(n slog.Handler) slog.Handler { return n.WithGroup(name) })
}

func (h *logHandler) then(f func(slog.Handler) slog.Handler) slog.Handler {
	return &logHandler{h.log, h.level, append(h.with[:len(h.with):len(h.with)], f)}
}

// Handle implements slog.Handler. The forms are made without the lock, because a value may log when it is asked for its text.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	o := &slog.HandlerOptions{Level: h.level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration { // as people and other programs write it, not in nanoseconds
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}}
	render := func(form func(*bytes.Buffer) slog.Handler) ([]byte, error) {
		var b bytes.Buffer
		n := form(&b)
		for _, with := range h.with {
			n = with(n)
		}
		err := n.Handle(ctx, r)
		if b.Len() <= lineBytes || err != nil {
			return b.Bytes(), err
		}
		b.Reset()
		short := slog.NewRecord(r.Time, r.Level, r.Message[:min(len(r.Message), lineBytes/8)], 0)
		err = form(&b).Handle(ctx, short)
		return b.Bytes(), err
	}
	text, err := render(func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, o) })
	if err != nil {
		return err
	}
	json, err := render(func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, o) })
	if err != nil {
		return err
	}
	h.log.keep(logLine{text, json})
	return nil
}

func (l logLine) size() int { return len(l.text) + len(l.json) }

func (l *Log) keep(line logLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	l.size += line.size()
	l.total++
	for len(l.lines) > l.most || l.size > logBytes && len(l.lines) > 1 {
		l.size -= l.lines[0].size()
		l.lines[0] = logLine{}
		l.lines = l.lines[1:]
	}
	close(l.came)
	l.came = make(chan struct{})
}

// after returns the records that came after the first n there have been, at the most the newest of them, and how many there have
// been by now; and a channel that is closed when there is one more.
func (l *Log) after(n uint64, most int) (lines []logLine, total uint64, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	want := int(min(l.total-n, uint64(min(most, len(l.lines)))))
	return append(lines, l.lines[len(l.lines)-want:]...), l.total, l.came
}
