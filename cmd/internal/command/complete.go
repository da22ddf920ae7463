package command

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"converge.dev/converge/engine"
	"converge.dev/converge/schema/kinds"
)

// completing reports whether the shell asks for completions.
func completing(args []string) bool { return len(args) > 0 && strings.HasPrefix(args[0], "__complete") }

// singleDash reports whether the word to complete is a flag with one dash.
func singleDash(args []string) bool {
	last := args[len(args)-1]
	return strings.HasPrefix(last, "-") && !strings.HasPrefix(last, "--")
}

// completions writes what cobra offers to the shell in our own form: flags with as many dashes as the word to complete
// has, because the shell offers only what begins with it, and explanations without the marks of their values.
type completions struct {
	w    io.Writer
	dash bool // one
}

// Write implements io.Writer. Cobra writes whole lines.
func (c *completions) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		word, explanation, _ := strings.Cut(line, "\t")
		if c.dash && strings.HasPrefix(word, "--") {
			word = word[1:]
		}
		if explanation != "" {
			word += "\t" + strings.ReplaceAll(explanation, "`", "")
		}
		if _, err := io.WriteString(c.w, word); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// completeDocuments offers files that may be documents or plans.
func completeDocuments(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// completeKinds offers the kinds of the schema.
func (a *app) completeKinds(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	s, err := kinds.New()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return s.Kinds().Names(), cobra.ShellCompDirectiveNoFileComp
}

// completeRefs offers the recorded resources.
func (a *app) completeRefs(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(c, func(ctx context.Context, s *session) (words []string, err error) {
		records, err := s.records(ctx)
		for _, r := range records {
			words = append(words, r.Ref.String())
		}
		return words, err
	})
}

// completeRuns offers the runs, newest first.
func (a *app) completeRuns(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(c, func(ctx context.Context, s *session) (words []string, err error) {
		runs, err := s.store.Runs(ctx)
		for _, r := range runs {
			words = append(words, r.ID+"\t"+strings.TrimSpace(r.Op+" "+r.Stands()))
		}
		return words, err
	})
}

// completeSteps offers the steps of the run that is already named.
func (a *app) completeSteps(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(c, func(ctx context.Context, s *session) (words []string, err error) {
		run, err := s.store.Run(ctx, args[0])
		if err != nil {
			return nil, err
		}
		steps, err := engine.Steps(ctx, s.store, run)
		for _, r := range steps {
			words = append(words, fmt.Sprintf("%d\t%s %s", r.Step+1, r.Action, r.Ref))
		}
		return words, err
	})
}

// completePlansAndRuns offers saved plans, and runs.
func (a *app) completePlansAndRuns(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	runs, _ := a.completeRuns(c, args, begun)
	var words []string
	paths, _ := filepath.Glob(begun + "*") // an invalid pattern matches nothing
	for _, path := range paths {
		if saved, err := isPlan(path); err == nil && saved {
			words = append(words, path+"\tsaved plan")
		}
	}
	return append(words, runs...), cobra.ShellCompDirectiveKeepOrder // where nothing matches, the shell offers files
}

// completeHolds completes what is held.
func (a *app) completeHolds(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(c, func(ctx context.Context, s *session) (words []string, err error) {
		holds, err := s.store.Holds(ctx)
		for i, h := range holds {
			if i == 0 || holds[i-1].Scope != h.Scope {
				words = append(words, h.Scope+"\t"+h.Reason)
			}
		}
		return words, err
	})
}

// complete asks the store for words, if that is quick.
func (a *app) complete(c *cobra.Command, words func(context.Context, *session) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), a.sys.Patience)
	defer cancel()
	if err := a.begin(c, nil); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	s, err := a.open(ctx, nil, nil)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := words(ctx, s)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
