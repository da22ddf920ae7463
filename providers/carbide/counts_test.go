package carbide_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
)

// atOnce is the number of concurrent calls in these tests.
const atOnce = 8

// TestCallsToList lists every kind on a site that is full of it: each object is seen once, in as many calls as the
// population says, which are concurrent.
func TestCallsToList(t *testing.T) {
	for _, of := range carbidetest.Kinds() {
		for _, p := range of.Populations {
			many := 10_000
			if race || p.As != "" {
				many = 1_000
			}
			if (p.Once != 1 || p.Page != 1 || p.After != 0) && p.Why == "" {
				t.Errorf("%s takes more calls than others, and it is not said why", of.Name())
			}
			for _, c := range []struct{ objects, limit int }{{many, 100}, {500, 7}, {7, 7}, {8, 7}, {0, 100}} {
				name := strings.ReplaceAll(strings.TrimSpace(of.Noun+" "+p.As), " ", "-")
				t.Run(fmt.Sprintf("%s/%d by %d", name, c.objects, c.limit), func(t *testing.T) {
					t.Parallel()
					list(t, of.Noun, p, c.objects, c.limit)
				})
			}
		}
	}
	for _, k := range newSite(t, carbidesim.Options{}).Kinds {
		if !slices.ContainsFunc(carbidetest.Kinds(), func(of carbidetest.Kind) bool { return of.Name() == k.Name && len(of.Populations) > 0 }) {
			t.Errorf("%s is not listed here", k.Name)
		}
	}
}

func list(t *testing.T, noun string, p carbidetest.Population, n, limit int) {
	var o carbidesim.Options
	if p.Site != nil {
		o = p.Site(n)
	}
	o.Rules.MaxFindByIDs = limit
	w := newWorld(t, o)
	unseen := map[string]bool{}
	for _, id := range p.In(t, w, n) {
		unseen[id] = true
	}
	if len(unseen) != n {
		t.Fatalf("%d objects were made, want %d", len(unseen), n)
	}

	pages := (n + limit - 1) / limit
	g := &gate{TB: t, open: make(chan struct{})}
	if p.Page > 0 {
		g.first, g.want = 1, min(pages, atOnce)
	} else {
		g.want = p.Once
	}
	server, client := mutual(t)
	server.Arrived = g.arrived
	provider, err := carbide.Open(t.Context(), carbide.Options{Address: listen(t, w, server), TLS: client, Parallel: atOnce})
	if err != nil {
		t.Fatal(err)
	}
	defer provider.Close()
	kind := (&site{t, w, provider}).kind(noun)
	w.ResetCalls()
	begin := time.Now()
	things, err := providers.Collect(kind.List(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	took, calls := time.Since(begin), 0
	for _, k := range w.Calls() {
		calls += k
	}
	for _, th := range things {
		if !unseen[th.ID] {
			t.Errorf("%s is seen twice, or was never made", th.ID)
		}
		delete(unseen, th.ID)
	}
	if len(unseen) > 0 {
		t.Errorf("%d of %d objects are not seen", len(unseen), n)
	}
	want := p.Once + p.Page*pages
	if pages > 0 {
		want += p.After
	}
	if calls != want {
		t.Errorf("the list took %d calls, want %d: %v", calls, want, w.Calls())
	}
	if most, want := w.AtOnce(), max(g.want, 1); most != want {
		t.Errorf("%d calls went at the same time, want %d", most, want)
	}
	t.Logf("%d objects: %d calls, %d at once, in %s", n, calls, w.AtOnce(), took.Round(time.Millisecond))
}

// A gate lets the first calls pass and holds the following ones until as many as are wanted are there at once.
type gate struct {
	testing.TB
	first, want int

	mu   sync.Mutex
	came int
	open chan struct{}
}

func (g *gate) arrived(ctx context.Context, method string) {
	if method == "Version" {
		return
	}
	g.mu.Lock()
	g.came++
	came := g.came - g.first
	if came == g.want {
		close(g.open)
	}
	g.mu.Unlock()
	if came < 1 {
		return
	}
	select {
	case <-g.open:
	case <-ctx.Done():
		g.Errorf("%s waited in vain for %d calls at once: %d came", method, g.want, came)
	}
}
