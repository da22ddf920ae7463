package guard_test

import (
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/guard"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
)

// What waits for the program goes on once that is undone which the machine's restart found, or has failed to be; in the same boot at once.
func TestReady(t *testing.T) {
	for _, c := range []struct {
		boot  string
		mends bool
	}{{"boot-1", true}, {"boot-2", true}, {"boot-2", false}} {
		inside(t, func(t *testing.T, b *bench) {
			b.start()
			before, after := b.three()
			ready := 0
			b.options = func(o *guard.Options) { o.Ready = func() { ready++ } }
			if err := b.world.Fail(fake.Fault{Op: "any", Ref: "*/*/*", Class: providers.Transient, Times: -1}); err != nil {
				t.Fatal(err)
			}
			b.restart(c.boot)
			synctest.Wait()
			if want := map[string]int{"boot-1": 1}[c.boot]; ready != want {
				t.Errorf("in %s it is ready %d times before anything is undone, want %d", c.boot, ready, want)
			}
			if c.boot == "boot-1" {
				return
			}
			b.as(after, "while it cannot be undone")
			if c.mends {
				if err := b.world.Mend(); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(20 * time.Second) // more than three tries take
			synctest.Wait()
			if ready != 1 {
				t.Errorf("it is ready %d times", ready)
			}
			want := after
			if c.mends {
				want = before
			}
			b.as(want, "when it is ready")
		})
	}
}
