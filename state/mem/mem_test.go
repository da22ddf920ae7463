package mem_test

import (
	"testing"

	"converge.dev/converge/internal/statetest"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

func TestLaws(t *testing.T) {
	statetest.KV(t, func(*testing.T) state.KV { return mem.New(mem.Options{}) })
	statetest.WatchClosed(t, mem.New(mem.Options{}))
	statetest.Store(t, func(*testing.T) state.KV { return mem.New(mem.Options{}) })
}
