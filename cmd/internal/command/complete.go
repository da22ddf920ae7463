package command

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/schema/load"
)

// completing bounds how long the shell waits for us.
const completing = time.Second

// completeDocuments offers files that may be documents or plans.
func completeDocuments(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// completeKinds offers the kinds of the schema.
func (a *app) completeKinds(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	s, err := load.New()
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
			words = append(words, r.ID+"\t"+strings.TrimSpace(r.Op+" "+string(r.Status)))
		}
		return words, err
	})
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

// complete asks the store, if that is quick.
func (a *app) complete(c *cobra.Command, words func(context.Context, *session) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completing)
	defer cancel()
	if err := a.begin(c); err != nil {
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
