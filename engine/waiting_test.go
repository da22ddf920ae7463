package engine_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers/fake"
)

// Who waits says for what and for how long, and once that was in vain, how long it was.
func TestWaitingSaysForHowLong(t *testing.T) {
	s := enginetest.New()
	doc := s.Document(t, map[string]string{"site/far.net/n": `{"cidr": "10.0.0.0/24"}`})
	doc.Resources[0].Timeouts.Create = 60 * time.Millisecond
	doc.JSON = append(doc.JSON[:len(doc.JSON)-1], `,"far":{"net":{"n":{"timeouts":{"create":"60ms"}}}}}`...)
	sum := sha256.Sum256(doc.JSON)
	doc.Digest = hex.EncodeToString(sum[:])
	p := s.Plan(t, doc, plan.Options{})
	if err := s.World.Fail(fake.Fault{Op: "create", Ref: "site/far.net/n", Effect: fake.EffectSlow, Delay: fake.Duration(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	var waits []string
	e := s.Engine(func(o *engine.Options) {
		o.Emit = func(ev event.Event) {
			if w, ok := ev.(event.StepProgress); ok && w.Phase == event.Waiting && !w.Undo {
				waits = append(waits, w.Detail)
			}
		}
	})
	defer e.Close()
	res, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
	if err != nil || len(waits) == 0 || !strings.HasSuffix(waits[0], " (for up to 60ms)") {
		t.Errorf("it waits for %q, %v", waits, err)
	}
	if !strings.Contains(res.Run.Message, "after 60ms: ") {
		t.Errorf("the run ended %s: %s", res.Run.Status, res.Run.Message)
	}
}
