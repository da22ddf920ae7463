package command

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
)

func (a *app) explainCommand() *cobra.Command {
	var planFile string
	c := &cobra.Command{
		Use:   "explain REF|CODE [DOCUMENT...]",
		Short: "Explain why a resource is in the plan, or what a code means",
		Long: `Explain a resource, by its ref: what the plan does with it and why, what the document
says, what is recorded and what differs, what it refers to and what refers to it, what
it waits for, and what undoing it would mean. The plan is the one that converge plan would
make now, from the given document or else from the newest in the store; with -plan it
is the one in the file, and nothing is observed.

Explain a code: a diagnostic such as CV1102 or the name of its rule, an exit status, or
an undo class, R1 to R4.`,
		Example: `  converge explain site/carbide.vpc/prod
  converge explain site/carbide.vpc/prod site.cue
  converge explain -plan=site.plan site/carbide.vpc/prod
  converge explain CV1102
  converge explain 4`,
		Args:              atLeast(1),
		ValidArgsFunction: a.completeExplain,
	}
	c.Flags().StringVar(&planFile, "plan", "", "explain the plan in this `file`")
	c.RunE = func(c *cobra.Command, args []string) error {
		what, documents := args[0], args[1:]
		if strings.Contains(what, "/") {
			return a.explainRef(c.Context(), what, documents, planFile)
		}
		if planFile != "" || len(documents) > 0 {
			return &view.Problem{What: fmt.Sprintf("%q is not a ref: want SCOPE/KIND/NAME, for example site/carbide.vpc/prod", what), Fix: "The meaning of a code does not depend on a plan or a document."}
		}
		return a.explainCode(c.Context(), what)
	}
	return c
}

// explainRef explains what a plan does about a resource.
func (a *app) explainRef(ctx context.Context, text string, documents []string, planFile string) error {
	sch, err := a.schema()
	if err != nil {
		return err
	}
	ref, err := schema.ParseRef(text)
	if err != nil {
		return &view.Problem{What: err.Error(), Fix: "See: converge state list", Err: err}
	}
	if sch.Kinds()[ref.Kind] == nil {
		return &view.Problem{What: fmt.Sprintf("unknown kind %q", ref.Kind), Fix: trimmed(nearest.DidYouMeanKind(ref.Kind, sch.Kinds().Names()), "See: converge schema")}
	}
	p, doc, records, err := a.planned(ctx, documents, planFile)
	if err != nil {
		return err
	}
	e, known, ok := view.ExplainRef(ref, p, doc, records, a.kinds)
	if !ok {
		return &view.Problem{
			What: "nothing is known about " + text, Where: "It is not in the document, not recorded in state, and was not observed.",
			Fix: trimmed(nearest.DidYouMeanRef(text, known), "See what exists with: converge graph -format=json, or converge state list"),
		}
	}
	if a.flags.json {
		err = a.printJSON(e)
	} else {
		a.print(view.ExplainText(e, a.style(a.sys.Stdout)))
	}
	if err == nil && e.Decision == "unknown" {
		return outcome(exitUnknown)
	}
	return err
}

// planned returns a plan with what it was made from: the one in a file, or one that is made now. The records are nil for a file, which
// does not have them.
func (a *app) planned(ctx context.Context, documents []string, planFile string) (*plan.Plan, *schema.Document, []state.Record, error) {
	if planFile != "" {
		if len(documents) > 0 {
			return nil, nil, nil, &view.Problem{What: "-plan and a document cannot be used together", Fix: "Use only one of them."}
		}
		saved, err := a.planFile(planFile)
		if err != nil || saved.Plan.Document == nil {
			return planOf(saved), nil, nil, err
		}
		doc, err := a.loadSources(ctx, load.Source{Name: "document.json", Data: saved.Plan.Document})
		return saved.Plan, doc, nil, err
	}
	s, doc, err := a.desired(ctx, documents, pretend, false, false)
	if err != nil {
		return nil, nil, nil, err
	}
	s.looks = true
	e, err := s.engine()
	if err != nil {
		return nil, nil, nil, err
	}
	p, err := s.makePlan(ctx, e, doc, planning{})
	if err != nil {
		return nil, nil, nil, err
	}
	records, err := s.store.Records(ctx)
	return p, doc, nonNil(records), err
}

func planOf(f *plan.File) *plan.Plan {
	if f == nil {
		return nil
	}
	return f.Plan
}

var looksLikeCode = regexp.MustCompile(`^(?i:CV[0-9]*|R[0-9]*|[0-9]+)$`)

// explainCode explains what a code means.
func (a *app) explainCode(ctx context.Context, word string) error {
	sch, err := a.schema()
	if err != nil {
		return err
	}
	e, ok := codes()[strings.ToUpper(word)]
	for _, c := range codes() {
		if c.Name != "" && c.Name == word {
			e, ok = c, true
		}
	}
	if !ok {
		return unknownCode(word, sch.Kinds().Names())
	}
	if d, found := load.Example(ctx, sch, e.Code); found {
		e.Example = &d
	}
	if a.flags.json {
		return a.printJSON(e)
	}
	a.print(view.CodeText(e, a.style(a.sys.Stdout)))
	return nil
}

// codes returns all codes by name.
func codes() map[string]view.CodeExplanation {
	all := map[string]view.CodeExplanation{}
	for _, c := range load.Codes() {
		all[c.Code] = view.CodeExplanation{Code: c.Code, Name: c.Name, Summary: c.Summary, Doc: c.Doc}
	}
	for _, s := range statuses {
		number := strconv.Itoa(s.code)
		all[number] = view.CodeExplanation{Code: number, Summary: "exit status: " + s.brief, Doc: s.means}
	}
	for _, r := range []providers.Revert{providers.Exact, providers.Restart, providers.Replace, providers.NoUndo} {
		doc := "A step of this class runs before the point of no return: if the run fails, it is reverted, and the revert is verified."
		if !r.Reversible() {
			doc = "A step of this class runs after the point of no return, when all others are done, and only if that exact plan was approved."
		}
		all[string(r)] = view.CodeExplanation{Code: string(r), Summary: "when a step is reverted, " + r.Meaning(), Doc: doc}
	}
	return all
}

// unknownCode returns the error that there is no such code, with the one that was probably meant.
func unknownCode(word string, kinds []string) error {
	var names []string
	for name, c := range codes() {
		names = append(names, name)
		if c.Name != "" {
			names = append(names, c.Name)
		}
	}
	p := &view.Problem{What: fmt.Sprintf("%q is neither a ref nor a code", word), Fix: nearest.DidYouMean(word, names)}
	if kind := nearest.DidYouMeanKind(word, kinds); p.Fix == "" && kind != "" && !looksLikeCode.MatchString(word) {
		p.Fix = "To explain a kind: converge schema " + strings.TrimSuffix(strings.TrimPrefix(kind, " Did you mean "), "?")
		return p
	}
	p.Fix = trimmed(p.Fix, "A ref is SCOPE/KIND/NAME, such as site/carbide.vpc/prod; a code is shown in parentheses after a diagnostic, such as CV1102.")
	return p
}

// completeExplain offers the recorded resources and the codes, and then documents.
func (a *app) completeExplain(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return completeDocuments(c, args, word)
	}
	var words []string
	for _, code := range load.Codes() {
		words = append(words, code.Code+"\t"+code.Summary)
	}
	for _, r := range []string{"R1", "R2", "R3", "R4"} {
		words = append(words, r+"\t"+codes()[r].Summary)
	}
	refs, _ := a.completeRefs(c, args, word)
	return append(refs, words...), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
