package command

import (
	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
)

func (a *app) graphCommand() *cobra.Command {
	var format, planFile string
	c := &cobra.Command{
		Use:   "graph [PLANFILE | DOCUMENT...]",
		Short: "Show dependencies as a graph",
		Long: `Show how the resources of a document refer to each other or, for a saved plan, which
steps come before which, coloured by action. Without an argument, show the newest
document in the store.`,
		Example: `  converge graph site.cue | dot -Tsvg > site.svg
  converge graph -format=mermaid -plan=site.plan`,
		ValidArgsFunction: completeDocuments,
	}
	c.Flags().StringVar(&format, "format", "", "output `format`: dot, mermaid or json")
	c.Flags().StringVar(&planFile, "plan", "", "show the steps of the plan in this `file`")
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"dot", "mermaid", "json"}, cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(c *cobra.Command, args []string) error {
		format, err := a.format(format, "dot", "mermaid", "json")
		if err != nil {
			return err
		}
		if planFile != "" && len(args) > 0 {
			return &view.Problem{What: "-plan and a document cannot be used together", Fix: "Use only one of them."}
		}
		g, err := a.graphOf(c, planFile, args)
		if err != nil {
			return err
		}
		switch format {
		case "json":
			return a.printJSON(g)
		case "mermaid":
			a.print(g.Mermaid())
		default:
			a.print(g.DOT())
		}
		return nil
	}
	return c
}

func (a *app) graphOf(c *cobra.Command, planFile string, args []string) (view.Graph, error) {
	if planFile == "" && len(args) == 1 {
		p, err := readPlan(args[0])
		if err != nil {
			return view.Graph{}, err
		}
		if p != nil {
			return view.PlanGraph(p.Plan), nil
		}
	}
	if planFile != "" {
		p, err := a.planFile(planFile)
		if err != nil {
			return view.Graph{}, err
		}
		return view.PlanGraph(p.Plan), nil
	}
	if len(args) > 0 {
		doc, err := a.load(c.Context(), args)
		if err != nil {
			return view.Graph{}, err
		}
		return view.DocumentGraph(doc), nil
	}
	s, err := a.open(c.Context(), nil, nil)
	if err != nil {
		return view.Graph{}, err
	}
	doc, err := s.stored(c.Context(), 0)
	if err != nil {
		return view.Graph{}, err
	}
	return view.DocumentGraph(doc), nil
}
