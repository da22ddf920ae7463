package command

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// An observation is the JSON of what was observed once.
type observation struct {
	FormatVersion string         `json:"format_version"`
	Site          *schema.Site   `json:"site,omitempty"` // absent while there is no document
	At            string         `json:"at"`
	Complete      bool           `json:"complete"` // every chosen kind was observed completely
	Unknown       []plan.Unknown `json:"unknown"`
	Items         []observedItem `json:"items"`
}

// An observedItem is an item of an inventory, which has no revision here.
type observedItem struct {
	survey.Item
	Revision *int64 `json:"revision,omitempty"` // shadows the item's
}

// A change is one line of JSON about what changed.
type change struct {
	At string `json:"at"`
	survey.Change
	Item *observedItem `json:"item,omitempty"` // shadows the item of an inventory
}

// A narrowing chooses nodes and kinds by patterns.
type narrowing struct{ nodes, kinds []string }

func (n *narrowing) bind(c *cobra.Command) {
	c.Flags().StringArrayVar(&n.nodes, "node", nil, `only this `+"`node`"+`, with * as wildcard; "site" for what belongs to no node; may be repeated`)
	c.Flags().StringArrayVar(&n.kinds, "kind", nil, "only this `kind`, with * as wildcard; may be repeated")
}

// choose returns those of the needs that can have anything chosen, and what is chosen of them. It fails when a pattern matches nothing.
func (n *narrowing) choose(a *app, needs []providers.Need) (chosen []providers.Need, want func(schema.Place) bool, err error) {
	if err := a.checkKinds(n.kinds); err != nil {
		return nil, nil, err
	}
	var nodes []string
	for _, need := range needs {
		nodes = append(nodes, need.Scope)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	for _, p := range n.nodes {
		if !slices.ContainsFunc(nodes, func(node string) bool { return matches([]string{p}, node) }) {
			return nil, nil, &view.Problem{What: fmt.Sprintf("-node=%s matches no node that the configuration connects", p), Fix: trimmed(nearest.DidYouMean(p, nodes), "They are: "+strings.Join(nodes, ", ")+".")}
		}
	}
	want = func(p schema.Place) bool { return matches(n.nodes, p.Scope) && matches(n.kinds, p.Kind) }
	sch, err := a.schema()
	if err != nil {
		return nil, nil, err
	}
	for _, need := range needs {
		if slices.ContainsFunc(sch.Kinds().Names(), func(kind string) bool {
			return schema.Ref{Kind: kind}.Provider() == need.Provider && want(schema.Place{Scope: need.Scope, Kind: kind})
		}) {
			chosen = append(chosen, need)
		}
	}
	if len(chosen) == 0 {
		return nil, nil, &view.Problem{What: "no configured provider serves what -node and -kind choose"}
	}
	return chosen, want, nil
}

func (a *app) observeCommand() *cobra.Command {
	var n narrowing
	var w watching
	c := &cobra.Command{
		Use:   "observe [DOC...]",
		Short: "Show what there is, and what changes",
		Long: `Observe what the configured providers expose, and show it in a table for each kind,
whether converge created it or not. MANAGED says whether an object is a resource of this
site, and of which name if that differs. Nothing is changed, and nothing is stored.

With -watch, what changes is reported when it happens, until the command is interrupted.
Where a provider reports no changes, they are found by observing everything again, as
often as -interval says.

With -json the whole observation is one value; with -watch it is the first line, and each
change is a line that follows. It then exits with 0 when it is interrupted.

Without -watch it exits with 8 when part of the site could not be observed, or the server does not
support a kind. To write existing objects as a document, use converge import.`,
		Example: `  converge observe
  converge observe -node=gpu-01 -kind='libvirt.*'
  converge observe -kind=ovs.port -watch
  converge observe -json | jq '.items[] | select(.ref == null)'`,
	}
	n.bind(c)
	a.bindFull(c)
	w.bind(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := w.check(c); err != nil {
			return err
		}
		ctx := c.Context()
		s, of, err := a.whose(ctx, args, look)
		if err != nil {
			return err
		}
		if of.Site.ID == "" { // providers need one to know marks by
			of.Site = schema.Site{Name: unnamed, ID: uuid.NewString()}
		}
		needs, err := s.offers(ctx)
		if err != nil {
			return err
		}
		needs, want, err := n.choose(a, needs)
		if err != nil {
			return err
		}
		e, err := s.engine()
		if err != nil {
			return err
		}
		if w.on {
			return s.watchItems(ctx, e, of.Site, needs, want, w.interval)
		}
		found, err := e.Survey(ctx, of.Site, needs, want)
		if err != nil {
			return err
		}
		if err := a.printObservation(found); err != nil {
			return err
		}
		if len(found.Unknown()) > 0 {
			return outcome(exitUnknown)
		}
		return nil
	}
	return c
}

// printObservation prints what was observed.
func (a *app) printObservation(found *survey.Survey) error {
	items := found.Items(a.kinds)
	for i := range items {
		items[i] = view.MaskItem(items[i], a.kinds[items[i].Kind])
	}
	unknown := found.Unknown()
	var site *schema.Site
	if found.Site.Name != unnamed { // which no document can call a site
		site = &found.Site
	}
	if !a.flags.json {
		a.print(view.ObservedText(site, slices.Collect(maps.Keys(found.Observed.Things)), items, unknown, a.kinds, a.style(a.sys.Stdout), a.flags.layout))
		return nil
	}
	o := observation{
		FormatVersion: "1.0", Site: site, At: time.Now().UTC().Format(instant), Complete: len(unknown) == 0, Unknown: nonNil(unknown),
		Items: make([]observedItem, len(items)),
	}
	for i := range items {
		o.Items[i].Item = items[i]
	}
	return a.printLine(o)
}

// watchItems prints what there is, and then what changes, until ctx is done.
func (s *session) watchItems(ctx context.Context, e *engine.Engine, site schema.Site, needs []providers.Need, want func(schema.Place) bool, interval time.Duration) error {
	var last survey.Sighting
	first := true
	return s.eachChange(e.Watch(ctx, site, engine.Watching{Needs: func() []providers.Need { return needs }, Want: want, Full: interval}), func(changes []engine.Changed) error {
		found, err := e.Survey(ctx, site, needs, func(p schema.Place) bool {
			return slices.ContainsFunc(changes, func(c engine.Changed) bool { return c.Place == p })
		})
		if err != nil {
			return err
		}
		differences := last.Update(s.kinds, found)
		if first {
			first = false
			return s.printObservation(found)
		}
		now := time.Now()
		for _, ch := range differences {
			if err := s.printChange(now, view.MaskChange(ch, s.kinds)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *app) printChange(now time.Time, ch survey.Change) error {
	if !a.flags.json {
		a.print(view.ChangeText(now, ch, a.kinds, a.style(a.sys.Stdout), a.flags.layout))
		return nil
	}
	line := change{At: now.UTC().Format(instant), Change: ch}
	if ch.Item != nil {
		line.Item = &observedItem{Item: *ch.Item}
	}
	return a.printLine(line)
}
