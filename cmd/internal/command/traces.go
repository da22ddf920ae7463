package command

import (
	"context"

	"converge.dev/converge/cmd/internal/traces"
	"converge.dev/converge/engine/event"
)

// traced returns emit, which then also sends traces where the environment says where to. They are closed at the end of the command.
func (s *session) traced(emit event.Sink) event.Sink {
	t, err := traces.Open(context.Background(), traces.Options{
		Env: func(name string) string { return s.env[name] }, Site: s.site, Version: s.sys.Version, Parent: s.env[envTrace], Scrub: s.scrubber.ScrubText, Logger: s.log,
	})
	if err != nil { // nobody is kept from applying
		s.view.Warn(err.Error())
	}
	if t == nil {
		return emit
	}
	s.closers = append(s.closers, t.Close)
	return func(e event.Event) {
		t.Event(e)
		emit(e)
	}
}
