package wire_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"pgregory.net/rapid"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/providers/wire/wirepb"
	"converge.dev/converge/schema"
)

// A meter counts the things that are sent in lists.
type meter struct {
	grpc.ClientConnInterface
	things, known, asked int // in the last list: pages that the caller has
}

func (m *meter) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := m.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	return &metered{s, m}, err
}

type metered struct {
	grpc.ClientStream
	m *meter
}

func (s *metered) SendMsg(q any) error {
	if q, ok := q.(*wirepb.ListRequest); ok {
		s.m.asked = len(q.GetKnown())
	}
	return s.ClientStream.SendMsg(q)
}

func (s *metered) RecvMsg(r any) error {
	err := s.ClientStream.RecvMsg(r)
	if r, ok := r.(*wirepb.Things); ok && err == nil {
		s.m.things += len(r.GetThings())
		if r.GetKnown() != nil {
			s.m.known++
		}
	}
	return err
}

// A stock is a list that changes.
type stock struct{ things []providers.Thing }

func (s *stock) kind() kind {
	return kind{list: func(context.Context) iter.Seq2[providers.Thing, error] {
		return providers.Listed(func() ([]providers.Thing, error) { return slices.Clone(s.things), nil })
	}}
}

func every(string) bool { return true }

// TestKnownPages: only the pages that differ are sent again, and the list is what the other side has.
func TestKnownPages(t *testing.T) {
	s := &stock{things(2500)}
	m := &meter{ClientConnInterface: newLine(t, serving(serve(s.kind())))}
	k := (&line{m, nil}).remembered(t, wire.NewMemory(every)).Kind
	for _, step := range []struct {
		name         string
		then         func()
		things, kept int // that are sent, and pages that are not
	}{
		{"at first", func() {}, 2500, 0},
		{"nothing changed", func() {}, 0, 3},
		{"one changed", func() { s.things[1200].Spec = schema.Object{"int": int64(2)} }, 1000, 2},
		{"and again", func() { s.things[1200].Spec = schema.Object{"int": int64(3)} }, 1000, 2},
		{"only a status did", func() { s.things[2400].Status = schema.Object{"seen": true} }, 500, 2},
		{"one is gone", func() { s.things = slices.Delete(s.things, 1500, 1501) }, 1499, 1},
		{"one came", func() { s.things = append(s.things, providers.Thing{ID: "new"}) }, 500, 2},
		{"the end is gone", func() { s.things = s.things[:1000] }, 0, 1},
		{"all are gone", func() { s.things = nil }, 0, 0},
		{"some came back", func() { s.things = things(1001) }, 1001, 0},
		{"in another order", func() { slices.Reverse(s.things) }, 1001, 0},
	} {
		step.then()
		m.things, m.known = 0, 0
		got, err := providers.Collect(k.List(t.Context()))
		if err != nil || m.things != step.things || m.known != step.kept {
			t.Errorf("%s: %d things were sent, %d pages not, want %d and %d (%v)", step.name, m.things, m.known, step.things, step.kept, err)
		}
		if d := cmp.Diff(slices.Clone(s.things), got, cmp.Transformer("", func(all []providers.Thing) map[string]providers.Thing {
			by := map[string]providers.Thing{}
			for _, th := range all {
				by[th.ID] = th
			}
			return by
		})); d != "" || len(got) != len(s.things) {
			t.Errorf("%s (-there +here):\n%.2000s", step.name, d)
		}
	}
}

// TestRememberedLists: whatever happens to a list, with a memory it is the same as without.
func TestRememberedLists(t *testing.T) {
	s := &stock{}
	l := newLine(t, serving(serve(s.kind())))
	rapid.Check(t, func(rt *rapid.T) {
		remembered, fresh := l.remembered(t, wire.NewMemory(every)).Kind, l.kind(t)
		s.things = make([]providers.Thing, rapid.SampledFrom([]int{0, 1, 999, 1000, 1001}).Draw(rt, "things"))
		for i := range s.things {
			s.things[i].ID = fmt.Sprint("id-", i)
		}
		for range rapid.IntRange(2, 5).Draw(rt, "lists") {
			for range rapid.IntRange(0, 3).Draw(rt, "changes") {
				i := rapid.IntRange(0, len(s.things)).Draw(rt, "at")
				switch rapid.IntRange(0, 3).Draw(rt, "change") {
				case 0:
					s.things = slices.Insert(s.things, i, providers.Thing{ID: fmt.Sprint("new-", rapid.Uint32().Draw(rt, "id"))})
				case 1:
					s.things = slices.Delete(s.things, i, min(i+rapid.SampledFrom([]int{1, 1000}).Draw(rt, "gone"), len(s.things)))
				case 2:
					if i < len(s.things) {
						s.things[i].Version += "+"
					}
				case 3:
					if i < len(s.things) {
						s.things[i].Spec = schema.Object{"n": int64(rapid.IntRange(0, 2).Draw(rt, "n"))}
					}
				}
			}
			got, err := providers.Collect(remembered.List(t.Context()))
			want, other := providers.Collect(fresh.List(t.Context()))
			if err != nil || other != nil || !reflect.DeepEqual(got, want) {
				rt.Fatalf("%v, %v (-without a memory +with it):\n%.2000s", err, other, cmp.Diff(want, got))
			}
		}
	})
}

// TestWhatIsNotKept: of a kind whose things show secrets nothing is kept, and a list that is left early is not the last one.
func TestWhatIsNotKept(t *testing.T) {
	s := &stock{things(2500)}
	m := &meter{ClientConnInterface: newLine(t, serving(serve(s.kind())))}
	secretive := (&line{m, nil}).remembered(t, wire.NewMemory(func(kind string) bool { return kind != "lab.box" })).Kind
	for range 2 {
		if _, err := providers.Collect(secretive.List(t.Context())); err != nil || m.asked != 0 || m.known != 0 {
			t.Errorf("%d pages are kept (%v)", m.asked, err)
		}
	}
	k := (&line{m, nil}).remembered(t, wire.NewMemory(every)).Kind
	for range k.List(t.Context()) {
		break
	}
	if _, err := providers.Collect(k.List(t.Context())); err != nil || m.asked != 0 {
		t.Errorf("%d pages are kept of a list that was left (%v)", m.asked, err)
	}
}

// TestLargeLists: what is too large is not kept, in one list or in all, and what was kept of the kind before is not either.
func TestLargeLists(t *testing.T) {
	s := &stock{things(1)}
	m := &meter{ClientConnInterface: newLine(t, serving(serve(s.kind())))}
	memory := wire.NewMemory(every)
	k := (&line{m, nil}).remembered(t, memory).Kind
	large := strings.Repeat("x", 1<<20)
	listed := func(what string, asked int) {
		t.Helper()
		if all, err := providers.Collect(k.List(t.Context())); err != nil || len(all) != len(s.things) || m.asked != asked {
			t.Errorf("%s: %d things, %d pages were kept before, want %d (%v)", what, len(all), m.asked, asked, err)
		}
	}
	listed("one", 0)
	for _, step := range []struct {
		mib, asked int
		text       func(th *providers.Thing)
	}{
		{7, 1, func(th *providers.Thing) { th.Status = schema.Object{"text": large} }},
		{9, 7, func(th *providers.Thing) { th.Status = schema.Object{"text": large} }},
		{7, 0, func(th *providers.Thing) { th.Detail = large }},
		{9, 7, func(th *providers.Thing) { th.Detail = large }},
	} {
		s.things = things(step.mib)
		for i := range s.things {
			step.text(&s.things[i])
		}
		listed(fmt.Sprintf("%d MiB", step.mib), step.asked)
	}
	s.things = make([]providers.Thing, 17_000) // of next to nothing
	listed("many", 0)
	s.things = things(1)
	listed("one again", 0)
	listed("which is kept", 1)
	memory.Forget()
	listed("forgotten", 0)
}

// A liar says of pages what is not true.
type liar struct {
	wirepb.UnimplementedProvidersServer
	pages  []*wirepb.Things
	lie    func() []*wirepb.Things // instead of the pages; nil: it does not lie
	honest wirepb.ProvidersServer  // which answers; nil: the liar does
	asked  [][]byte                // what is known, as it was asked last
}

func (l *liar) List(q *wirepb.ListRequest, out grpc.ServerStreamingServer[wirepb.Things]) error {
	if l.honest != nil {
		return l.honest.List(q, out)
	}
	l.asked = q.GetKnown()
	pages := l.pages
	if l.lie != nil {
		pages = l.lie()
	}
	for _, p := range pages {
		if err := out.Send(p); err != nil {
			return err
		}
	}
	return nil
}

func (l *liar) Describe(context.Context, *wirepb.DescribeRequest) (*wirepb.DescribeResponse, error) {
	return &wirepb.DescribeResponse{Providers: []*wirepb.Provider{{Name: "lab", Scope: "site", Kinds: []*wirepb.Served{{Name: "lab.box", Traits: []byte("{}")}}}}}, nil
}

// TestPagesThatNobodyKnows: what the other side does not send and this side does not have is an error, never a shorter list, and after it
// everything is asked for.
func TestPagesThatNobodyKnows(t *testing.T) {
	pages := func(ids ...string) (all []*wirepb.Things) {
		for _, id := range ids {
			all = append(all, &wirepb.Things{Things: []*wirepb.Thing{{Id: id}}})
		}
		return all
	}
	l := &liar{pages: pages("a", "b")}
	m := &meter{ClientConnInterface: newLine(t, func(r grpc.ServiceRegistrar) error { wirepb.RegisterProvidersServer(r, l); return nil })}
	k := (&line{m, nil}).remembered(t, wire.NewMemory(every)).Kind
	known := func(nth int) *wirepb.Things { return &wirepb.Things{Known: l.asked[nth]} }
	for _, c := range []struct {
		name string
		lie  func() []*wirepb.Things
		want string
	}{
		{"another digest", func() []*wirepb.Things { return []*wirepb.Things{{Known: []byte("?")}} }, "does not send page 1"},
		{"at another place", func() []*wirepb.Things { return []*wirepb.Things{known(1)} }, "does not send page 1"},
		{"one page too many", func() []*wirepb.Things { return []*wirepb.Things{known(0), known(1), known(1)} }, "does not send page 3"},
		{"known, and yet sent", func() []*wirepb.Things {
			return []*wirepb.Things{{Known: l.asked[0], Things: pages("c")[0].GetThings()}}
		}, "does not send page 1"},
		{"an empty page", func() []*wirepb.Things { return []*wirepb.Things{{}} }, "empty page"},
	} {
		l.pages, l.lie = pages("a", "b"), nil
		for range 2 { // the second time they are known
			if things, err := providers.Collect(k.List(t.Context())); err != nil || len(things) != 2 {
				t.Fatalf("%s: before: %v, %v", c.name, things, err)
			}
		}
		l.lie = c.lie
		things, err := providers.Collect(k.List(t.Context()))
		if providers.ClassOf(err) != providers.Invalid || things != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", c.name, things, err)
		}
		l.lie = nil
		if things, err := providers.Collect(k.List(t.Context())); err != nil || len(things) != 2 || m.asked != 0 {
			t.Errorf("%s: after: %v, %v; %d pages were asked for as known", c.name, things, err, m.asked)
		}
	}
}

// TestDigestsAreOfWhatCame: whatever somebody sent in place of a page, it is not what an honest side has when that says so of its own page.
func TestDigestsAreOfWhatCame(t *testing.T) {
	s := &stock{things(1)}
	honest, err := wire.New(slog.New(slog.DiscardHandler), serve(s.kind()))
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{pages: []*wirepb.Things{{Things: []*wirepb.Thing{{Id: "forged"}}}}}
	k := newLine(t, func(r grpc.ServiceRegistrar) error { wirepb.RegisterProvidersServer(r, l); return nil }).remembered(t, wire.NewMemory(every)).Kind
	if things, err := providers.Collect(k.List(t.Context())); err != nil || len(things) != 1 || things[0].ID != "forged" {
		t.Fatalf("%v, %v", things, err)
	}
	l.honest = honest
	for range 2 {
		if things, err := providers.Collect(k.List(t.Context())); err != nil || len(things) != 1 || things[0].ID != "id-0" {
			t.Errorf("%v, %v", things, err)
		}
	}
}
