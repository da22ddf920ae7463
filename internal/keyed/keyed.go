// Package keyed is a lock per key.
package keyed

import (
	"context"
	"sync"
)

// A Mutex lets callers with the same key proceed one at a time. The zero Mutex is ready. Keys that are not held take no space.
type Mutex struct {
	mu   sync.Mutex
	busy map[string]chan struct{} // closed when the key is unlocked
}

// Lock waits for the key; unlock passes it to the next caller. It fails with the cause of ctx when that ends before.
func (m *Mutex) Lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		m.mu.Lock()
		before := m.busy[key]
		if before == nil {
			mine := make(chan struct{})
			if m.busy == nil {
				m.busy = map[string]chan struct{}{}
			}
			m.busy[key] = mine
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				delete(m.busy, key)
				m.mu.Unlock()
				close(mine)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
