package state

import (
	"context"
	"iter"
	"strings"
	"sync"
)

// Wakes yields at first, and then whenever something was written of which a process that keeps the site has to take notice:
// a document in the inbox or a new revision, a hold, a freeze, an approval. It ends with an error, as [KV.Watch] does.
func (s *Store) Wakes(ctx context.Context) iter.Seq[error] {
	return func(yield func(error) bool) {
		ctx, stop := context.WithCancel(ctx)
		var watches sync.WaitGroup
		defer watches.Wait()
		defer stop()
		woken := make(chan error)
		for _, what := range []string{"inbox", "document/head", "hold/", "freeze", "approval/"} {
			watches.Go(func() {
				for batch, err := range s.kv.Watch(ctx, s.key(what)) {
					if err == nil && !batch.Whole && answers(batch) {
						continue
					}
					select {
					case woken <- err:
					case <-ctx.Done():
						return
					}
				}
			})
		}
		for {
			select {
			case err := <-woken:
				if !yield(err) || err != nil {
					return
				}
			case <-ctx.Done():
				yield(context.Cause(ctx))
				return
			}
		}
	}
}

// answers reports whether a batch contains nothing but what the site itself says of a document in the inbox.
func answers(b Batch) bool {
	for _, c := range b.Changes {
		if !strings.HasSuffix(c.Key, "/inbox/result") {
			return false
		}
	}
	return true
}
