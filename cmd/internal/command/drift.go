package command

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

func (a *app) driftCommand() *cobra.Command {
	var w watching
	c := &cobra.Command{
		Use:   "drift",
		Short: "Show what was changed outside converge",
		Long: `Observe the site and show how it differs from what was last applied. Nothing is changed.
The report is also written to the store, as drift/latest, for the cloud.

Changes to fields that the document does not state are listed separately, as "unstated"
in JSON: no plan would change them back. They count from the last run that touched the
resource; fields that only the server sets (status) and elements of stated lists do not
count. To clear such a change, state the field in the document, or undo the change at
the site; or, if the field does not matter, add it to lifecycle.ignore and apply that:
ignored fields never count as drift, stated or not. The name of the object is compared
as well, as "name": with that of the resource, or with the one it had when it was
adopted by its id.

What a run itself left half done, or half reverted, is not drift: it is compared with
what that run observed last. While the run is open, whatever it has started is skipped.

With -watch, the report is made again when a provider says that something changed, and
printed and stored again when it differs, until the command is interrupted. Where a
provider reports no changes, drift is found as often as -interval says. With -json each
report is a line. It exits with 0 when it is interrupted.

Without -watch it exits with 0 when there is no drift, with 2 when there is drift of either kind, and
with 8 when a part of the site could not be observed.`,
		Example: `  converge drift
  converge drift -json
  converge drift -watch`,
		Args: exactly(0),
	}
	a.bindFull(c)
	w.bind(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx := c.Context()
		if err := w.check(c); err != nil {
			return err
		}
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		head, err := s.head(ctx)
		if err != nil {
			return err
		}
		if head.Site.ID == "" {
			return s.noDocument(nil)
		}
		s.headline("last applied state")
		e, err := s.engine()
		if err != nil {
			return err
		}
		if w.on {
			return s.watchDrift(ctx, e, head.Site, w.interval)
		}
		r, err := s.drift(ctx, e)
		if err == nil {
			err = s.publish(ctx, r, s.printJSON)
		}
		switch {
		case err != nil:
			return err
		case !r.Complete:
			return outcome(exitUnknown)
		case !r.Clean():
			return outcome(exitDifferent)
		}
		return nil
	}
	return c
}

// drift compares the site with what was applied last.
func (s *session) drift(ctx context.Context, e *engine.Engine) (*drift.Report, error) {
	head, err := s.head(ctx)
	if err != nil {
		return nil, err
	}
	external, err := s.external(ctx)
	if err != nil {
		return nil, err
	}
	r, err := e.Drift(ctx, head.Site, external...)
	if err != nil {
		return nil, err
	}
	return view.MaskDrift(r, s.kinds), nil
}

// publish stores and prints a report.
func (s *session) publish(ctx context.Context, r *drift.Report, printJSON func(any) error) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := s.store.Publish(ctx, "drift/latest", body); err != nil {
		s.view.Warn("the report was not published: " + err.Error())
	}
	if s.flags.json {
		return printJSON(r)
	}
	s.print(view.DriftText(r, s.kinds, s.style(s.sys.Stdout), s.flags.layout))
	return nil
}

// watchDrift reports drift whenever it becomes different, until ctx is done.
func (s *session) watchDrift(ctx context.Context, e *engine.Engine, site schema.Site, interval time.Duration) error {
	needs, err := s.offers(ctx)
	if err != nil {
		return err
	}
	var last []byte
	return s.eachChange(e.Watch(ctx, site, engine.Watching{Needs: func() []providers.Need { return needs }, Full: interval}), func([]engine.Changed) error {
		r, err := s.drift(ctx, e)
		if err != nil {
			return err
		}
		said := *r
		said.At = time.Time{}
		body, err := json.Marshal(said)
		if err != nil || bytes.Equal(body, last) {
			return err
		}
		if !s.flags.json {
			s.print(view.AtText(time.Now(), last == nil, s.style(s.sys.Stdout)))
		}
		last = body
		return s.publish(ctx, r, s.printLine)
	})
}
