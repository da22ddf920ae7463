package site_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
)

// The inventory is recorded when the agent begins to keep the site, at each sweep, and soon after something has changed: not at once, and
// the later the longer the look before took. While nothing can be reached nothing is taken for gone, and what cannot be observed is told.
func TestInventory(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		var mu sync.Mutex
		var told []string
		var broken error
		var slow time.Duration
		reached := b.reached
		i := site.NewInventory(site.InventoryOptions{
			Engine: func() (*engine.Engine, error) {
				mu.Lock()
				defer mu.Unlock()
				return b.Engine(func(o *engine.Options) {
					o.Open, o.Shown = b.open, func(i survey.Item) survey.Item { return i }
				}), broken
			},
			Site: schema.Site{Name: "test", ID: enginetest.SiteID}, Every: 10 * time.Minute, Logger: slog.New(slog.NewTextHandler(&locked{b: b}, nil)),
			Reached: func() []providers.Need {
				mu.Lock()
				defer mu.Unlock()
				took := slow
				mu.Unlock()
				time.Sleep(took)
				mu.Lock()
				return reached
			},
			Taken: func(unknown []plan.Unknown, err error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, fmt.Sprint(len(unknown), " ", err))
			},
		})
		since := int64(0)
		changed := func() string {
			t.Helper()
			synctest.Wait()
			stored, err := b.Store.Inventory(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			inv, _, err := survey.Recorded(schema.Site{}, stored, since, survey.Cursor{}, 100)
			if err != nil {
				t.Fatal(err)
			}
			since = inv.Revision
			var ids []string
			for _, i := range inv.Items {
				id := i.ID
				if i.Deleted != nil {
					id = "no " + id
				}
				ids = append(ids, id)
			}
			mu.Lock()
			defer mu.Unlock()
			said := strings.Join(append(ids, told...), ", ")
			told = nil
			return said
		}
		want := func(what, want string) {
			t.Helper()
			if got := changed(); got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		put := func(id string) {
			t.Helper()
			if err := b.World.Put(schema.ScopeSite, "far.guard", providers.Thing{ID: id, Name: id, Phase: providers.Ready}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		put("a")
		running.Go(func() { i.Run(ctx) })
		want("at first", "a, 0 <nil>")
		put("b")
		i.Soon()
		time.Sleep(4 * time.Second)
		want("at once", "")
		time.Sleep(2 * time.Second)
		want("soon", "b, 0 <nil>")
		for _, c := range []struct{ took, rest time.Duration }{{2 * time.Second, 40 * time.Second}, {time.Minute, time.Minute}} {
			mu.Lock()
			slow = c.took
			mu.Unlock()
			i.Soon()
			time.Sleep(6*time.Second + c.took) // a look that takes long
			mu.Lock()
			slow = 0
			mu.Unlock()
			want("a slow look", "0 <nil>")
			put("b" + c.took.String())
			i.Soon()
			time.Sleep(c.rest - 7*time.Second)
			want("before the rest is over", "")
			time.Sleep(7 * time.Second)
			want("after the rest", "b"+c.took.String()+", 0 <nil>")
			time.Sleep(6 * time.Second)
		}
		put("c")
		time.Sleep(8 * time.Minute)
		want("before the sweep", "")
		time.Sleep(2*time.Minute + time.Second)
		want("after the sweep", "c, 0 <nil>")

		mu.Lock()
		had := reached
		reached = nil
		mu.Unlock()
		time.Sleep(10*time.Minute + time.Second)
		want("when nothing is reached", "0 <nil>")
		mu.Lock()
		reached, broken = had, errors.New("no schema")
		mu.Unlock()
		time.Sleep(10*time.Minute + time.Second)
		if got := changed(); !strings.HasPrefix(got, "0 no schema") {
			t.Errorf("%q", got)
		}
		time.Sleep(3 * time.Minute)
		if got := changed(); strings.Count(got, "no schema") != 3 {
			t.Errorf("it is tried again once a minute: %q", got)
		}
		if n := strings.Count(b.log.String(), "could not be recorded"); n != 1 {
			t.Errorf("it is logged %d times", n)
		}
		mu.Lock()
		broken = nil
		mu.Unlock()
		b.fail(providers.Need{Scope: schema.ScopeSite, Provider: "far"}, "no route")
		if err := b.World.Remove(schema.ScopeSite, "far.guard", "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + time.Second)
		want("what cannot be reached", "1 <nil>")
		b.fail(providers.Need{Scope: schema.ScopeSite, Provider: "far"}, "")
		time.Sleep(10*time.Minute + time.Second)
		want("when it can be reached again", "no a, 0 <nil>")
		stop()
		running.Wait()
	})
}
