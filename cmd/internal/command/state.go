package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

func (a *app) stateCommand() *cobra.Command {
	return group("state", "Inspect and correct the recorded state", `Inspect and correct what converge has recorded about the resources that it created or
adopted. None of these commands touches the site itself.`,
		a.stateListCommand(), a.stateShowCommand(), a.stateRemoveCommand(), a.stateMoveCommand(), a.stateRebuildCommand(), a.stateRepairCommand(), a.stateRestoredCommand())
}

func (a *app) stateListCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "list [PATTERN...]",
		Short: "List the recorded resources",
		Long: `List the refs of the recorded resources, or only those that match a pattern. A pattern
that matches none of them is an error.`,
		Example: `  converge state list
  converge state list 'site/carbide.*/*'`,
		ValidArgsFunction: a.completeRefs,
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := checkPatterns(args); err != nil {
			return err
		}
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		records, err := s.records(c.Context())
		if err != nil {
			return err
		}
		if len(args) > 0 {
			for _, p := range args {
				if !slices.ContainsFunc(records, func(r state.Record) bool { return plan.Matches(p, r.Ref) }) {
					return unrecorded(p, " matches no recorded resource", records)
				}
			}
			records = slices.DeleteFunc(records, func(r state.Record) bool {
				return !slices.ContainsFunc(args, func(p string) bool { return plan.Matches(p, r.Ref) })
			})
		}
		if !a.flags.json {
			a.print(view.RecordsText(records))
			return nil
		}
		if _, err := a.schema(); err != nil {
			return err
		}
		for i, r := range records {
			records[i] = view.MaskRecord(r, a.kinds[r.Ref.Kind])
		}
		return a.printJSON(map[string]any{"resources": nonNil(records)})
	}
	return c
}

func (a *app) stateShowCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "show REF",
		Short:             "Show one recorded resource",
		Long:              "Show what converge has recorded about one resource: what was applied last, and the other\nvalues observed when it was left, as fields of a document and in full.",
		Example:           `  converge state show site/carbide.vpc/prod`,
		Args:              exactly(1),
		ValidArgsFunction: a.completeRefs,
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		r, err := s.record(c.Context(), args[0])
		if err != nil {
			return err
		}
		if _, err := a.schema(); err != nil {
			return err
		}
		kind := a.kinds[r.Ref.Kind]
		if a.flags.json {
			return a.printJSON(view.MaskRecord(r, kind))
		}
		a.print(view.RecordText(r, kind, a.style(a.sys.Stdout)))
		return nil
	}
	return c
}

// record finds the record of a ref.
func (s *session) record(ctx context.Context, text string) (state.Record, error) {
	ref, err := schema.ParseRef(text)
	if err != nil {
		return state.Record{}, &view.Problem{What: err.Error(), Fix: "See: converge state list"}
	}
	r, err := s.store.Record(ctx, ref)
	if err == nil && !r.Gone || err != nil && !errors.Is(err, state.ErrNotFound) {
		return r, err
	}
	records, err := s.records(ctx)
	if err != nil {
		return r, err
	}
	return r, unrecorded(text, " is not recorded", records)
}

// unrecorded returns the error that a ref or a pattern matches nothing recorded.
func unrecorded(pattern, problem string, records []state.Record) error {
	names := make([]string, len(records))
	for i := range records {
		names[i] = records[i].Ref.String()
	}
	p := &view.Problem{What: pattern + problem, Fix: trimmed(nearest.DidYouMeanRef(pattern, names), "See: converge state list")}
	p.Ref, _ = schema.ParseRef(pattern) // a pattern is not a ref
	return p
}

func (a *app) stateRemoveCommand() *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use:   "rm REF...",
		Short: "Forget resources; the objects stay",
		Long: `Forget resources: they are removed from state, the objects stay as they are, and converge
no longer manages them. Resources that the document still declares are adopted again by
the next plan if the objects carry this site's mark.`,
		Example:           `  converge state rm site/carbide.vpc/prod`,
		Args:              atLeast(1),
		ValidArgsFunction: a.completeRefs,
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only show what would be done")
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		return s.amend(ctx, "state rm", func(ctx context.Context, lock *state.Lock) error {
			var ops []state.Op
			text := ""
			for _, arg := range args {
				r, err := s.record(ctx, arg)
				if err != nil {
					return err
				}
				ops = append(ops, s.store.ForgetOp(r.Ref))
				text += fmt.Sprintf("%s %s (id %s). The object itself stays, unmanaged.\n", verb(dry, "Forgot", "Would forget"), r.Ref, r.ID)
			}
			if most := state.MaxOps - 1; len(ops) > most {
				return &view.Problem{What: fmt.Sprintf("%d resources are too many at once: the maximum is %d", len(ops), most)}
			}
			if !dry {
				if _, err := lock.Commit(ctx, nil, append(ops, s.amended(lock, "state rm"))); err != nil {
					return err
				}
			}
			return a.did(dry, map[string]any{"forgotten": args, "dry_run": dry}, text)
		})
	}
	return c
}

// amended returns the operation that notes a change of the records by a command.
func (s *session) amended(lock *state.Lock, action string) state.Op {
	return s.store.AmendedOp(state.Amended{Epoch: lock.Epoch(), Action: action, By: who(), At: time.Now().UTC()})
}

func verb(dry bool, did, would string) string {
	if dry {
		return would
	}
	return did
}

func (a *app) stateMoveCommand() *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use:   "mv REF REF",
		Short: "Rename a recorded resource",
		Long: `Record a resource under another name after it was renamed in the document: the object
stays, and the next plan does not recreate it. Scope and kind stay the same.

The mark on the object follows with the next plan, as an update. Kinds without a place
for a mark keep the old name in the remote system: if the store is lost before it is
backed up, converge state rebuild finds them under that name.`,
		Example:           `  converge state mv site/carbide.vpc/prod site/carbide.vpc/production`,
		Args:              exactly(2),
		ValidArgsFunction: a.completeRefs,
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only show what would be done")
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		to, err := schema.ParseRef(args[1])
		if err != nil {
			return &view.Problem{What: err.Error()}
		}
		if args[0] == args[1] {
			return &view.Problem{What: args[0] + " already has that name", Fix: "Use the name that it now has in the document."}
		}
		sch, err := a.schema()
		if err != nil {
			return err
		}
		if err := sch.FitsName(to); err != nil {
			return &view.Problem{What: "no document can declare " + args[1], Where: err.Error(), Err: err}
		}
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		return s.amend(ctx, "state mv", func(ctx context.Context, lock *state.Lock) error {
			ops, err := s.move(ctx, sch.Kinds(), args[0], to)
			if err != nil {
				return err
			}
			held, guard, err := s.moveHolds(ctx, args[0], to)
			if err != nil {
				return err
			}
			if !dry {
				if _, err := lock.Commit(ctx, guard, append(append(ops, held...), s.amended(lock, "state mv"))); err != nil {
					return err
				}
			}
			text := fmt.Sprintf("%s %s to %s. The object itself is not changed; a mark on it follows with the next apply.\n", verb(dry, "Moved", "Would move"), args[0], to)
			if len(held) > 0 {
				text += "The hold on it moves with it.\n"
			}
			return a.did(dry, map[string]any{"from": args[0], "to": to, "dry_run": dry}, text)
		})
	}
	return c
}

// move returns the operations that record a resource under another ref, including where others refer to it.
func (s *session) move(ctx context.Context, kinds schema.Kinds, from string, to schema.Ref) ([]state.Op, error) {
	r, err := s.record(ctx, from)
	if err != nil {
		return nil, err
	}
	if to.Scope != r.Ref.Scope || to.Kind != r.Ref.Kind {
		return nil, &view.Problem{What: fmt.Sprintf("%s and %s differ in scope or kind", r.Ref, to), Fix: "Only the name can change."}
	}
	old, err := s.store.Record(ctx, to)
	switch {
	case err == nil && !old.Gone:
		return nil, &view.Problem{What: to.String() + " is already recorded", Fix: "See: converge state show " + to.String()}
	case err == nil:
		r.Incarnation = max(r.Incarnation, old.Incarnation) // ids of the name's earlier incarnations are not used again
	case !errors.Is(err, state.ErrNotFound):
		return nil, err
	}
	was := r.Ref
	r.Move(to)
	ops := []state.Op{s.store.ForgetOp(was), s.store.RecordOp(r)}
	records, err := s.records(ctx)
	if err != nil {
		return nil, err
	}
	for _, other := range records {
		if other.Ref == was || !slices.Contains(other.After, was) {
			continue
		}
		after := slices.Clone(other.After)
		after[slices.Index(after, was)] = to
		other.After = schema.SortRefs(after)
		if k := kinds[other.Ref.Kind]; k != nil {
			k.ReplaceRefs(other.Spec, func(kind, name string) string {
				if kind == was.Kind && name == was.Name {
					return to.Name
				}
				return name
			})
		}
		ops = append(ops, s.store.RecordOp(other))
	}
	if len(ops) > state.MaxOps-maxHolds-1 {
		return nil, &view.Problem{What: fmt.Sprintf("%d resources refer to %s: too many to change at once", len(ops)-2, was), Fix: "Rename it in the document and have it recreated, or keep its name."}
	}
	return ops, nil
}

// maxHolds is how many operations moving the holds of a resource takes at most: it has one from each source.
const maxHolds = 4

// moveHolds returns the operations that move the holds of a resource to its new name, and their guards: nobody has held or
// released it since.
func (s *session) moveHolds(ctx context.Context, from string, to schema.Ref) (ops []state.Op, guard []state.Guard, err error) {
	stops, err := s.store.Stops(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, h := range stops.Holds {
		if h.Scope != from {
			continue
		}
		ops = append(ops, s.store.ReleaseOp(h))
		h.Scope = to.String()
		if !slices.ContainsFunc(stops.Holds, func(o state.Hold) bool { return o.Scope == h.Scope && o.ByHand() == h.ByHand() }) {
			ops = append(ops, s.store.HoldOp(h))
		}
	}
	was, err := schema.ParseRef(from)
	return ops, stops.Guard(nil, was, ""), err
}
