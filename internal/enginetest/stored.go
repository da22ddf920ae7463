package enginetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Standing returns how far the newest run has come with the step of a resource: its outcome, or open; after > that of its
// undo, when that has begun. Ok is false when the plan has no such step.
func Standing(tb testing.TB, s *state.Store, ref schema.Ref) (word string, ok bool) {
	tb.Helper()
	ctx := context.Background()
	runs, err := s.Runs(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	body, err := s.Blob(ctx, runs[0].Body)
	if err != nil {
		tb.Fatal(err)
	}
	p, err := plan.Decode(body)
	if err != nil {
		tb.Fatal(err)
	}
	log, err := journal.Read(ctx, s, runs[0].ID)
	if err != nil {
		tb.Fatal(err)
	}
	sum, err := journal.Sum(log.Records, len(p.Steps))
	if err != nil {
		tb.Fatal(err)
	}
	i := slices.IndexFunc(p.Steps, func(step plan.Step) bool { return step.Ref == ref })
	if i < 0 {
		return "", false
	}
	if undo := wordOf(sum.Undo[i]); undo != "" {
		return wordOf(sum.Forward[i]) + ">" + undo, true
	}
	return wordOf(sum.Forward[i]), true
}

func wordOf(s journal.Standing) string {
	switch {
	case s.Open != nil:
		return "open"
	case s.Outcome != nil:
		return string(s.Outcome.Result)
	}
	return ""
}

// Holds returns the kinds of the current holds, such as serial+site.
func Holds(tb testing.TB, s *state.Store) string {
	tb.Helper()
	holds, err := s.Holds(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	var scopes []string
	for _, h := range holds {
		scope, _, _ := strings.Cut(h.Scope, ":")
		scopes = append(scopes, scope)
	}
	slices.Sort(scopes)
	return strings.Join(scopes, "+")
}

// Release releases all holds, as an operator does after checking the site.
func Release(tb testing.TB, s *state.Store) {
	tb.Helper()
	holds, err := s.Holds(context.Background())
	for _, h := range holds {
		err = errors.Join(err, s.Release(context.Background(), h.Scope, "test", ""))
	}
	if err != nil {
		tb.Fatal(err)
	}
}
