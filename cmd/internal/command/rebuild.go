package command

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// rebuildBatch is how many records are written in one transaction.
const rebuildBatch = 100

func (a *app) stateRebuildCommand() *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use:   "rebuild [DOC...]",
		Short: "Rebuild records from the ownership marks of this site",
		Long: `Observe everything the configured providers expose, and record each object that carries
this site's mark, or has an id that only this site assigns, and is not recorded: after
the store, or part of it, was lost. Existing records are left unchanged, and objects that
the document declares external are left to others.

What the documents said about these objects is no longer known, so drift shows only
which of them are gone, until the next apply compares the document with the site. The
current values of protect, on_remove and ignore in DOC, or in the document in the store,
apply at once. Objects that DOC does not declare are listed: the next apply removes them.
Whether they had been left to others (on_remove: forget) is no longer known; if so,
declare them with external: true. The site is that of DOC, or of the store. After the
loss of a whole store, also run: converge state restored.`,
		Example: `  converge state rebuild -dry-run site.cue
  converge state rebuild site.cue`,
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only show what would be done")
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		m := create
		switch {
		case dry && len(args) > 0:
			m = pretend
		case dry:
			m = refuse // the store alone says which site is meant
		}
		s, of, err := a.whose(ctx, args, m)
		if err != nil {
			return err
		}
		if of.Site.ID == "" {
			return &view.Problem{What: "the site id is not known", Fix: "Specify the site's document, or any with the same site.id: converge state rebuild site.cue"}
		}
		if len(args) == 0 {
			if of.declared, err = s.resources(ctx); err != nil {
				return err
			}
		}
		if s.looks = dry; dry {
			if err := engine.Settled(ctx, s.store, ""); err != nil {
				return err
			}
			return s.rebuild(ctx, of, nil)
		}
		return s.amend(ctx, "state rebuild", func(ctx context.Context, lock *state.Lock) error { return s.rebuild(ctx, of, lock) })
	}
	return c
}

// rebuild makes the records of a site anew from what is seen, and says what it did. Without a lock it only says what it would do.
func (s *session) rebuild(ctx context.Context, of owner, lock *state.Lock) error {
	found, err := s.survey(ctx, of.Site)
	if err != nil {
		return err
	}
	dry, now := lock == nil, time.Now().UTC()
	records := found.Rebuild(s.kinds, now, of.declared...)
	done := rebuilt(records, of.declared, dry)
	if !dry {
		for part := range slices.Chunk(records, rebuildBatch) {
			ops := make([]state.Op, len(part))
			for i, r := range part {
				ops[i] = s.store.RecordOp(r)
			}
			ops = append(ops, s.store.RebuiltOp(state.Rebuilt{Site: of.Site, At: now}), s.amended(lock, "state rebuild"))
			if _, err := lock.Commit(ctx, nil, ops); err != nil {
				return err
			}
		}
	}
	unknown := found.Unknown()
	done.Unknown = nonNil(unknown)
	err = s.did(dry, done, done.Text())
	if !s.flags.json {
		s.say(view.LeftoversText(nil, unknown, nil))
	}
	if err == nil && len(unknown) > 0 {
		return outcome(exitUnknown)
	}
	return err
}

// rebuilt summarizes the new records. Without a document, nothing is known to be declared or missing.
func rebuilt(records []state.Record, declared []schema.Resource, dry bool) view.Rebuilt {
	managed := map[schema.Ref]bool{}
	for i := range declared {
		managed[declared[i].Ref] = declared[i].External == nil
	}
	done := view.Rebuilt{Resources: []schema.Ref{}, Dry: dry}
	for i := range records {
		switch ref := records[i].Ref; {
		case records[i].Gone:
			done.Left = append(done.Left, ref)
		default:
			done.Resources = append(done.Resources, ref)
			if len(declared) > 0 && !managed[ref] {
				done.Undeclared = append(done.Undeclared, ref)
			}
		}
	}
	return done
}
