package cluster_test

import (
	"context"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/state"
)

// resume opens the journal of a run for the holder of the lock, and begins it when there is none yet.
func resume(ctx context.Context, store *state.Store, lock *state.Lock, run string) (*journal.Journal, error) {
	log, err := journal.Read(ctx, store, run)
	if err != nil {
		return nil, err
	}
	if len(log.Records) == 0 {
		if log, err = journal.Start(ctx, store, lock, run, "plan", nil, nil); err != nil {
			return nil, err
		}
	}
	return journal.Open(ctx, store, lock, run, log)
}

// records reads the whole journal of a run, and fails when its chain is broken.
func records(ctx context.Context, store *state.Store, run string) ([]journal.Record, error) {
	log, err := journal.Read(ctx, store, run)
	if err != nil {
		return nil, err
	}
	return log.Records, nil
}
