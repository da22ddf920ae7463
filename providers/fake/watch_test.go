package fake_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

// TestWatchOfWhatComesLater: what happens by itself is told too, and nobody has to look for that.
func TestWatchOfWhatComesLater(t *testing.T) {
	eventual := fake.NodeTraits()
	eventual.Eventual = true
	for _, c := range []struct {
		name  string
		fault fake.Fault
		then  func(w *fake.World) error
	}{
		{"at once", fake.Fault{Op: "create", Ref: "*/*/other"}, nil},
		{"late", fake.Fault{Op: "create", Effect: fake.EffectLate, Delay: fake.Duration(time.Hour)}, nil},
		{"late, by force", fake.Fault{Op: "create", Effect: fake.EffectLate, Delay: fake.Duration(1000 * time.Hour)}, (*fake.World).Land},
		{"slow", fake.Fault{Op: "create", Effect: fake.EffectSlow, Delay: fake.Duration(time.Hour)}, nil},
		{"stale for some looks", fake.Fault{Op: "observe", Effect: fake.EffectStale, Times: 3}, nil},
		{"stale until it is mended", fake.Fault{Op: "observe", Effect: fake.EffectStale, Times: -1}, (*fake.World).Mend},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := fake.New(kinds)
				w.Traits = map[string]providers.Traits{"lab.switch": eventual}
				must(t, w.Fail(c.fault))
				p := w.Provider("lab", node)
				k := p.Kinds[slices.IndexFunc(p.Kinds, func(k providers.Served) bool { return k.Name == "lab.switch" })]
				ctx, cancel := context.WithCancel(t.Context())
				var seen []providers.Thing
				var last error
				go func() {
					for _, err := range k.Watch(ctx) {
						if last = err; err == nil {
							seen, last = k.Kind.Get(ctx, []string{"s1"})
						}
						if last != nil {
							return
						}
					}
				}()
				synctest.Wait()
				if err := k.Kind.Create(ctx, call("lab.switch", "s1", schema.Object{})); err != nil && providers.ClassOf(err) != providers.Unknown {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Hour)
				if c.then != nil {
					must(t, c.then(w))
				}
				synctest.Wait()
				if last != nil || len(seen) != 1 || seen[0].Phase != providers.Ready {
					t.Errorf("following the watch shows %+v (%v), want the switch, ready", seen, last)
				}
				must(t, w.Mend())
				must(t, w.Remove(node, "lab.switch", "s1"))
				synctest.Wait()
				if last != nil || len(seen) > 0 {
					t.Errorf("once it was removed, following the watch shows %+v (%v)", seen, last)
				}
				cancel()
				synctest.Wait()
				if !errors.Is(last, context.Canceled) {
					t.Errorf("it ended with %v", last)
				}
			})
		})
	}
}

// TestWatchOfClosedWorld: a watch ends with its world, and none begins after that.
func TestWatchOfClosedWorld(t *testing.T) {
	w := fake.New(kinds)
	watch := w.Provider("lab", node).Kinds[0].Watch
	for range 2 {
		var last error
		for _, err := range watch(t.Context()) {
			last = err
			must(t, w.Close())
		}
		wantClass(t, last, providers.Transient)
	}
}
