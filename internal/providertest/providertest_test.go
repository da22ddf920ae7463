package providertest_test

import (
	"context"
	"errors"
	"iter"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

var kinds = schema.Kinds{
	"lab.rack": {Name: "lab.rack", Node: true, Fields: []schema.Field{
		{Name: "note", Type: schema.String},
	}},
	"lab.box": {Name: "lab.box", Node: true, Fields: []schema.Field{
		{Name: "color", Type: schema.String, Required: true},
		{Name: "rack", Type: schema.String, Ref: "lab.rack"},
		{Name: "size", Type: schema.Int},
		{Name: "tags", Type: schema.List, Set: true, Elem: &schema.Field{Type: schema.String}},
		{Name: "weight", Type: schema.Int, Computed: true},
	}},
}

const node = "n1"

var rack = providertest.Case{
	Kind: "lab.rack", Name: "r1",
	Want: schema.Object{"note": "left"}, Update: schema.Object{"note": "right"},
}

var box = providertest.Case{
	Kind: "lab.box", Name: "b1",
	Needs:   []providertest.Made{{Kind: "lab.rack", Name: "r1", Spec: schema.Object{}}},
	Want:    schema.Object{"color": "red", "size": int64(1), "rack": "r1", "tags": []any{"y", "x"}},
	Update:  schema.Object{"color": "blue", "rack": "r1", "tags": []any{"z"}},
	Invalid: schema.Object{"colour": "red"},
}

// open opens a world whose boxes are spoiled.
func open(s spoiler) func(t *testing.T) providertest.World {
	return func(*testing.T) providertest.World {
		w := fake.New(kinds)
		if s.world != nil {
			s.world(w)
		}
		p := w.Provider("lab", node)
		p.Obstacles = s.obstacles
		for i, k := range p.Kinds {
			if k.Name != "lab.box" {
				continue
			}
			bad := &spoiled{Kind: k.Kind, spoiler: s, world: w, meet: make(chan bool)}
			p.Kinds[i].Kind = bad
			if s.watch != nil {
				p.Kinds[i].Watch = func(ctx context.Context) iter.Seq2[[]string, error] {
					return func(yield func([]string, error) bool) { s.watch(ctx, bad, k.Watch, yield) }
				}
			}
			if s.traits != nil {
				s.traits(&p.Kinds[i].Traits)
			}
		}
		return providertest.World{
			Provider: p, Dump: w.Dump,
			Advance: func() {
				if err := w.Land(); err != nil {
					panic(err)
				}
			},
			Meddle: func(kind, id string) {
				spec := map[string]schema.Object{"lab.rack": {"note": "meddled"}, "lab.box": {"color": "pink"}}[kind]
				if err := w.Put(node, kind, providers.Thing{ID: id, Spec: spec}); err != nil {
					panic(err)
				}
			},
		}
	}
}

func suite(s spoiler) providertest.Suite {
	whole := providertest.Suite{Kinds: kinds, Open: open(s), Cases: []providertest.Case{rack, box}}
	if s.law != "provider" {
		whole.Only = strings.ReplaceAll(s.law, "-", " ") // one that waits would make all others wait
	}
	if s.suite != nil {
		s.suite(&whole)
	}
	return whole
}

// A world that keeps the contract breaks no law.
func TestLawsHold(t *testing.T) {
	providertest.Run(t, suite(spoiler{}))
}

// A world where everything takes its time keeps the contract too.
func TestLawsHoldWhenSlow(t *testing.T) {
	providertest.Run(t, suite(spoiler{
		world: func(w *fake.World) {
			traits := fake.NodeTraits()
			traits.ReadyWithin, traits.GoneWithin = time.Hour, time.Hour
			w.Traits = map[string]providers.Traits{"lab.box": traits}
			for _, op := range []string{"create", "update", "delete"} {
				f := fake.Fault{Op: op, Ref: "lab.box", Times: -1, Effect: fake.EffectSlow, Delay: fake.Duration(time.Hour)}
				if err := w.Fail(f); err != nil {
					panic(err)
				}
			}
		},
	}))
}

// A spoiled kind breaks the contract in one way.
type spoiled struct {
	providers.Kind
	spoiler
	world *fake.World
	meet  chan bool
	kept  []providers.Thing
	busy  bool
}

type spoiler struct {
	name   string
	law    string // the law that must fail
	world  func(w *fake.World)
	traits func(t *providers.Traits)
	suite  func(s *providertest.Suite)

	obstacles providers.Obstacles

	list    func(ctx context.Context, k *spoiled, yield func(providers.Thing, error) bool)
	watch   func(ctx context.Context, k *spoiled, good providers.Watch, yield func([]string, error) bool)
	observe func(ctx context.Context, k *spoiled, ids []string) ([]providers.Thing, error)
	create  func(ctx context.Context, k *spoiled, c providers.Call) error
	update  func(ctx context.Context, k *spoiled, c providers.Call) error
	delete  func(ctx context.Context, k *spoiled, c providers.Call) error
}

func (k *spoiled) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	if k.list != nil {
		return func(yield func(providers.Thing, error) bool) { k.list(ctx, k, yield) }
	}
	return providertest.Look(k.Get).List(ctx)
}

func (k *spoiled) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	if k.observe != nil {
		return k.observe(ctx, k, ids)
	}
	return providertest.Of(k.Kind)(ctx, ids)
}

func (k *spoiled) Create(ctx context.Context, c providers.Call) error {
	if k.create != nil {
		return k.create(ctx, k, c)
	}
	return k.Kind.Create(ctx, c)
}

func (k *spoiled) Update(ctx context.Context, c providers.Call) error {
	if k.update != nil {
		return k.update(ctx, k, c)
	}
	return k.Kind.Update(ctx, c)
}

func (k *spoiled) Delete(ctx context.Context, c providers.Call) error {
	if k.delete != nil {
		return k.delete(ctx, k, c)
	}
	return k.Kind.Delete(ctx, c)
}

// seen changes what is reported of each box.
func seen(change func(th *providers.Thing)) func(context.Context, *spoiled, []string) ([]providers.Thing, error) {
	return func(ctx context.Context, k *spoiled, ids []string) ([]providers.Thing, error) {
		things, err := providertest.Of(k.Kind)(ctx, ids)
		for i := range things {
			change(&things[i])
		}
		return things, err
	}
}

func version(ctx context.Context, k *spoiled, id string) string {
	things, err := k.Kind.Get(ctx, []string{id})
	if err != nil || len(things) == 0 {
		return ""
	}
	return things[0].Version
}

func unless(class providers.Class, err error) error {
	if providers.ClassOf(err) == class {
		return nil
	}
	return err
}

// wait makes a call wait for something that happens only after it.
func wait(ctx context.Context, k *spoiled, c providers.Call) error {
	<-ctx.Done()
	return &providers.Error{Op: "create", Ref: c.Ref, Class: providers.Transient, Err: ctx.Err()}
}

func hasty(s *providertest.Suite) { s.Patience = time.Second }

var spoilers = []spoiler{
	{name: "create waits", law: "a-thing-is-observed-as-wanted", suite: hasty, create: wait},
	{name: "update waits", law: "an-update-is-observed", suite: hasty, update: wait},
	{name: "delete waits", law: "a-deleted-thing-is-absent", suite: hasty, delete: wait},
	{name: "what comes later never comes", law: "an-update-is-observed", traits: func(t *providers.Traits) { t.Later = []string{"color"} },
		update: func(ctx context.Context, k *spoiled, c providers.Call) error {
			c.Want = c.Want.Clone()
			c.Want["color"] = c.Have["color"]
			return k.Kind.Update(ctx, c)
		}},
	{name: "spec is not as wanted", law: "a-thing-is-observed-as-wanted", observe: seen(func(th *providers.Thing) { th.Spec["color"] = "grey" })},
	{name: "mark is lost", law: "a-thing-is-observed-as-wanted", observe: seen(func(th *providers.Thing) { th.Mark = providers.Mark{} })},
	{name: "value is no JSON value", law: "a-thing-is-observed-as-wanted", observe: seen(func(th *providers.Thing) { th.Spec["size"] = 1 })},
	{name: "field is unknown", law: "a-thing-is-observed-as-wanted", observe: seen(func(th *providers.Thing) { th.Spec["height"] = int64(1) })},
	{name: "computed field in spec", law: "a-thing-is-observed-as-wanted", observe: seen(func(th *providers.Thing) { th.Spec["weight"] = int64(1) })},
	{name: "settable field in status", law: "a-thing-is-observed-as-wanted", observe: seen(func(th *providers.Thing) { th.Status = schema.Object{"size": int64(1)} })},
	{name: "no phase", law: "a-thing-is-observed-as-wanted", observe: seen(func(th *providers.Thing) { th.Phase = "" })},
	{name: "never ready", law: "a-thing-is-observed-as-wanted", observe: seen(func(th *providers.Thing) { th.Phase = providers.Pending })},
	{name: "wait not in traits", law: "a-thing-is-observed-as-wanted", world: func(w *fake.World) {
		if err := w.Fail(fake.Fault{Op: "create", Ref: "lab.box", Times: -1, Effect: fake.EffectSlow, Delay: fake.Duration(time.Hour)}); err != nil {
			panic(err)
		}
	}},
	{name: "list is partial", law: "a-list-and-a-look-agree", observe: func(ctx context.Context, k *spoiled, ids []string) ([]providers.Thing, error) {
		things, err := providertest.Of(k.Kind)(ctx, ids)
		if ids == nil && len(things) > 1 {
			things = things[1:]
		}
		return things, err
	}},
	{name: "list that is left early is not over", law: "a-list-can-be-left-early", list: func(ctx context.Context, k *spoiled, yield func(providers.Thing, error) bool) {
		if k.busy {
			yield(providers.Thing{}, &providers.Error{Op: "observe", Kind: "lab.box", Class: providers.Busy, Err: errors.New("one list at a time")})
			return
		}
		k.busy = true
		for th, err := range k.Kind.List(ctx) {
			if !yield(th, err) {
				return
			}
		}
		k.busy = false
	}},
	{name: "empty means all", law: "a-list-and-a-look-agree", observe: func(ctx context.Context, k *spoiled, ids []string) ([]providers.Thing, error) {
		if len(ids) == 0 {
			ids = nil
		}
		return providertest.Of(k.Kind)(ctx, ids)
	}},
	{name: "absent id is an error", law: "absent-ids-are-left-out", observe: func(ctx context.Context, k *spoiled, ids []string) ([]providers.Thing, error) {
		things, err := providertest.Of(k.Kind)(ctx, ids)
		if err == nil && len(things) < len(ids) {
			err = &providers.Error{Op: "observe", Kind: "lab.box", Class: providers.Absent, Err: errors.New("not found")}
		}
		return things, err
	}},
	{name: "observe writes", law: "observing-changes-nothing", observe: func(ctx context.Context, k *spoiled, ids []string) ([]providers.Thing, error) {
		err := k.world.Put(node, "lab.rack", providers.Thing{ID: "r9", Spec: schema.Object{"note": time.Now().String()}})
		if err != nil {
			return nil, err
		}
		return providertest.Of(k.Kind)(ctx, ids)
	}},
	{name: "results are shared", law: "results-are-not-shared", observe: func(ctx context.Context, k *spoiled, ids []string) ([]providers.Thing, error) {
		if k.kept == nil || ids != nil {
			things, err := providertest.Of(k.Kind)(ctx, ids)
			if ids != nil {
				return things, err
			}
			k.kept = things
		}
		return slices.Clone(k.kept), nil
	}},
	{name: "create ignores the context", law: "a-cancelled-context-changes-nothing", create: func(ctx context.Context, k *spoiled, c providers.Call) error {
		return k.Kind.Create(context.WithoutCancel(ctx), c)
	}},
	{name: "update has its effect before the context is looked at", law: "a-cancelled-context-changes-nothing", update: func(ctx context.Context, k *spoiled, c providers.Call) error {
		return errors.Join(k.Kind.Update(context.WithoutCancel(ctx), c), ctx.Err())
	}},
	{name: "delete ignores the context", law: "a-cancelled-context-changes-nothing", delete: func(ctx context.Context, k *spoiled, c providers.Call) error {
		return k.Kind.Delete(context.WithoutCancel(ctx), c)
	}},
	{name: "verb works that should not exist", law: "verbs-that-do-not-exist-are-unsupported", traits: func(t *providers.Traits) { t.Update = providers.Never }},
	{name: "create keeps Want", law: "inputs-are-not-kept", create: func(ctx context.Context, k *spoiled, c providers.Call) error {
		k.kept = append(k.kept, providers.Thing{ID: c.ID, Spec: c.Want})
		return k.Kind.Create(ctx, c)
	}, observe: func(ctx context.Context, k *spoiled, ids []string) ([]providers.Thing, error) {
		things, err := providertest.Of(k.Kind)(ctx, ids)
		for i := range things {
			for _, kept := range k.kept {
				if kept.ID == things[i].ID {
					things[i].Spec = kept.Spec.Clone()
				}
			}
		}
		return things, err
	}},
	{name: "create modifies Want", law: "a-thing-is-observed-as-wanted", create: func(ctx context.Context, k *spoiled, c providers.Call) error {
		err := k.Kind.Create(ctx, c)
		c.Want["extra"] = true
		return err
	}},
	{name: "second create succeeds", law: "a-second-create-is-refused", create: func(ctx context.Context, k *spoiled, c providers.Call) error {
		return unless(providers.Exists, k.Kind.Create(ctx, c))
	}},
	{name: "invalid values are taken", law: "invalid-values-are-refused", create: func(ctx context.Context, k *spoiled, c providers.Call) error {
		delete(c.Want, "colour")
		return unless(providers.Invalid, k.Kind.Create(ctx, c))
	}},
	{name: "dangling reference is unclear", law: "what-is-missing-is-said", create: func(ctx context.Context, k *spoiled, c providers.Call) error {
		err := k.Kind.Create(ctx, c)
		if providers.ClassOf(err) == providers.Absent {
			err = &providers.Error{Op: "create", Ref: c.Ref, Class: providers.Unknown, Err: err}
		}
		return err
	}},
	{name: "error is not ours", law: "a-second-create-is-refused", create: func(ctx context.Context, k *spoiled, c providers.Call) error {
		if err := k.Kind.Create(ctx, c); err != nil {
			return errors.New(err.Error())
		}
		return nil
	}},
	{name: "error names another operation", law: "a-second-create-is-refused", create: func(ctx context.Context, k *spoiled, c providers.Call) error {
		if err := k.Kind.Create(ctx, c); err != nil {
			return &providers.Error{Op: "make", Ref: c.Ref, Class: providers.ClassOf(err), Err: err}
		}
		return nil
	}},
	{name: "update unsets nothing", law: "an-update-is-observed", update: func(ctx context.Context, k *spoiled, c providers.Call) error {
		c.Want = c.Want.Clone()
		for f, v := range c.Have {
			if _, ok := c.Want[f]; !ok {
				c.Want[f] = v
			}
		}
		return k.Kind.Update(ctx, c)
	}},
	{name: "update needs a change", law: "an-update-can-be-repeated", update: func(ctx context.Context, k *spoiled, c providers.Call) error {
		things, err := k.Kind.Get(ctx, []string{c.ID})
		if err == nil && len(things) == 1 && things[0].Spec["color"] == c.Want["color"] {
			return &providers.Error{Op: "update", Ref: c.Ref, Class: providers.Invalid, Err: errors.New("nothing to do")}
		}
		return k.Kind.Update(ctx, c)
	}},
	{name: "update leaves a trace", law: "an-exact-update-can-be-undone", update: func(ctx context.Context, k *spoiled, c providers.Call) error {
		c.Want = c.Want.Clone()
		c.Want["tags"] = append(slices.Clone(c.Want["tags"].([]any)), "updated")
		return k.Kind.Update(ctx, c)
	}},
	{name: "stale update succeeds", law: "a-stale-update-is-refused", update: func(ctx context.Context, k *spoiled, c providers.Call) error {
		c.Version = version(ctx, k, c.ID)
		return k.Kind.Update(ctx, c)
	}},
	{name: "stale delete succeeds", law: "a-stale-delete-is-refused", delete: func(ctx context.Context, k *spoiled, c providers.Call) error {
		c.Version = version(ctx, k, c.ID)
		return k.Kind.Delete(ctx, c)
	}},
	{name: "successor is updated", law: "what-took-its-place-is-left-alone", update: func(ctx context.Context, k *spoiled, c providers.Call) error {
		c.UID = ""
		return k.Kind.Update(ctx, c)
	}},
	{name: "successor is deleted", law: "what-took-its-place-is-left-alone", delete: func(ctx context.Context, k *spoiled, c providers.Call) error {
		c.UID = ""
		return k.Kind.Delete(ctx, c)
	}},
	{name: "a thing is in its own way", law: "nothing-is-in-the-way-of-deleting-what-nobody-uses", obstacles: func(_ context.Context, deletes, _ []providers.Target) ([]providers.Obstacle, error) {
		return []providers.Obstacle{{Target: deletes[0], Why: "it is there"}}, nil
	}},
	{name: "delete does nothing", law: "a-deleted-thing-is-absent", delete: func(ctx context.Context, _ *spoiled, c providers.Call) error {
		if ctx.Err() != nil {
			return &providers.Error{Op: "delete", Ref: c.Ref, Class: providers.Transient, Err: ctx.Err()}
		}
		return nil
	}},
	{name: "second delete fails", law: "deleting-twice-succeeds", delete: func(ctx context.Context, k *spoiled, c providers.Call) error {
		if version(ctx, k, c.ID) == "" {
			return &providers.Error{Op: "delete", Ref: c.Ref, Class: providers.Absent, Err: errors.New("not found")}
		}
		return k.Kind.Delete(ctx, c)
	}},
	{name: "update of what is absent succeeds", law: "an-absent-thing-cannot-be-updated", update: func(ctx context.Context, k *spoiled, c providers.Call) error {
		return unless(providers.Absent, k.Kind.Update(ctx, c))
	}},
	{name: "id is burned", law: "ids-are-burned-as-the-traits-say", world: func(w *fake.World) {
		traits := fake.NodeTraits()
		traits.IDsNotReusable = true
		w.Traits = map[string]providers.Traits{"lab.box": traits}
	}, traits: func(t *providers.Traits) { t.IDsNotReusable = false }},
	{name: "delete leaves something behind", law: "an-exact-create-can-be-undone", delete: func(ctx context.Context, k *spoiled, c providers.Call) error {
		if err := k.Kind.Delete(ctx, c); err != nil {
			return err
		}
		return k.world.Put(node, "lab.rack", providers.Thing{ID: "left-behind"})
	}},
	{name: "create forgets a field that was not wanted", law: "an-exact-delete-can-be-undone", create: func(ctx context.Context, k *spoiled, c providers.Call) error {
		if k.world.Count("delete") > 0 {
			c.Want = c.Want.Clone()
			delete(c.Want, "size")
		}
		return k.Kind.Create(ctx, c)
	}},
	{name: "delete takes another one along", law: "other-things-are-left-alone", delete: func(ctx context.Context, k *spoiled, c providers.Call) error {
		if err := k.Kind.Delete(ctx, c); err != nil {
			return err
		}
		return k.world.Remove(node, "lab.box", "other-1")
	}},
	{name: "two at a time are one too many", law: "calls-for-different-things-run-at-the-same-time", create: func(ctx context.Context, k *spoiled, c providers.Call) error {
		switch c.Ref.Name { // these two are only made at the same time
		case "other-2":
			k.meet <- true
		case "other-3":
			<-k.meet
			return &providers.Error{Op: "create", Ref: c.Ref, Class: providers.Busy, Err: errors.New("one at a time")}
		}
		return k.Kind.Create(ctx, c)
	}},
	{name: "what is gone is not told", law: "what-changes-is-told", suite: hasty, watch: func(ctx context.Context, k *spoiled, good providers.Watch, yield func([]string, error) bool) {
		for ids, err := range good(ctx) {
			if err == nil && len(ids) > 0 {
				ids = slices.DeleteFunc(ids, func(id string) bool { return version(ctx, k, id) == "" })
				if len(ids) == 0 {
					continue
				}
			}
			if !yield(ids, err) {
				return
			}
		}
	}},
	{name: "watch begins before anything is told", law: "what-changes-is-told", suite: hasty, watch: func(ctx context.Context, k *spoiled, good providers.Watch, yield func([]string, error) bool) {
		if !yield(nil, nil) {
			return
		}
		for k.world.Count("update") == 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
		begun := false
		for ids, err := range good(ctx) {
			if begun && !yield(ids, err) {
				return
			}
			begun = true
		}
	}},
	{name: "watch is over without a word", law: "what-changes-is-told", watch: func(_ context.Context, _ *spoiled, _ providers.Watch, yield func([]string, error) bool) {
		yield(nil, nil)
	}},
	{name: "watch outlives its context", law: "a-watch-ends", suite: hasty, watch: func(ctx context.Context, _ *spoiled, good providers.Watch, yield func([]string, error) bool) {
		good(context.WithoutCancel(ctx))(yield)
	}},
	{name: "watch ends for a reason of its own", law: "a-watch-ends", watch: func(ctx context.Context, _ *spoiled, good providers.Watch, yield func([]string, error) bool) {
		for ids, err := range good(ctx) {
			if err != nil {
				err = &providers.Error{Op: "watch", Kind: "lab.box", Class: providers.Transient, Err: errors.New("over")}
			}
			if !yield(ids, err) {
				return
			}
		}
	}},
	{name: "watch waits for its caller and others wait for it", law: "a-watch-holds-up-nobody", suite: hasty,
		watch: func(ctx context.Context, k *spoiled, good providers.Watch, yield func([]string, error) bool) {
			for ids, err := range good(ctx) {
				if !yield(ids, err) {
					return
				}
				select {
				case k.meet <- true:
				case <-ctx.Done():
				}
			}
		},
		create: func(ctx context.Context, k *spoiled, c providers.Call) error {
			select {
			case <-k.meet:
			case <-ctx.Done():
			}
			return k.Kind.Create(ctx, c)
		}},
	{name: "traits are incomplete", law: "provider", traits: func(t *providers.Traits) { t.Delete = "" }},
	{name: "id from a field that can change", law: "provider", traits: func(t *providers.Traits) { t.ID = "{color}/{name}" }},
	{name: "kind without a case", law: "provider", suite: func(s *providertest.Suite) { s.Cases = s.Cases[1:] }},
	{name: "kind that is not served", law: "provider", suite: func(s *providertest.Suite) {
		s.Kinds = maps.Clone(s.Kinds)
		s.Kinds["lab.door"] = &schema.Kind{Name: "lab.door", Node: true}
	}},
	{name: "kind without a description", law: "provider", suite: func(s *providertest.Suite) {
		s.Kinds = schema.Kinds{"lab.box": kinds["lab.box"]}
	}},
	{name: "kind in the wrong scope", law: "provider", suite: func(s *providertest.Suite) {
		site := *kinds["lab.rack"]
		site.Node = false
		s.Kinds = schema.Kinds{"lab.box": kinds["lab.box"], "lab.rack": &site}
	}},
}

const spoil = "PROVIDERTEST_SPOIL"

// Each way to break the contract is caught by the law that forbids it. The laws fail in a process of their own.
func TestLawsCatch(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestSpoiled$")
	cmd.Env = append(os.Environ(), spoil+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("no law failed")
	}
	failed := map[string]bool{}
	for _, m := range regexp.MustCompile(`--- FAIL: TestSpoiled/(\S+)`).FindAllStringSubmatch(string(out), -1) {
		failed[m[1]] = true
	}
	for _, s := range spoilers {
		name := strings.ReplaceAll(s.name, " ", "_") + "/"
		if s.law == "provider" {
			name += s.law
		} else {
			name += "lab.box/b1/" + s.law
		}
		if !failed[name] {
			t.Errorf("%s did not fail", name)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

func TestSpoiled(t *testing.T) {
	if os.Getenv(spoil) == "" {
		t.Skip("runs as a part of TestLawsCatch")
	}
	for _, s := range spoilers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel() // some take as long as the suite's patience
			providertest.Run(t, suite(s))
		})
	}
}

// Ids are UUIDs that identify their thing.
func TestID(t *testing.T) {
	a, b := providertest.ID("lab.box", "x"), providertest.ID("lab.box", "y")
	if a == b || a != providertest.ID("lab.box", "x") || len(a) != 36 {
		t.Errorf("ids are %s and %s, want two UUIDs, the same each time", a, b)
	}
}
