package state_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// TestSweep: a writer brings an old revision back at the very moment at which another one sweeps its chunks away. The
// document remains readable.
func TestSweep(t *testing.T) {
	db := mem.New(mem.Options{})
	putting, swept := make(chan struct{}), make(chan struct{})
	tries := 0
	slow := state.New(db.Connect(mem.Options{Fault: func(c mem.Call) error {
		if c.Name == "commit" && !c.Done && slices.ContainsFunc(c.Keys, func(k string) bool { return strings.HasSuffix(k, "document/head") }) {
			if tries++; tries == 1 { // its chunk is written, its head is not
				close(putting)
				<-swept
			}
		}
		return nil
	}}), "s")
	old := []byte("revision 0")
	written := make(chan error, 1)
	sweeper := state.New(db.Connect(mem.Options{Fault: func(c mem.Call) error {
		if c.Name != "commit" || !slices.ContainsFunc(c.Keys, func(k string) bool { return strings.HasSuffix(k, "document/swept") }) {
			return nil
		}
		if !c.Done {
			go func() {
				_, err := slow.PutDocument(t.Context(), old, digest(old), 0, "slow", state.AnyRevision)
				written <- err
			}()
			<-putting
		} else {
			close(swept)
		}
		return nil
	}}), "s")
	for i := range 111 {
		body := fmt.Appendf(nil, "revision %d", i)
		if _, err := sweeper.PutDocument(t.Context(), body, digest(body), 0, "sweeper", state.AnyRevision); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if tries != 2 {
		t.Errorf("the slow writer tried %d times, want once before and once after the sweep", tries)
	}
	h, body, err := slow.Document(t.Context(), 0)
	if err != nil || string(body) != string(old) || h.By != "slow" {
		t.Errorf("the newest revision is %q by %s, %v", body, h.By, err)
	}
}
