package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
)

func (a *app) showCommand() *cobra.Command {
	var run string
	var document bool
	c := &cobra.Command{
		Use:   "show [PLANFILE | RUN]",
		Short: "Show a saved plan, a run, or the recorded state",
		Long: `Show a saved plan; or a run with each of its steps: its outcome, when it started, how
long it took, and what was undone; or the document; or, without any of these, the state
that converge has recorded for the site. A saved plan is shown without a store, and
therefore without checking whether this site's store created it: converge apply does.

With -json a plan has the keys of terraform show -json, plus, under "converge", what
Terraform does not know; so does the recorded state.`,
		Example: `  converge show site.plan
  converge show -full site.plan
  converge show -json site.plan
  converge show 20261120-121537.042-9f3a01
  converge show`,
		Args:              between(0, 1),
		ValidArgsFunction: a.completePlansAndRuns,
	}
	c.Flags().StringVar(&run, "run", "", "show the run with this `id`, even if a file has that name")
	c.Flags().BoolVar(&document, "document", false, "show the newest document")
	a.bindLayout(c)
	_ = c.RegisterFlagCompletionFunc("run", a.completeRuns)
	c.MarkFlagsMutuallyExclusive("run", "document")
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 1 && (document || run != "") {
			return &view.Problem{What: "an argument cannot be combined with -run or -document", Fix: "Use only one of them."}
		}
		if len(args) == 1 {
			if _, err := os.Lstat(args[0]); !errors.Is(err, fs.ErrNotExist) {
				return a.showPlan(c.Context(), args[0])
			}
			if err := a.notResource(args[0]); err != nil {
				return err
			}
		}
		s, err := a.open(c.Context(), nil, nil)
		switch {
		case err != nil && len(args) == 1:
			return &view.Problem{What: "there is no saved plan " + args[0], Where: "could not check whether it is a run: " + err.Error(), Fix: "To save a plan: converge plan -out=FILE", Err: err}
		case err != nil:
			return err
		case len(args) == 1:
			return s.showRun(c.Context(), args[0], args[0]+" is neither a saved plan nor a run")
		case document:
			return s.printDocument(c, 0)
		case run != "":
			return s.showRun(c.Context(), run, "there is no run "+run)
		}
		return s.showSite(c.Context())
	}
	return c
}

// notResource returns how a resource is shown when the word is the ref of one; otherwise nil.
func (a *app) notResource(word string) error {
	ref, err := schema.ParseRef(word)
	if err != nil {
		return nil // the word is not a ref
	}
	sch, err := a.schema()
	if err != nil || sch.Kinds()[ref.Kind] == nil {
		return err
	}
	return &view.Problem{What: word + " is a resource; show takes a saved plan or a run", Fix: fmt.Sprintf("Use: converge state show %s, or converge explain %[1]s", word)}
}

// planFile reads a saved plan; any other file is an error.
func (a *app) planFile(path string) (*plan.File, error) {
	saved, err := readPlan(path)
	if err != nil {
		return nil, err
	}
	if saved == nil {
		if f, err := files.Open(path); err != nil {
			return nil, err
		} else if err := f.Close(); err != nil {
			return nil, err
		}
		return nil, &view.Problem{What: path + " is not a saved plan", Fix: "To save a plan: converge plan -out=FILE"}
	}
	_, err = a.schema() // which knows the secret fields
	return saved, err
}

func (a *app) showPlan(ctx context.Context, path string) error {
	saved, err := a.planFile(path)
	if err != nil {
		return err
	}
	if !a.flags.json {
		a.print(view.PlanText(saved.Plan, a.kinds, a.style(a.sys.Stdout), a.flags.layout))
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	o := view.PlanOrigin{Digest: saved.Digest, At: info.ModTime(), Converge: a.sys.Version, Kinds: a.kinds}
	if len(saved.Plan.Document) > 0 {
		doc, _, err := a.check(ctx, load.Bounds{}, load.Source{Name: "document.json", Data: saved.Plan.Document})
		if err != nil {
			return err
		}
		if doc != nil { // otherwise another version made the plan
			o.Declared = doc.Resources
		}
	}
	return a.printJSON(view.PlanDocument(saved.Plan, o))
}

// run reads a run; absent is the message when there is none.
func (s *session) run(ctx context.Context, id, absent string) (state.Run, error) {
	run, err := s.store.Run(ctx, id)
	if !errors.Is(err, state.ErrNotFound) {
		return run, err
	}
	runs, lerr := s.store.Runs(ctx)
	if lerr != nil {
		return run, lerr
	}
	ids := make([]string, len(runs))
	for i := range runs {
		ids[i] = runs[i].ID
	}
	return run, &view.Problem{What: absent, Fix: trimmed(nearest.DidYouMean(id, ids), "See: converge runs"), Err: err}
}

func (s *session) showRun(ctx context.Context, id, absent string) error {
	run, err := s.run(ctx, id, absent)
	if err != nil {
		return err
	}
	steps, err := engine.Steps(ctx, s.store, run)
	if err != nil { // the record of the run itself is there
		s.view.Warn("the steps of the run could not be read: " + err.Error())
	} else {
		s.recount(ctx, &run)
	}
	if s.flags.json {
		return s.printJSON(struct {
			state.Run
			Each []engine.StepReport `json:"each_step,omitempty"`
		}{run, steps})
	}
	s.print(view.RunText(run, steps, engine.Undoable(ctx, s.store, run), s.style(s.sys.Stdout)))
	return nil
}

// showSite shows what converge has stored about the site.
func (s *session) showSite(ctx context.Context) error {
	m := view.SiteSummary{Site: s.site, Kinds: map[string]int{}}
	head, err := s.store.Head(ctx)
	switch {
	case err == nil:
		m.Document = &head
	case !errors.Is(err, state.ErrNotFound):
		return err
	}
	records, err := s.records(ctx)
	if err != nil {
		return err
	}
	for i := range records {
		m.Kinds[records[i].Ref.Kind]++
	}
	runs, err := s.store.Runs(ctx)
	if err != nil {
		return err
	}
	if len(runs) > 0 {
		s.recount(ctx, &runs[0])
		m.LastRun = &runs[0]
	}
	stops, err := s.store.Stops(ctx)
	if err != nil {
		return err
	}
	m.Holds = nonNil(stops.All())
	if m.Lock, err = s.store.LockInfo(ctx); err != nil {
		return err
	}
	if !s.flags.json {
		s.print(view.SummaryText(m, s.style(s.sys.Stdout)))
		return nil
	}
	if _, err := s.schema(); err != nil {
		return err
	}
	return s.printJSON(view.StateDocument(records, s.kinds, m))
}

// records returns the recorded resources that exist, sorted by ref.
func (s *session) records(ctx context.Context) ([]state.Record, error) {
	all, err := s.store.Records(ctx)
	return slices.DeleteFunc(all, func(r state.Record) bool { return r.Gone }), err
}
