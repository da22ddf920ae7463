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
	"converge.dev/converge/site/api"
	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

func (a *app) holdCommand() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List holds and their reasons", Long: "List the holds of the site, and the freeze if there is one.",
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
			return a.printJSON(api.HoldsView{Holds: nonNil(holds)})
		}
		a.print(view.HoldsText(holds, a.style(a.sys.Stdout)))
		return nil
	}
	return group("hold", "Set, list and release holds", `A hold blocks every change to the site, to a node or to one resource: from the next
step on, even in a run that is in progress. Runs also set holds: a run that ended
partial puts on hold whatever is not as it should be, and a run that did not reach its
desired state puts on hold that revision of the document (serial:N), so it is not
retried unnoticed.`, list, a.holdSetCommand(), a.releaseCommand())
}

func (a *app) holdSetCommand() *cobra.Command {
	var reason string
	var force bool
	c := &cobra.Command{
		Use: "set SCOPE", Short: "Put a scope on hold", Args: exactly(1),
		Long: `Block every change to the site, to a node or to one resource, until the hold is
released. A run in progress stops before its next step there, and stays open.

A node or a resource that is neither declared, recorded nor configured is an error;
with -force, one that does not exist yet can be put on hold too.`,
		Example: `  converge hold set gpu-07 -reason="disk is being replaced"
  converge hold set site/carbide.vpc/prod -reason="customer demo until Friday"`,
	}
	c.Flags().StringVar(&reason, "reason", "", "`reason`, shown to anyone the hold stops")
	c.Flags().BoolVar(&force, "force", false, "set the hold even if nothing by that name is known")
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		if err := state.CheckScope(args[0]); err != nil {
			p := &view.Problem{What: fmt.Sprintf("invalid scope %q", args[0]), Where: err.Error(), Fix: "Use site, the name of a node, or a ref: SCOPE/KIND/NAME."}
			if (state.Hold{Scope: args[0]}).OnRevision() {
				p.Fix = "Only a run puts a revision of the document on hold. To keep one from being applied, put the site on hold: converge hold set site"
			}
			return p
		}
		if reason == "" {
			return &view.Problem{What: "a hold needs a reason", Fix: `Say why with -reason="...".`}
		}
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		if !force {
			if err := s.mustKnow(ctx, args[0]); err != nil {
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
		return a.did(false, map[string]any{"held": args[0], "replaced": nonNil(holds)}, "On hold: "+args[0]+"\n"+replacedText(holds))
	}
	return c
}

// replacedText returns which holds were replaced, with their reasons.
func replacedText(holds []state.Hold) string {
	if len(holds) == 0 {
		return ""
	}
	return "\nThis replaces the previous entry; converge audit lists both:\n" + view.HoldsText(holds, view.Style{})
}

// mustKnow fails when a scope names nothing of the site: a hold on it would stop nothing.
func (s *session) mustKnow(ctx context.Context, scope string) error {
	known, instead, err := s.knows(ctx, scope)
	if err != nil || known {
		return err
	}
	p := &view.Problem{What: "no node named " + scope}
	if strings.Contains(scope, "/") {
		p.What = scope + " is neither declared nor recorded"
	}
	p.Fix = trimmed(instead, "To put it on hold before it exists, use -force.")
	return p
}

// knows reports whether a scope names something that is declared or recorded, or a node that is configured or enrolled, and otherwise
// what may have been meant, in a sentence.
func (s *session) knows(ctx context.Context, scope string) (known bool, instead string, err error) {
	if scope == schema.ScopeSite {
		return true, "", nil
	}
	nodes := slices.Collect(maps.Keys(s.conf.Nodes))
	enrolled, err := trust.Nodes(ctx, s.store)
	if err != nil {
		return false, "", err
	}
	for i := range enrolled {
		nodes = append(nodes, enrolled[i].Name)
	}
	if slices.Contains(nodes, scope) { // whatever is wrong with the document
		return true, "", nil
	}
	var refs []string
	add := func(r schema.Ref) {
		refs = append(refs, r.String())
		if r.Scope != schema.ScopeSite {
			nodes = append(nodes, r.Scope)
		}
	}
	records, err := s.records(ctx)
	if err != nil {
		return false, "", err
	}
	for i := range records {
		add(records[i].Ref)
	}
	declared, err := s.declared(ctx)
	if err != nil {
		return false, "", err
	}
	for _, r := range declared {
		add(r)
	}
	if strings.Contains(scope, "/") {
		return slices.Contains(refs, scope), nearest.DidYouMeanRef(scope, refs), nil
	}
	return slices.Contains(nodes, scope), nearest.DidYouMean(scope, nodes), nil
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
		return nil, &view.Problem{What: "the newest document is not valid for this version of converge", Fix: "Use -force to set the hold anyway."}
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
		Use: "release [SCOPE]", Short: "Release a hold", Args: between(0, 1),
		Long: `Release the hold on a scope: site, a node's name, a ref, or serial:N for a revision of
the document. Without a scope, release the only hold there is. If both a person and a
run hold a scope, -all releases both holds. Resuming or rolling back the run that set a
hold also releases it. The audit log records who released it.`,
		Example: `  converge hold release site
  converge hold release serial:42 -reason="the switch was fixed"
  converge hold release -all`,
		ValidArgsFunction: a.completeHolds,
	}
	c.Flags().BoolVar(&all, "all", false, "release all holds, or all holds on the scope")
	c.Flags().StringVar(&reason, "reason", "", "`reason` for the audit log")
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
				return &view.Problem{What: args[0] + " is not on hold", Fix: "See: converge hold list." + nearest.DidYouMean(args[0], scopes)}
			}
			scopes = args
			holds = slices.DeleteFunc(holds, func(h state.Hold) bool { return h.Scope != args[0] })
		}
		if !all && len(holds) > 1 {
			p := &view.Problem{What: "there are several holds", Where: strings.Join(scopes, "\n"), Fix: "Name one of them, or use -all."}
			if len(scopes) == 1 {
				p.What, p.Where = scopes[0]+" has two holds", view.HoldsText(holds, view.Style{})
				p.Fix = fmt.Sprintf("To release both: converge hold release -all %s", scopes[0])
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
			text = "Nothing is on hold.\n"
		}
		for _, h := range holds {
			text += fmt.Sprintf("Released %s, which was on hold: %s\n", h.Scope, h.Reason)
		}
		return a.did(len(holds) == 0, map[string]any{"released": nonNil(holds)}, text)
	}
	return c
}

func (a *app) freezeCommand() *cobra.Command {
	var off bool
	var reason string
	c := &cobra.Command{
		Use: "freeze", Short: "Block every change to the site immediately", Args: exactly(0),
		Long: `Block every change to the site: a run in progress stops before its next step, forward
or back, and stays open; nothing new starts. Observing continues. With -off the freeze
ends; resume an open run with converge resume.

The freeze is one key in the store, freeze below the site's prefix: anyone with access
to the store can freeze the site with the store's own client, whatever the value.`,
		Example: `  converge freeze -reason="fire drill"
  converge freeze -off`,
	}
	c.Flags().BoolVar(&off, "off", false, "end the freeze")
	c.Flags().StringVar(&reason, "reason", "", "`reason`, shown to anyone the freeze stops")
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
		text, replaced := "The site is frozen. To end the freeze: converge freeze -off\n", []state.Hold{}
		if !off && frozen != nil {
			replaced = append(replaced, *frozen)
			text += replacedText(replaced)
		}
		switch {
		case off && frozen == nil:
			text = "The site was not frozen.\n"
		case off:
			text = "The site is no longer frozen. If a run is open, resume it with: converge resume\n"
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
		Use: "audit", Short: "List forced actions: broken locks, holds, freezes", Args: exactly(0),
		Long: `List forced actions, oldest first: locks that were broken, holds and freezes that were
set and ended, restores of the store.`,
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
		Use: "restored", Short: "Record that the store was restored from a backup", Args: exactly(0),
		Long: `Record that the store was restored from a backup; run it right after the restore. The
store does not know what happened at the site since the backup: the epoch rises by
1000, beyond every lock holder in between, and the site is put on hold until somebody
has reviewed converge drift and released it. Enrolment tokens become void, because
they may have been used since; a node that was refused since has to be refused again.`,
		Example: `  converge state restored -reason="disks of two members lost, snapshot of 04:00"`,
	}
	c.Flags().StringVar(&reason, "reason", "", "`reason` for the audit log")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if reason == "" {
			return &view.Problem{What: "a restore needs a reason", Fix: `Say why with -reason="...".`}
		}
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		if err := trust.VoidTokens(c.Context(), s.store); err != nil { // first: once the epoch has risen, nobody repeats the command
			return err
		}
		epoch, err := s.store.Restored(c.Context(), who(), reason)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("The epoch is %d, and the site is on hold. Review converge drift, then run: converge hold release site\n"+
			"Enrolment tokens are void. Nodes that were refused since the backup are let in again: refuse them anew with converge agent revoke.\n", epoch)
		return a.did(false, map[string]any{"epoch": epoch, "held": schema.ScopeSite}, text)
	}
	return c
}
