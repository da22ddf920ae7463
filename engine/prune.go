package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/state"
)

// keepRuns is how many ended runs are kept, with their plans and journals. A tenth more may accumulate, so that not every
// run pays for the removal.
const keepRuns = 100

// prune removes the oldest runs, with what only they refer to. It removes a run only when its journal says that it has
// ended, never an open run, nor a partial one, which can still be settled.
func (e *Engine) prune(ctx context.Context, lock *state.Lock) error {
	runs, err := e.o.Store.Runs(ctx)
	if err != nil || len(runs) <= keepRuns+keepRuns/10 {
		return err
	}
	kept := map[string]bool{}
	var gone []state.Run
	// The newest run that applied a document stays, and so do older ones that were taken up or undone since: see [Engine.Applied].
	base := slices.IndexFunc(runs, func(r state.Run) bool { return r.Status == state.RunApplied && r.Complete })
	for i, r := range runs { // newest first
		if i < keepRuns || i == base || r.Status == state.RunOpen || r.Status == state.RunPartial || base >= 0 && i > base && r.Epoch > runs[base].Epoch {
			for _, digest := range r.Body {
				kept[digest] = true
			}
			continue
		}
		gone = append(gone, r)
	}
	for _, r := range gone {
		log, err := journal.Read(ctx, e.o.Store, r.ID)
		if err != nil {
			return err // damage must be examined before it is removed
		}
		if n := len(log.Records); n > 0 && log.Records[n-1].Kind != journal.End {
			return fmt.Errorf("run %s ended %s, but its journal does not say so", r.ID, r.Status)
		}
		if _, err := lock.Commit(ctx, nil, e.o.Store.DropRunOps(r.ID)); err != nil {
			return fmt.Errorf("remove run %s: %w", r.ID, err)
		}
	}
	if err := e.o.Store.DropBlobs(ctx, lock, kept); err != nil && !errors.Is(err, state.ErrFenced) {
		return err
	}
	return nil
}
