package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
)

func (a *app) holdCommand() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List what is held, and why", Long: "List the holds of the site, and the freeze if there is one.",
		Example: "  converge hold list", Args: exactly(0),
	}
	list.RunE = func(c *cobra.Command, _ []string) error {
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		stops, err := s.store.Stops(c.Context())
		if err != nil {
			return err
		}
		holds := stops.All()
		if a.flags.json {
			return a.printJSON(map[string]any{"holds": nonNil(holds)})
		}
		a.print(view.HoldsText(holds, a.style(a.sys.Stdout)))
		return nil
	}
	return group("hold", "Set, list and release what stops runs", `A hold stops every effect on the site, on a node or on one resource: from the next
step on, also of a run that is under way. Runs set holds themselves: one that ended
partial holds what is not as it should be, and one that did not reach its desired
state holds that revision of the document (serial:N), so that it is not tried again
unseen.`, list, a.holdSetCommand(), a.releaseCommand())
}

func (a *app) holdSetCommand() *cobra.Command {
	var reason string
	var force bool
	c := &cobra.Command{
		Use: "set SCOPE", Short: "Stop every effect on a scope", Args: exactly(1),
		Long: `Stop every effect on the site, on a node or on one resource, until the hold is
released. A run that is under way stops before its next step there, and stays open.

A node or a resource that is neither declared, recorded nor configured is an error;
with -force what is not there yet can be held as well.`,
		Example: `  converge hold set gpu-07 -reason="disk is being replaced"
  converge hold set site/carbide.vpc/prod -reason="customer demo until Friday"`,
	}
	c.Flags().StringVar(&reason, "reason", "", "`why`, for those who meet the hold")
	c.Flags().BoolVar(&force, "force", false, "hold it although nothing of the name is known")
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		if scope := args[0]; strings.Contains(scope, "/") || strings.ContainsAny(scope, ": ") {
			if _, err := schema.ParseRef(scope); err != nil {
				return &view.Problem{What: fmt.Sprintf("%q is no scope", scope), Where: err.Error(), Fix: "Want site, the name of a node, or a ref: SCOPE/KIND/NAME."}
			}
		}
		if reason == "" {
			return &view.Problem{What: "a hold needs a reason", Fix: `Say why with -reason="...".`}
		}
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		if !force {
			if err := s.knows(ctx, args[0]); err != nil {
				return err
			}
		}
		holds, err := s.store.Holds(ctx)
		if err != nil {
			return err
		}
		holds = slices.DeleteFunc(holds, func(h state.Hold) bool { return h.Scope != args[0] || !h.ByHand() })
		if err := s.store.Hold(ctx, args[0], who(), reason); err != nil {
			return err
		}
		return a.did(false, map[string]any{"held": args[0], "replaced": nonNil(holds)}, "Held: "+args[0]+"\n"+replacedText(holds))
	}
	return c
}

// replacedText returns which holds were replaced, with their reasons.
func replacedText(holds []state.Hold) string {
	if len(holds) == 0 {
		return ""
	}
	return "\nThis replaces what was set before; converge audit has both:\n" + view.HoldsText(holds, view.Style{})
}

// knows fails when a scope names neither anything declared or recorded nor a configured node: a hold on it would stop
// nothing.
func (s *session) knows(ctx context.Context, scope string) error {
	if scope == schema.ScopeSite {
		return nil
	}
	var refs []string
	nodes := slices.Collect(maps.Keys(s.conf.Nodes))
	add := func(r schema.Ref) {
		refs = append(refs, r.String())
		if r.Scope != schema.ScopeSite {
			nodes = append(nodes, r.Scope)
		}
	}
	records, err := s.records(ctx)
	if err != nil {
		return err
	}
	for i := range records {
		add(records[i].Ref)
	}
	declared, err := s.declared(ctx)
	if err != nil {
		return err
	}
	for _, r := range declared {
		add(r)
	}
	p := &view.Problem{What: "there is no node " + scope, Fix: nearest.DidYouMean(scope, nodes)}
	if strings.Contains(scope, "/") {
		if slices.Contains(refs, scope) {
			return nil
		}
		p = &view.Problem{What: scope + " is neither declared nor recorded", Fix: nearest.DidYouMeanRef(scope, refs)}
	} else if slices.Contains(nodes, scope) {
		return nil
	}
	p.Fix = trimmed(p.Fix, "To hold what is not there yet, give -force.")
	return p
}

// declared lists what the newest document declares; nil when there is none.
func (s *session) declared(ctx context.Context) ([]schema.Ref, error) {
	head, body, err := s.store.Document(ctx, 0)
	if errors.Is(err, state.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	doc, _, err := s.check(ctx, load.Bounds{}, load.Source{Name: fmt.Sprintf("serial-%d.json", head.Serial), Data: body})
	if err != nil {
		return nil, err
	}
	if doc == nil { // it was valid for the version of converge that stored it
		return nil, &view.Problem{What: "the newest document is not valid for this version of converge", Fix: "Hold it all the same with -force."}
	}
	refs := make([]schema.Ref, len(doc.Resources))
	for i := range doc.Resources {
		refs[i] = doc.Resources[i].Ref
	}
	return refs, nil
}

func (a *app) releaseCommand() *cobra.Command {
	var all bool
	var reason string
	c := &cobra.Command{
		Use: "release [SCOPE]", Short: "Let go of a hold", Args: between(0, 1),
		Long: `Release the hold of a scope: site, a node's name, a ref, or serial:N for a revision of
the document. Without a scope it is the only hold there is. A scope that somebody and a
run hold is released with -all: to let go of both. Resuming or rolling back the run
that set a hold releases it as well. Who did it is kept in the audit log.`,
		Example: `  converge hold release site
  converge hold release serial:42 -reason="the switch was mended"
  converge hold release -all`,
		ValidArgsFunction: a.completeHolds,
	}
	c.Flags().BoolVar(&all, "all", false, "release all holds, or all of the scope")
	c.Flags().StringVar(&reason, "reason", "", "`why`, for the audit log")
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		holds, err := s.store.Holds(ctx)
		if err != nil {
			return err
		}
		var scopes []string
		for _, h := range holds {
			scopes = append(scopes, h.Scope)
		}
		scopes = slices.Compact(scopes)
		if len(args) > 0 {
			if !slices.Contains(scopes, args[0]) {
				return &view.Problem{What: args[0] + " is not held", Fix: "See: converge hold list." + nearest.DidYouMean(args[0], scopes)}
			}
			scopes = args
			holds = slices.DeleteFunc(holds, func(h state.Hold) bool { return h.Scope != args[0] })
		}
		if !all && len(holds) > 1 {
			p := &view.Problem{What: "there are several holds", Where: strings.Join(scopes, "\n"), Fix: "Name one of them, or give -all."}
			if len(scopes) == 1 {
				p.What, p.Where = scopes[0]+" is held twice", view.HoldsText(holds, view.Style{})
				p.Fix = fmt.Sprintf("To let go of both: converge hold release -all %s", scopes[0])
			}
			return p
		}
		for _, scope := range scopes {
			if err := s.store.Release(ctx, scope, who(), reason); err != nil {
				return err
			}
		}
		text := ""
		if len(holds) == 0 {
			text = "Nothing is held.\n"
		}
		for _, h := range holds {
			text += fmt.Sprintf("Released %s, which was held: %s\n", h.Scope, h.Reason)
		}
		return a.did(len(holds) == 0, map[string]any{"released": nonNil(holds)}, text)
	}
	return c
}

func (a *app) freezeCommand() *cobra.Command {
	var off bool
	var reason string
	c := &cobra.Command{
		Use: "freeze", Short: "Stop every effect on the site, at once", Args: exactly(0),
		Long: `Stop every effect on the site: a run that is under way stops before its next step,
forward or back, and stays open; nothing new begins. Looking goes on. With -off the
site thaws; an open run is then settled with converge resume.

The freeze is one key in the store, freeze below the site's prefix: whoever reaches
the store can freeze the site with its own client, whatever the value.`,
		Example: `  converge freeze -reason="fire drill"
  converge freeze -off`,
	}
	c.Flags().BoolVar(&off, "off", false, "end the freeze")
	c.Flags().StringVar(&reason, "reason", "", "`why`, for those who meet the freeze")
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx := c.Context()
		if !off && reason == "" {
			return &view.Problem{What: "a freeze needs a reason", Fix: `Say why with -reason="...".`}
		}
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		frozen, err := s.store.Frozen(ctx)
		if err != nil {
			return err
		}
		text, replaced := "The site is frozen. End that with: converge freeze -off\n", []state.Hold{}
		if !off && frozen != nil {
			replaced = append(replaced, *frozen)
			text += replacedText(replaced)
		}
		switch {
		case off && frozen == nil:
			text = "The site was not frozen.\n"
		case off:
			text = "The site is not frozen any more. If a run is open, settle it with: converge resume\n"
		}
		if !off || frozen != nil {
			if err := s.store.SetFreeze(ctx, !off, who(), reason); err != nil {
				return err
			}
		}
		return a.did(off && frozen == nil, map[string]any{"frozen": !off, "replaced": replaced}, text)
	}
	return c
}

func (a *app) auditCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "audit", Short: "List what people forced: locks broken, holds, freezes", Args: exactly(0),
		Long: `List what people forced, oldest first: locks that were broken, holds and freezes that
were set and ended, restores of the store.`,
		Example: "  converge audit\n  converge audit -json",
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		entries, err := s.store.Audits(c.Context())
		if err != nil {
			return err
		}
		if a.flags.json {
			return a.printJSON(map[string]any{"audit": nonNil(entries)})
		}
		a.print(view.AuditsText(entries, a.style(a.sys.Stdout)))
		return nil
	}
	return c
}

func (a *app) stateRestoredCommand() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "restored", Short: "Say that the store was restored from a backup", Args: exactly(0),
		Long: `Say that the store was restored from a backup, right after it was. What the site has
seen since the backup, the store has not: the epoch rises by 1000, beyond every
holder of the lock in between, and the site is held until somebody has looked at
converge drift and released it.`,
		Example: `  converge state restored -reason="disks of two members lost, snapshot of 04:00"`,
	}
	c.Flags().StringVar(&reason, "reason", "", "`why`, for the audit log")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if reason == "" {
			return &view.Problem{What: "a restore needs a reason", Fix: `Say why with -reason="...".`}
		}
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		epoch, err := s.store.Restored(c.Context(), who(), reason)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("The epoch is %d, and the site is held. Look at converge drift; then: converge hold release site\n", epoch)
		return a.did(false, map[string]any{"epoch": epoch, "held": schema.ScopeSite}, text)
	}
	return c
}
