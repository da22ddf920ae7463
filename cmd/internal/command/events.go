package command

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/site/api"
	"converge.dev/converge/site/outbox"
	"converge.dev/converge/state"
)

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:   "events",
		Short: "List the events that the cloud has not got yet",
		Long: `List the events that are kept for the cloud until its webhook has taken them, oldest
first, and show how far their delivery is: what was delivered last, why the last try
failed, and how many events were dropped.

Events are sent by converge serve, to the webhook that events in converge.yaml names.
With -follow events are shown as they are kept and as they leave, until interrupted; with
-json one object per line.`,
		Example: `  converge events
  converge events -follow
  converge events -json`,
		Args: exactly(0),
	}
	c.Flags().BoolVar(&follow, "follow", false, "show events as they come and go, until interrupted")
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx := c.Context()
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		if follow {
			return s.followEvents(ctx)
		}
		waiting, err := s.store.Outbox(ctx)
		if err != nil {
			return err
		}
		sent, err := s.store.Delivery(ctx)
		if err != nil {
			return err
		}
		if a.flags.json {
			return a.printJSON(view.EventsJSON(waiting, sent))
		}
		a.print(view.EventsText(waiting, sent, time.Now(), a.style(a.sys.Stdout)))
		return nil
	}
	return c
}

// followEvents shows what is kept, and then what comes and goes. To be interrupted, or to lose its reader, is how it succeeds.
func (s *session) followEvents(ctx context.Context) error {
	known := map[string]state.Outgoing{}
	show := func(e state.Outgoing, left bool) error {
		if s.flags.json {
			return s.printLine(view.EventLine(e, left))
		}
		s.print(view.EventText(e, left))
		return nil
	}
	for changes, err := range s.store.FollowOutbox(ctx) {
		if ctx.Err() != nil && s.signal.Load() != nil || s.out.broken() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		still := map[string]bool{}
		for _, c := range changes.Changes {
			was, ok := known[c.Name]
			still[c.Name] = !c.Gone
			switch {
			case c.Gone && ok:
				delete(known, c.Name)
				err = show(was, true)
			case !c.Gone && c.Err == nil && !ok:
				known[c.Name] = c.Value
				err = show(c.Value, false)
			}
			if err != nil {
				return err
			}
		}
		for id, e := range known {
			if changes.Whole && !still[id] {
				delete(known, id)
				if err := show(e, true); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// openEvents makes what tells the cloud, where the configuration says where to.
func (s *session) openEvents(of schema.Site, nodes *site.Nodes, shown *api.API) (err error) {
	conf := s.conf.Events
	if conf == nil {
		return nil
	}
	s.events, err = outbox.New(outbox.Options{
		Site: of, Store: s.store, Webhook: conf.Webhook, TokenFile: conf.TokenFile, CA: conf.CA, Kinds: conf.Kinds, Version: s.sys.Version,
		Nodes: nodes.Status, Node: func(name string) any { return shown.Node(name) },
		MaskDrift: func(r *drift.Report) *drift.Report { return view.MaskDrift(r, s.kinds) },
		Scrub:     s.scrubber.ScrubText, TraceParent: s.env[envTrace], Logger: s.log,
	})
	if err != nil {
		return &view.Problem{What: "the cloud cannot be told what happens", Where: fmt.Sprintf("%s: events: %v", s.conf.Path, err), Fix: "Correct events in " + config.Name + ".", Err: err}
	}
	return nil
}

// eventsStand returns how the events stand; nil when the cloud is told nothing.
func (s *session) eventsStand() *outbox.Standing {
	if s.events == nil {
		return nil
	}
	stands := s.events.Standing()
	return &stands
}

// said tells the cloud of another status, for [site.Options].
func (s *session) said() func(was, is site.Status) ([]state.Op, func()) {
	if s.events == nil {
		return nil
	}
	return s.events.Said
}
