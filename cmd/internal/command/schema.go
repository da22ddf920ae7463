package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

func (a *app) schemaCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "schema [KIND]",
		Short: "Show what a document may contain",
		Long: `Show the fields of a kind and an example, or without KIND the list of kinds. The whole
schema is available as CUE or as JSON Schema, for editors; as JSON it is converge's own
description.`,
		Example: `  converge schema
  converge schema carbide.vpc
  converge schema -format=jsonschema > converge.schema.json`,
		Args:              between(0, 1),
		ValidArgsFunction: a.completeKinds,
	}
	c.Flags().StringVar(&format, "format", "", "output `format`: text, json, cue or jsonschema")
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"text", "json", "cue", "jsonschema"}, cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(_ *cobra.Command, args []string) error {
		format, err := a.format(format, "text", "json", "cue", "jsonschema")
		if err != nil {
			return err
		}
		s, err := a.schema()
		if err != nil {
			return err
		}
		if len(args) == 0 {
			return a.wholeSchema(format)
		}
		kind := s.Kinds()[args[0]]
		if kind == nil {
			return &view.Problem{
				What: fmt.Sprintf("unknown kind %q", args[0]),
				Fix:  strings.TrimSpace(nearest.DidYouMeanKind(args[0], s.Kinds().Names()) + " See: converge schema"),
			}
		}
		switch format {
		case "json":
			return a.printJSON(struct {
				*schema.Kind
				Example string `json:"example"` // CUE
			}{kind, kinds.Example(kind)})
		case "text":
			text, err := s.Describe(kind.Name)
			a.print(text)
			return err
		}
		return &view.Problem{What: "-format=" + format + " prints the whole schema, not one kind", Fix: "Omit " + kind.Name + ", or use -format=text or json."}
	}
	return c
}

func (a *app) wholeSchema(format string) error {
	s := a.loaded
	switch format {
	case "json":
		return a.printJSON(s.Kinds())
	case "cue":
		text, err := s.CUE()
		_, _ = a.out.Write(text)
		return err
	case "jsonschema":
		text, err := s.JSONSchema()
		_, _ = a.out.Write(text)
		return err
	}
	a.print(view.KindsText(s.Kinds(), a.style(a.sys.Stdout)))
	return nil
}
