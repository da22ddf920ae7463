package command

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/shlex"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/internal/nearest"
)

// arguments brings the command line into the form that the flag library reads: -flag becomes --flag, and what the
// environment adds is inserted after the name of the command.
func (a *app) arguments(root *cobra.Command, args []string) ([]string, error) {
	takes := valueFlags(root)
	args = doubleDashes(args, takes)
	cmd, rest, err := root.Find(args)
	if err != nil || len(args) > 0 && strings.HasPrefix(args[0], "__") { // the shell asks for completions
		return args, nil
	}
	var path []string
	for c := cmd; c.HasParent(); c = c.Parent() {
		path = append([]string{c.Name()}, path...)
	}
	if len(path) == 0 {
		return args, nil
	}
	var more []string
	for _, name := range []string{envArgs, envArgs + "_" + strings.ReplaceAll(strings.Join(path, "_"), "-", "_")} {
		words, err := shlex.Split(a.env[name])
		if err != nil {
			return args, &view.Problem{What: "environment variable " + name + " cannot be parsed", Where: err.Error()}
		}
		more = append(more, doubleDashes(words, takes)...)
	}
	if len(more) == 0 {
		return args, nil
	}
	return append(append(path, more...), rest...), nil
}

// valueFlags collects the flags that take the next argument as their value.
func valueFlags(root *cobra.Command) map[string]bool {
	takes := map[string]bool{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, set := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { takes[f.Name] = takes[f.Name] || f.NoOptDefVal == "" })
		}
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit(root)
	return takes
}

// doubleDashes turns -flag into --flag. The values of flags, and what follows --, are left alone.
func doubleDashes(args []string, takes map[string]bool) []string {
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(out, args[i:]...)
		}
		if len(arg) > 1 && arg[0] == '-' && arg[1] != '-' && arg != "-h" {
			arg = "-" + arg
		}
		out = append(out, arg)
		if name, ok := strings.CutPrefix(arg, "--"); ok && takes[name] && i+1 < len(args) {
			i++
			out = append(out, args[i])
		}
	}
	return out
}

// wanted says what flags of a type accept.
var wanted = map[string]string{
	"bool": "true or false", "duration": "a duration such as 90s", "int": "an integer", "int64": "an integer", "uint32": "a non-negative integer",
	"uint64": "a non-negative integer",
}

// flagError explains what is wrong with a flag.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var wrong *pflag.InvalidValueError
	if errors.As(err, &wrong) {
		if want := wanted[wrong.GetFlag().Value.Type()]; want != "" {
			return &view.Problem{
				What: fmt.Sprintf("invalid -%s %q: want %s", wrong.GetFlag().Name, wrong.GetValue(), want), Fix: "See: " + c.CommandPath() + " -help", Err: err,
			}
		}
	}
	if !errors.As(err, &unknown) {
		return &view.Problem{What: strings.ReplaceAll(err.Error(), "--", "-"), Fix: "See: " + c.CommandPath() + " -help", Err: err}
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	name := unknown.GetSpecifiedName()
	return &view.Problem{
		What: fmt.Sprintf("%s has no flag -%s", c.CommandPath(), name),
		Fix:  strings.TrimSpace(dashed(nearest.Name(name, names)) + " See: " + c.CommandPath() + " -help"),
		Err:  err,
	}
}

// exclusive is the annotation in which the flag library stores the names given to
// [cobra.Command.MarkFlagsMutuallyExclusive].
const exclusive = "cobra_annotation_mutually_exclusive"

// meant refuses empty flags and arguments, which mostly come from an unset variable in a script, negative numbers, and
// flags that exclude each other: none of ours has a meaning with them, and ignoring them would not do what was requested.
func meant(c *cobra.Command, args []string) (err error) {
	refuse := func(what, fix string) {
		if err == nil {
			err = &view.Problem{What: what, Fix: trimmed(fix, "See: "+c.CommandPath()+" -help")}
		}
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		text, kind := f.Value.String(), f.Value.Type()
		empty := kind == "string" && blank(text)
		if list, ok := f.Value.(pflag.SliceValue); ok {
			empty = len(list.GetSlice()) == 0 || slices.ContainsFunc(list.GetSlice(), blank)
		}
		switch {
		case empty:
			refuse(fmt.Sprintf("-%s is empty", f.Name), "Give it a value or omit it.")
		case wanted[kind] != "" && strings.HasPrefix(text, "-"):
			refuse(fmt.Sprintf("invalid -%s %s: want 0 or more", f.Name, text), "")
		}
		for _, group := range f.Annotations[exclusive] {
			for _, other := range strings.Fields(group) {
				if other != f.Name && c.Flags().Changed(other) {
					refuse(fmt.Sprintf("-%s and -%s cannot be used together", f.Name, other), "Use only one of them.")
				}
			}
		}
	})
	if !c.DisableFlagParsing && slices.ContainsFunc(args, blank) { // a shell that completes words asks for those with an empty prefix
		refuse("an argument to "+c.CommandPath()+" is empty", "Give it a value or omit it.")
	}
	return err
}

func blank(text string) bool { return strings.TrimSpace(text) == "" }

func dashed(name string, ok bool) string {
	if !ok {
		return ""
	}
	return "Did you mean -" + name + "?"
}

// subcommand refuses other words where the name of a command is expected.
func subcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, child := range c.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	instead := nearest.DidYouMean(args[0], names)
	if use := elsewhere[strings.TrimPrefix(c.CommandPath()+" "+args[0], "converge ")]; use != "" {
		instead = "Instead, use " + use + "."
	}
	return &view.Problem{
		What: fmt.Sprintf("%s has no command %q", c.CommandPath(), args[0]),
		Fix:  strings.TrimSpace(instead + " See: " + c.CommandPath() + " -help"),
	}
}

// onlySubcommand is subcommand for a command that by itself only prints its help, which a program does not read.
func onlySubcommand(c *cobra.Command, args []string) error {
	if f := c.Flag("json"); len(args) == 0 && f != nil && f.Value.String() == "true" {
		return &view.Problem{What: c.CommandPath() + " needs a command", Fix: "See: " + c.CommandPath() + " -help"}
	}
	return subcommand(c, args)
}

// elsewhere says what replaces a command that other tools of this kind have.
var elsewhere = map[string]string{
	"taint":      "converge plan -replace=SCOPE/KIND/NAME",
	"refresh":    "converge drift, which observes without changing anything; every plan observes again",
	"output":     "converge inventory -json, or converge state show SCOPE/KIND/NAME",
	"workspace":  "-site=NAME for another site in the same store, -chdir=DIR for another workspace",
	"login":      "the certificates in converge.yaml",
	"console":    "cue eval with the schema from converge schema -format=cue",
	"state pull": "converge state list -json",
	"state push": "converge state rebuild SITE.cue, which records the objects that carry this site's mark again",
}

// exactly, between and atLeast check the number of arguments.
func exactly(n int) cobra.PositionalArgs { return between(n, n) }

func between(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		takes, were := view.Count(most, "argument"), "were"
		switch {
		case most == 0:
			takes = "no arguments"
		case least == 0:
			takes = "at most " + takes
		case least < most:
			takes = fmt.Sprintf("%d or %s", least, takes)
		}
		if len(args) == 1 {
			were = "was"
		}
		what := fmt.Sprintf("%s takes %s, but %d %s given", c.CommandPath(), takes, len(args), were)
		return &view.Problem{What: what, Fix: "Usage: " + strings.ReplaceAll(c.UseLine(), " [flags]", "")}
	}
}

func atLeast(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) >= n {
			return nil
		}
		return &view.Problem{What: c.CommandPath() + " needs an argument", Fix: "Usage: " + strings.ReplaceAll(c.UseLine(), " [flags]", "")}
	}
}

// trimmed joins sentences.
func trimmed(sentences ...string) string { return strings.TrimSpace(strings.Join(sentences, " ")) }
