package etcd

import (
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// Trace is the level of what etcd logs about itself as it starts, works and ends: some fifty lines per command.
const Trace = slog.LevelDebug - 4

// logCore passes the log of etcd to slog, at lower levels: its warnings, of which every start has some, are for debugging.
// What etcd cannot do for us is returned as an error anyway.
type logCore struct{ logger *slog.Logger }

func slogLevel(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelWarn
	case l == zapcore.WarnLevel:
		return slog.LevelDebug
	case l == zapcore.InfoLevel:
		return Trace
	}
	return Trace - 4
}

// Enabled implements zapcore.Core.
func (c logCore) Enabled(l zapcore.Level) bool {
	return c.logger.Enabled(context.Background(), slogLevel(l))
}

// With implements zapcore.Core.
func (c logCore) With(fields []zapcore.Field) zapcore.Core {
	return logCore{slog.New(c.logger.Handler().WithAttrs(attrs(fields)))}
}

// Check implements zapcore.Core.
func (c logCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c logCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.logger.LogAttrs(context.Background(), slogLevel(e.Level), "etcd: "+e.Message, attrs(fields)...)
	return nil
}

// Sync implements zapcore.Core.
func (c logCore) Sync() error { return nil }

func attrs(fields []zapcore.Field) []slog.Attr {
	m := zapcore.NewMapObjectEncoder()
	as := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		f.AddTo(m)
		if v, ok := m.Fields[f.Key]; ok {
			as = append(as, slog.Any(f.Key, v))
		}
	}
	return as
}
