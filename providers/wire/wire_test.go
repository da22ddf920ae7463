package wire_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/providers/wire/wirepb"
	"converge.dev/converge/schema"
)

// The laws of the contract are checked through the wire for every kind, in the tests of each provider. Here is what they do not
// cover: what breaks on the way, and that nothing is lost in transit.

// A kind of functions; one that is nil is not called.
type kind struct {
	list   func(ctx context.Context) iter.Seq2[providers.Thing, error]
	get    func(ctx context.Context, ids []string) ([]providers.Thing, error)
	change func(ctx context.Context, op string, c providers.Call) error
	watch  providers.Watch
}

func (k kind) List(ctx context.Context) iter.Seq2[providers.Thing, error] { return k.list(ctx) }
func (k kind) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	return k.get(ctx, ids)
}
func (k kind) Create(ctx context.Context, c providers.Call) error { return k.change(ctx, "create", c) }
func (k kind) Update(ctx context.Context, c providers.Call) error { return k.change(ctx, "update", c) }
func (k kind) Delete(ctx context.Context, c providers.Call) error { return k.change(ctx, "delete", c) }

var ref = schema.Ref{Scope: "site", Kind: "lab.box", Name: "b"}

func serve(k kind) *providers.Provider {
	return providers.New("lab", "site", nil, providers.Served{Name: "lab.box", Kind: k, Watch: k.watch})
}

// remote returns the kind as seen through a pipe.
func remote(t *testing.T, k kind) providers.Kind {
	t.Helper()
	p := providertest.Pipe(t, serve(k))
	t.Cleanup(func() { _ = p.Close() })
	return p.Kinds[0].Kind
}

// things returns n things with an empty value for everything that a thing can lack.
func things(n int) []providers.Thing {
	all := make([]providers.Thing, n)
	for i := range all {
		all[i] = providers.Thing{
			ID: fmt.Sprint("id-", i), UID: "uid", Name: "name", Mark: providers.Mark{Site: "s", Ref: ref, Incarnation: i + 1}, Version: "v",
			Spec:   schema.Object{"int": int64(1) << 60, "float": 1.5, "none": nil, "list": []any{"a", true, map[string]any{}}, "no": []any{}},
			Status: schema.Object{}, Phase: providers.Pending, Detail: "it waits", Derived: i%2 == 0, Passing: "it goes", Unfilled: []string{"x"},
		}
	}
	return all
}

func TestThingsArriveWhole(t *testing.T) {
	want := append(things(12_000), providers.Thing{ID: "bare", Phase: providers.Ready})
	k := remote(t, kind{
		list: func(context.Context) iter.Seq2[providers.Thing, error] {
			return providers.Listed(func() ([]providers.Thing, error) { return want, nil })
		},
		get: func(_ context.Context, ids []string) (got []providers.Thing, err error) {
			for _, th := range want {
				if len(ids) > 0 && th.ID == ids[0] {
					got, ids = append(got, th), ids[1:]
				}
			}
			return got, nil
		},
	})
	got, err := providers.Collect(k.List(t.Context()))
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("listed, %v (-there +here):\n%.2000s", err, d)
	}
	ids := make([]string, len(want))
	for i := range want {
		ids[i] = want[i].ID
	}
	got, err = k.Get(t.Context(), ids)
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("got by id, %v (-there +here):\n%.2000s", err, d)
	}
}

func TestCallsArriveWhole(t *testing.T) {
	var got providers.Call
	k := remote(t, kind{change: func(_ context.Context, _ string, c providers.Call) error {
		c.Chose("chosen")
		got = c
		return nil
	}})
	th := things(1)[0]
	for _, want := range []providers.Call{
		{Ref: ref, ID: "1", UID: "u", Name: "n", Mark: th.Mark, Want: th.Spec, Have: schema.Object{}, Version: "v", Key: "k", Epoch: 1 << 40},
		{Ref: ref},
	} {
		answer := &providers.Answer{}
		want.Answer = answer
		if err := k.Create(t.Context(), want); err != nil || answer.ID != "chosen" {
			t.Errorf("create: %v, chosen %q", err, answer.ID)
		}
		want.Answer, got.Answer = nil, nil
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-sent +arrived):\n%s", d)
		}
	}
}

// TestErrorsArrive: everything that is examined in an error is the same on the other side.
func TestErrorsArrive(t *testing.T) {
	for _, want := range []error{
		&providers.Error{Op: "create", Ref: ref, Class: providers.Exists, Code: "AlreadyExists", Err: errors.New("id 1 is taken")},
		&providers.Error{Op: "create", Ref: ref, Kind: "lab.box", Class: providers.Transient, Err: fmt.Errorf("after a while: %w", context.DeadlineExceeded)},
		&providers.Error{Op: "create", Ref: ref, Class: providers.Transient, Err: context.Canceled},
		&providers.Error{Op: "create", Ref: ref, Class: providers.Denied, Err: fmt.Errorf("refused: %w", &providers.OutdatedError{On: "n1", Stored: 7, Epoch: 3})},
		&providers.Error{Op: "create", Ref: ref, Class: providers.Invalid, Err: errors.New(strings.Repeat("x", 100_000))},
		&providers.Error{Op: "create", Ref: ref, Class: providers.Unknown, Over: true, Err: errors.New("the second of two calls is refused")},
		errors.New("no class: it is never safe to guess"),
	} {
		k := remote(t, kind{change: func(_ context.Context, _ string, c providers.Call) error {
			c.Chose("made all the same")
			return want
		}})
		answer := &providers.Answer{}
		got := k.Create(t.Context(), providers.Call{Ref: ref, Answer: answer})
		if answer.ID != "made all the same" {
			t.Errorf("the id that was chosen before it failed is lost: %q", answer.ID)
		}
		if got == nil || got.Error() != want.Error() || providers.ClassOf(got) != providers.ClassOf(want) {
			t.Errorf("%.200v (%s), want %.200v", got, providers.ClassOf(got), want)
		}
		for _, is := range []error{context.Canceled, context.DeadlineExceeded} {
			if errors.Is(got, is) != errors.Is(want, is) {
				t.Errorf("%v: is it %v?", got, is)
			}
		}
		var was, is *providers.OutdatedError
		if errors.As(want, &was) != errors.As(got, &is) || was != nil && *was != *is {
			t.Errorf("outdated: %+v, want %+v", is, was)
		}
		var old, now *providers.Error
		if errors.As(want, &old) && errors.As(got, &now) && (old.Op != now.Op || old.Ref != now.Ref || old.Kind != now.Kind || old.Code != now.Code || old.Over != now.Over) {
			t.Errorf("%+v, want %+v", now, old)
		}
	}
}

// A line is a pipe that can be cut.
type line struct {
	grpc.ClientConnInterface
	server *grpc.Server
}

func newLine(t *testing.T, register func(grpc.ServiceRegistrar) error) *line {
	t.Helper()
	pipe, server := bufconn.Listen(1<<16), grpc.NewServer()
	if err := register(server); err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(pipe) }()
	conn, err := grpc.NewClient("passthrough:pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); server.Stop() })
	return &line{conn, server}
}

// serving registers providers.
func serving(ps ...*providers.Provider) func(grpc.ServiceRegistrar) error {
	return func(r grpc.ServiceRegistrar) error { return wire.Serve(r, slog.New(slog.DiscardHandler), ps...) }
}

func (l *line) kind(t *testing.T) providers.Kind {
	t.Helper()
	return l.served(t).Kind
}

func (l *line) served(t *testing.T) providers.Served {
	t.Helper()
	return l.remembered(t, nil)
}

func (l *line) remembered(t *testing.T, memory *wire.Memory) providers.Served {
	t.Helper()
	ps, err := wire.Connect(t.Context(), l, memory)
	if err != nil {
		t.Fatal(err)
	}
	return ps[0].Kinds[0]
}

// TestCutList: a list that breaks off is an error, however much of it has arrived.
func TestCutList(t *testing.T) {
	sent, ended := make(chan bool), make(chan bool)
	l := newLine(t, serving(serve(kind{list: func(ctx context.Context) iter.Seq2[providers.Thing, error] {
		return func(yield func(providers.Thing, error) bool) {
			defer close(ended)
			for _, th := range things(5000) {
				if !yield(th, nil) {
					return
				}
			}
			close(sent)
			<-ctx.Done()
		}
	}})))
	k := l.kind(t)
	go func() {
		<-sent
		l.server.Stop()
	}()
	arrived := 0
	var err error
	for _, err = range k.List(t.Context()) {
		if err == nil {
			arrived++
		}
	}
	if arrived == 0 || providers.ClassOf(err) != providers.Transient {
		t.Errorf("after %d things: %v", arrived, err)
	}
	<-ended
}

// TestFailedList: the error that ends a list arrives after what came before it.
func TestFailedList(t *testing.T) {
	k := remote(t, kind{list: func(context.Context) iter.Seq2[providers.Thing, error] {
		return func(yield func(providers.Thing, error) bool) {
			for _, th := range things(1500) {
				if !yield(th, nil) {
					return
				}
			}
			yield(providers.Thing{}, &providers.Error{Op: "observe", Kind: "lab.box", Class: providers.Denied, Err: errors.New("no further")})
		}
	}})
	if things, err := providers.Collect(k.List(t.Context())); providers.ClassOf(err) != providers.Denied || things != nil {
		t.Errorf("%d things, %v", len(things), err)
	}
}

// TestLeftList: a list that is left early ends on the other side as well.
func TestLeftList(t *testing.T) {
	ended := make(chan bool)
	k := newLine(t, serving(serve(kind{list: func(ctx context.Context) iter.Seq2[providers.Thing, error] {
		return func(yield func(providers.Thing, error) bool) {
			defer close(ended)
			for i := 0; ctx.Err() == nil; i++ {
				if !yield(providers.Thing{ID: fmt.Sprint(i)}, nil) {
					return
				}
			}
		}
	}}))).kind(t)
	for range k.List(t.Context()) {
		break
	}
	<-ended
}

// TestCutCall: a change that breaks off may have had its effect.
func TestCutCall(t *testing.T) {
	begun := make(chan bool)
	l := newLine(t, serving(serve(kind{change: func(ctx context.Context, _ string, _ providers.Call) error {
		close(begun)
		<-ctx.Done()
		return nil
	}})))
	k := l.kind(t)
	go func() {
		<-begun
		l.server.Stop()
	}()
	err := k.Update(t.Context(), providers.Call{Ref: ref})
	var e *providers.Error
	if !errors.As(err, &e) || e.Class != providers.Unknown || e.Op != "update" || e.Ref != ref {
		t.Errorf("%+v", err)
	}
	if err := k.Update(t.Context(), providers.Call{Ref: ref}); err == nil {
		t.Error("a change over a line that was cut succeeded")
	}
}

// TestOneKeyOneCall: an attempt that was given up here continues on the other side, and the next one waits for it.
func TestOneKeyOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan bool)
		var under, ended int
		k := newLine(t, serving(serve(kind{change: func(context.Context, string, providers.Call) error {
			under++
			<-release
			under--
			ended++
			return nil
		}}))).kind(t)
		ctx, giveUp := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- k.Update(ctx, providers.Call{Ref: ref, Key: "run/1"}) }()
		synctest.Wait()
		giveUp()
		if err := <-first; providers.ClassOf(err) != providers.Unknown || !errors.Is(err, context.Canceled) {
			t.Errorf("the attempt that was given up: %v", err)
		}
		go func() { second <- k.Update(t.Context(), providers.Call{Ref: ref, Key: "run/1"}) }()
		for done := range 2 {
			synctest.Wait()
			if under != 1 || ended != done {
				t.Errorf("%d calls with one key run at the same time, %d have ended", under, ended)
			}
			release <- true
		}
		if err := <-second; err != nil {
			t.Error(err)
		}
	})
}

// TestPanics: a provider that panics fails only that call, and its message stays on its side.
func TestPanics(t *testing.T) {
	l := newLine(t, serving(serve(kind{
		list:   func(context.Context) iter.Seq2[providers.Thing, error] { panic("hunter2") },
		get:    func(context.Context, []string) ([]providers.Thing, error) { panic("hunter2") },
		change: func(context.Context, string, providers.Call) error { panic("hunter2") },
	})))
	k := l.kind(t)
	_, listed := providers.Collect(k.List(t.Context()))
	_, got := k.Get(t.Context(), []string{"1"})
	for want, errs := range map[providers.Class][]error{
		providers.Invalid: {listed, got},
		providers.Unknown: {k.Create(t.Context(), providers.Call{Ref: ref}), k.Delete(t.Context(), providers.Call{Ref: ref, Key: "k"}), k.Delete(t.Context(), providers.Call{Ref: ref, Key: "k"})},
	} {
		for _, err := range errs {
			if providers.ClassOf(err) != want || !strings.Contains(err.Error(), "panicked") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v (%s)", err, providers.ClassOf(err))
			}
		}
	}
}

// TestWatchArrives: every event arrives as it was, and then the error.
func TestWatchArrives(t *testing.T) {
	many := make([]string, 5000)
	for i := range many {
		many[i] = fmt.Sprint("id-", i)
	}
	want := [][]string{nil, {"a"}, {"a", "b"}, many, nil}
	denied := &providers.Error{Op: "watch", Kind: "lab.box", Class: providers.Denied, Err: errors.New("no further")}
	k := newLine(t, serving(serve(kind{watch: func(context.Context) iter.Seq2[[]string, error] {
		return func(yield func([]string, error) bool) {
			for _, ids := range want {
				if !yield(ids, nil) {
					return
				}
			}
			yield(nil, denied)
		}
	}}))).served(t)
	var got [][]string
	var last error
	for ids, err := range k.Watch(t.Context()) {
		if last = err; err == nil {
			got = append(got, ids)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-there +here):\n%.2000s", d)
	}
	if providers.ClassOf(last) != denied.Class || last.Error() != denied.Error() {
		t.Errorf("it ended with %v, want %v", last, denied)
	}
}

// quiet is a watch without further events.
func quiet(ctx context.Context) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) { providers.NewChanges().Each(ctx, yield) }
}

// TestFailedWatch: a watch whose line is cut ends with an error, and so does one that panics or is not offered.
func TestFailedWatch(t *testing.T) {
	cut := newLine(t, serving(serve(kind{watch: quiet})))
	panics := newLine(t, serving(serve(kind{watch: func(context.Context) iter.Seq2[[]string, error] { panic("hunter2") }})))
	for class, l := range map[providers.Class]*line{providers.Transient: cut, providers.Invalid: panics} {
		var last error
		for _, err := range l.served(t).Watch(t.Context()) {
			if last = err; err == nil {
				l.server.Stop()
			}
		}
		var e *providers.Error
		if !errors.As(last, &e) || e.Op != "watch" || e.Kind != "lab.box" || e.Class != class || strings.Contains(last.Error(), "hunter2") {
			t.Errorf("it ended with %v (%s), want %s", last, providers.ClassOf(last), class)
		}
	}
	if newLine(t, serving(serve(kind{}))).served(t).Watch != nil {
		t.Error("a kind without a watch has one on the other side")
	}
	l := newLine(t, serving(serve(kind{})))
	stream, err := wirepb.NewProvidersClient(l).Watch(t.Context(), &wirepb.WatchRequest{Where: &wirepb.Where{Scope: "site", Kind: "lab.box"}})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("a watch that is not offered ended with %v", err)
	}
}

// TestLeftWatch: a watch that is left ends on the other side as well, and so does one whose context ends.
func TestLeftWatch(t *testing.T) {
	for _, left := range []bool{true, false} {
		ended := make(chan bool)
		k := newLine(t, serving(serve(kind{watch: func(ctx context.Context) iter.Seq2[[]string, error] {
			return func(yield func([]string, error) bool) {
				defer close(ended)
				quiet(ctx)(yield)
			}
		}}))).served(t)
		ctx, cancel := context.WithCancel(t.Context())
		for range k.Watch(ctx) {
			if left {
				break
			}
			cancel()
		}
		<-ended
		cancel()
	}
}

// TestBesideKinds: what a provider has beside its kinds.
func TestBesideKinds(t *testing.T) {
	bare := providertest.Pipe(t, serve(kind{}))
	defer bare.Close()
	if bare.Fence != nil || bare.Identity != nil || bare.Build != nil || bare.Health != nil || bare.Obstacles != nil {
		t.Error("it has what the provider does not have")
	}
	p := serve(kind{})
	p.Limit = 3
	var down error
	p.Fence = func(_ context.Context, epoch int64) error {
		if epoch < 5 {
			return &providers.Error{Op: "fence", Class: providers.Denied, Err: &providers.OutdatedError{On: "n1", Stored: 5, Epoch: epoch}}
		}
		return nil
	}
	p.Identity = func(context.Context) (string, error) { return "it", nil }
	p.Build = func(context.Context) (string, error) { return "", errors.New("not today") }
	p.Health = func(context.Context) error { return down }
	p.Obstacles = func(_ context.Context, deletes, changes []providers.Target) ([]providers.Obstacle, error) {
		if len(deletes) != 2 || len(changes) != 1 {
			return nil, &providers.Error{Op: "observe", Class: providers.Transient, Err: errors.New("not today")}
		}
		return []providers.Obstacle{{Target: deletes[1], Why: "used by " + changes[0].ID}}, nil
	}
	far := providertest.Pipe(t, p)
	defer far.Close()
	if far.Name != "lab" || far.Scope != "site" || far.Limit != 3 {
		t.Errorf("it is %s in %s, limit %d", far.Name, far.Scope, far.Limit)
	}
	var outdated *providers.OutdatedError
	if err := far.Fence(t.Context(), 4); !errors.As(err, &outdated) || *outdated != (providers.OutdatedError{On: "n1", Stored: 5, Epoch: 4}) {
		t.Errorf("fenced with a lower epoch: %v", err)
	}
	if err := far.Fence(t.Context(), 5); err != nil {
		t.Error(err)
	}
	if id, err := far.Identity(t.Context()); id != "it" || err != nil {
		t.Errorf("identity %q, %v", id, err)
	}
	if _, err := far.Build(t.Context()); err == nil || err.Error() != "not today" {
		t.Errorf("build: %v", err)
	}
	if err := far.Health(t.Context()); err != nil {
		t.Errorf("while it is available: %v", err)
	}
	down = errors.New("away")
	if err := far.Health(t.Context()); err == nil || err.Error() != "away" {
		t.Errorf("while it is away: %v", err)
	}
	deletes, changes := []providers.Target{{Kind: "lab.box", ID: "a"}, {Kind: "lab.rack", ID: "b"}}, []providers.Target{{Kind: "lab.box", ID: "c"}}
	if found, err := far.Obstacles(t.Context(), deletes, changes); err != nil || len(found) != 1 || found[0] != (providers.Obstacle{Target: deletes[1], Why: "used by c"}) {
		t.Errorf("obstacles: %v, %v", found, err)
	}
	if _, err := far.Obstacles(t.Context(), deletes, nil); providers.ClassOf(err) != providers.Transient {
		t.Errorf("obstacles that are not known: %v", err)
	}
}

// newer is a server that knows traits that we do not.
type newer struct {
	wirepb.UnimplementedProvidersServer
}

func (newer) Describe(context.Context, *wirepb.DescribeRequest) (*wirepb.DescribeResponse, error) {
	return &wirepb.DescribeResponse{Providers: []*wirepb.Provider{{Name: "lab", Scope: "site", Kinds: []*wirepb.Served{
		{Name: "lab.box", Traits: []byte(`{"IDsNotReusable": true, "NeverOnSundays": true}`)},
	}}}}, nil
}

func TestTraitsArrive(t *testing.T) {
	want := providers.Traits{
		ID: "{name}", Create: providers.Conditional, EffectWithin: time.Minute, SelfChanging: []string{"a"},
		Exclusive: []providers.Exclusive{{Field: "f", Folded: true}}, Detach: []providers.Detachable{{Field: "l", Least: 1, Group: []string{"g"}}},
		UndoCreate: providers.Exact,
	}
	p := providertest.Pipe(t, providers.New("lab", "site", nil, providers.Served{Name: "lab.box", Traits: want, Kind: kind{}}))
	defer p.Close()
	if d := cmp.Diff(want, p.Kinds[0].Traits); d != "" {
		t.Errorf("(-there +here):\n%s", d)
	}

	future := newLine(t, func(r grpc.ServiceRegistrar) error {
		wirepb.RegisterProvidersServer(r, newer{})
		return nil
	})
	if _, err := wire.Connect(t.Context(), future, nil); err == nil || !strings.Contains(err.Error(), "NeverOnSundays") {
		t.Errorf("unknown traits: %v", err)
	}
	if _, err := wire.Connect(t.Context(), newLine(t, serving()), nil); err != nil {
		t.Errorf("a side that serves nothing: %v", err)
	}
}
