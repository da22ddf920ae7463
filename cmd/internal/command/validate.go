package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/schema/rules"
)

func (a *app) validateCommand() *cobra.Command {
	var format string
	var strict, rules bool
	c := &cobra.Command{
		Use:   "validate [DOCUMENT...]",
		Short: "Check a document offline",
		Long: `Check a document against the schema and against the rules that concern the whole site,
and show all problems at once. The network is not used.

The document is one or more files (CUE, JSON, YAML), or a directory of such files, as
for converge plan; the default is the current directory.`,
		Example: `  converge validate site.cue
  converge validate -format=json site.json
  converge validate -rules                  lists the rules`,
		ValidArgsFunction: completeDocuments,
	}
	c.Flags().StringVar(&format, "format", "", "output `format`: text or json, the latter as in terraform validate -json")
	c.Flags().BoolVar(&strict, "strict", false, "treat warnings as errors")
	c.Flags().BoolVar(&rules, "rules", false, "list the rules instead")
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(c *cobra.Command, args []string) error {
		asJSON, err := a.format(format, "text", "json")
		if err != nil {
			return err
		}
		if rules {
			return a.printRules(asJSON == "json", args)
		}
		if len(args) == 0 {
			args = []string{"."}
		}
		doc, ds, err := a.validate(c.Context(), args, asJSON == "json")
		if err != nil {
			return err
		}
		invalid := ds.HasErrors() || strict && len(ds) > 0
		if asJSON == "json" {
			report := load.NewReport(ds)
			report.Valid = !invalid
			if err := a.printJSON(report); err != nil {
				return err
			}
		} else {
			a.view.Diagnostics(ds)
			if invalid {
				a.view.Note("\nThe document is not valid: " + view.DiagnosticsSummary(ds) + ".")
			} else {
				a.print(valid(doc, ds))
			}
		}
		if invalid {
			return outcome(exitError)
		}
		return nil
	}
	return c
}

// validate checks a document. For a report in JSON, sources that cannot be read are also a diagnostic.
func (a *app) validate(ctx context.Context, paths []string, report bool) (*schema.Document, load.Diagnostics, error) {
	sources, err := load.ReadSources(paths, a.sys.Stdin)
	if err != nil && report {
		return nil, load.Diagnostics{{Severity: load.Error, Summary: "The document cannot be read", Detail: err.Error()}}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	collect.at(400) // a tenth less time, and no more memory: at the end all of it is in use
	return a.check(ctx, load.Bounds{}, sources...)
}

func valid(doc *schema.Document, ds load.Diagnostics) string {
	text := fmt.Sprintf("Success! The document of site %s is valid: %s", doc.Site.Name, view.Resources(doc))
	if s := view.DiagnosticsSummary(ds); s != "" {
		text += ", " + s
	}
	return text + ".\n"
}

func (a *app) printRules(asJSON bool, args []string) error {
	if len(args) > 0 {
		return &view.Problem{What: "-rules takes no document"}
	}
	if asJSON {
		return a.printJSON(map[string]any{"rules": rules.All()})
	}
	a.print(view.RulesText(rules.All(), a.style(a.sys.Stdout)))
	return nil
}
