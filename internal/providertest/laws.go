package providertest

import (
	"context"
	"slices"
	"sync"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"github.com/google/go-cmp/cmp"
)

// A law is one sentence of the contract. The things that the case needs exist when check is called, the thing of the case
// does not.
type law struct {
	name  string
	when  func(t providers.Traits, c Case) bool // whether it applies; nil: to every kind
	check func(b *bench)
}

var laws = []law{
	{"a thing is observed as wanted", nil, observed},
	{"a list and a look agree", nil, agree},
	{"a list can be left early", nil, leftEarly},
	{"absent ids are left out", nil, absentLeftOut},
	{"observing changes nothing", nil, observeReads},
	{"results are not shared", nil, notShared},
	{"a cancelled context changes nothing", nil, cancelled},
	{"verbs that do not exist are unsupported", hasNever, unsupported},
	{"inputs are not kept", creates, notKept},
	{"a second create is refused", func(t providers.Traits, _ Case) bool { return t.Create == providers.Conditional }, createTwice},
	{"invalid values are refused", func(t providers.Traits, c Case) bool { return creates(t, c) && c.Invalid != nil }, invalid},
	{"what is missing is said", func(t providers.Traits, c Case) bool { return creates(t, c) && len(c.Needs) > 0 }, dangling},
	{"an update is observed", updates, updateObserved},
	{"an update can be repeated", updates, updateTwice},
	{"a mark is given and taken", func(t providers.Traits, c Case) bool { return updates(t, c) && t.Mark }, markTaken},
	{"an update gives the name", func(t providers.Traits, c Case) bool { return updates(t, c) && t.Named() }, named},
	{"an exact update can be undone", func(t providers.Traits, c Case) bool { return updates(t, c) && t.UndoUpdate == providers.Exact }, undoUpdate},
	{"a stale update is refused", func(t providers.Traits, c Case) bool { return updates(t, c) && t.Update == providers.Versioned }, staleUpdate},
	{"a stale delete is refused", func(t providers.Traits, c Case) bool { return updates(t, c) && t.Delete == providers.Versioned }, staleDelete},
	{"what took its place is left alone", func(t providers.Traits, c Case) bool { return t.ID != "" && (updates(t, c) || deletes(t, c)) }, successor},
	{"nothing is in the way of deleting what nobody uses", deletes, unobstructed},
	{"a deleted thing is absent", deletes, deleted},
	{"deleting twice succeeds", deletes, deleteTwice},
	{"an absent thing cannot be updated", func(t providers.Traits, c Case) bool { return updates(t, c) && deletes(t, c) }, updateAbsent},
	{"ids are burned as the traits say", func(t providers.Traits, c Case) bool {
		return creates(t, c) && deletes(t, c) && t.Create == providers.Conditional
	}, burned},
	{"an exact create can be undone", func(t providers.Traits, c Case) bool {
		return creates(t, c) && deletes(t, c) && t.UndoCreate == providers.Exact
	}, undoCreate},
	{"an exact delete can be undone", func(t providers.Traits, c Case) bool {
		return creates(t, c) && deletes(t, c) && t.UndoDelete == providers.Exact
	}, undoDelete},
	{"a call that is cut can be repeated and undone", cuttable, cutAnywhere},
	{"other things are left alone", plural, othersUntouched},
	{"calls for different things run at the same time", plural, concurrent},
}

func creates(t providers.Traits, _ Case) bool { return t.Create != providers.Never }
func updates(t providers.Traits, c Case) bool { return t.Update != providers.Never && c.Update != nil }
func deletes(t providers.Traits, _ Case) bool { return t.Delete != providers.Never }
func plural(t providers.Traits, c Case) bool  { return creates(t, c) && !c.Single }

func hasNever(t providers.Traits, _ Case) bool {
	return t.Create == providers.Never || t.Update == providers.Never || t.Delete == providers.Never
}

func observed(b *bench) {
	m := b.mine()
	if creates(b.traits, b.c) {
		b.must("create", b.creating(m))
		first, ok := b.peek(m)
		if !b.traits.Eventual && !ok {
			b.Errorf("the thing is not there after create, and the traits do not say Eventual")
		}
		if ok && !b.traits.Eventual && b.traits.ReadyWithin == 0 && first.Phase != providers.Ready {
			b.Errorf("the thing is %s after create (%s), and the traits have no ReadyWithin", first.Phase, first.Detail)
		}
		b.checkMark(m, b.settled(m))
	}
	b.has(m, b.settled(m).Spec, b.c.Want)
}

// checkMark checks that a thing carries the mark that it was changed with, where the traits promise a place for it.
func (b *bench) checkMark(m Made, th providers.Thing) {
	b.Helper()
	want := b.call(m).Mark
	if !b.traits.Mark {
		want = providers.Mark{}
	}
	if th.Mark != want {
		b.Errorf("the thing has mark %q, want %q", th.Mark, want)
	}
}

func agree(b *bench) {
	m := b.mine()
	b.make(m)
	if plural(b.traits, b.c) {
		b.make(b.other(1))
	}
	all := b.list(m.Kind)
	ids := make([]string, 0, len(all))
	for _, th := range all {
		ids = append(ids, th.ID)
	}
	if !slices.Contains(ids, m.ID) {
		b.Fatalf("the list has %q and not %s", ids, m.ID)
	}
	if d := cmp.Diff(all, b.get(m.Kind, ids...)); d != "" {
		b.Errorf("looking at all ids shows something else than the list (-list +look):\n%s", d)
	}
	if got := b.get(m.Kind, m.ID); len(got) != 1 {
		b.Errorf("looking at one id shows %d things", len(got))
	}
	if got := b.get(m.Kind); len(got) != 0 {
		b.Errorf("looking at no ids shows %d things", len(got))
	}
}

func leftEarly(b *bench) {
	m := b.mine()
	b.make(m)
	for range 1 + b.world.Provider.Limit { // it releases what it has taken
		for range b.served.Kind.List(b.Context()) {
			break
		}
	}
	if len(b.list(m.Kind)) == 0 {
		b.Errorf("after a list that was left early, another one is empty")
	}
}

func absentLeftOut(b *bench) {
	m, absent := b.mine(), b.other(99)
	b.make(m)
	got := b.get(m.Kind, absent.ID, m.ID)
	if len(got) != 1 || got[0].ID != m.ID {
		b.Errorf("looking at an absent id and one that is there shows %d things, want 1", len(got))
	}
	if got := b.get(m.Kind, absent.ID); len(got) != 0 {
		b.Errorf("looking at an absent id shows %d things", len(got))
	}
}

func observeReads(b *bench) {
	m := b.mine()
	b.make(m)
	unchanged := b.watch()
	b.list(m.Kind)
	b.get(m.Kind, m.ID, b.other(99).ID)
	unchanged("observe")
}

func notShared(b *bench) {
	m := b.mine()
	b.make(m)
	want := b.list(m.Kind)
	for _, th := range b.list(m.Kind) {
		scramble(map[string]any(th.Spec))
		scramble(map[string]any(th.Status))
	}
	for _, th := range b.get(m.Kind, m.ID) {
		scramble(map[string]any(th.Spec))
		scramble(map[string]any(th.Status))
	}
	if d := cmp.Diff(want, b.list(m.Kind)); d != "" {
		b.Errorf("changing what was observed shows in the next observation (-before +after):\n%s", d)
	}
}

// scramble overwrites a tree of values wherever it can.
func scramble(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			scramble(e)
			v[k] = "scrambled"
		}
		if v != nil {
			v["scrambled"] = true
		}
	case []any:
		for i, e := range v {
			scramble(e)
			v[i] = "scrambled"
		}
	}
}

func cancelled(b *bench) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	m := b.mine()
	if creates(b.traits, b.c) {
		unchanged := b.watch()
		if b.do(ctx, "create", b.creating(m)) == nil {
			b.Errorf("create with a cancelled context succeeded")
		}
		unchanged("create with a cancelled context")
	}
	th := b.make(m)
	unchanged := b.watch()
	if _, err := providers.Collect(b.served.Kind.List(ctx)); err == nil {
		b.Errorf("observe with a cancelled context succeeded")
	} else {
		b.checkError("observe", schema.Ref{}, m.Kind, err)
	}
	if _, err := b.served.Kind.Get(ctx, []string{m.ID}); err == nil {
		b.Errorf("get with a cancelled context succeeded")
	} else {
		b.checkError("observe", schema.Ref{}, m.Kind, err)
	}
	unchanged("observe with a cancelled context")
	if updates(b.traits, b.c) {
		if b.do(ctx, "update", b.updating(m, th, b.c.Want, b.c.Update)) == nil {
			b.Errorf("update with a cancelled context succeeded")
		}
		unchanged("update with a cancelled context")
	}
	if deletes(b.traits, b.c) {
		if b.do(ctx, "delete", b.deleting(m, th)) == nil {
			b.Errorf("delete with a cancelled context succeeded")
		}
		unchanged("delete with a cancelled context")
	}
}

func unsupported(b *bench) {
	m := b.mine()
	if b.traits.Create == providers.Never {
		unchanged := b.watch()
		b.class("create", b.do(b.Context(), "create", b.creating(m)), providers.Unsupported)
		unchanged("create")
	}
	th := b.make(m)
	unchanged := b.watch()
	if b.traits.Update == providers.Never {
		b.class("update", b.do(b.Context(), "update", b.updating(m, th, nil, nil)), providers.Unsupported)
	}
	if b.traits.Delete == providers.Never {
		b.class("delete", b.do(b.Context(), "delete", b.deleting(m, th)), providers.Unsupported)
	}
	unchanged("a verb that does not exist")
}

func notKept(b *bench) {
	m := b.mine()
	c := b.creating(m)
	b.must("create", c)
	scramble(map[string]any(c.Want))
	th := b.settled(m)
	b.has(m, th.Spec, b.c.Want)
	if !updates(b.traits, b.c) {
		return
	}
	c = b.updating(m, th, b.c.Want, b.c.Update)
	b.must("update", c)
	scramble(map[string]any(c.Want))
	scramble(map[string]any(c.Have))
	b.has(m, b.settled(m).Spec, b.c.Update)
}

func createTwice(b *bench) {
	m := b.mine()
	b.make(m)
	unchanged := b.watch()
	b.class("a second create", b.do(b.Context(), "create", b.creating(m)), providers.Exists)
	if b.c.Update != nil {
		c := b.creating(m)
		c.Want = changed(c.Want, b.c.Want, b.c.Update)
		b.class("a second create with another spec", b.do(b.Context(), "create", c), providers.Exists)
	}
	unchanged("a second create")
}

func invalid(b *bench) {
	m := b.mine()
	c := b.creating(m)
	c.Want = b.c.Invalid.Clone()
	unchanged := b.watch()
	b.class("create with invalid values", b.do(b.Context(), "create", c), providers.Invalid)
	unchanged("create with invalid values")
	b.make(m) // the id was not used up
}

// dangling creates the thing where nothing that it needs exists. Not every far side refuses that; one that does must clearly
// report that nothing happened.
func dangling(b *bench) {
	for i := len(b.c.Needs) - 1; i >= 0; i-- {
		need := b.identify(b.c.Needs[i])
		k, _ := find(b.world.Provider, need.Kind)
		if k.Traits.Delete == providers.Never {
			return
		}
		th := b.settled(need)
		b.must("delete", b.deleting(need, th))
		b.gone(need)
	}
	unchanged := b.watch()
	if err := b.do(b.Context(), "create", b.creating(b.mine())); err != nil {
		b.class("create without what it needs", err, providers.Absent, providers.Invalid, providers.Busy, providers.Denied)
		unchanged("create without what it needs")
	}
}

// markTaken: an adopted thing is marked by an update that changes nothing else, and released unmarked by another.
func markTaken(b *bench) {
	m := b.mine()
	b.make(m)
	for _, marked := range []bool{false, true} {
		c := b.updating(m, b.settled(m), b.c.Want, b.c.Want)
		if !marked {
			c.Mark = providers.Mark{}
		}
		b.must("update", c)
		if th := b.settled(m); th.Mark != c.Mark {
			b.Errorf("the thing has mark %q after an update with mark %q", th.Mark, c.Mark)
		}
	}
}

func updateObserved(b *bench) {
	m := b.mine()
	before := b.make(m)
	b.must("update", b.updating(m, before, b.c.Want, b.c.Update))
	if now, ok := b.peek(m); ok && !b.traits.Eventual && b.traits.ReadyWithin == 0 && now.Phase != providers.Ready {
		b.Errorf("the thing is %s after update (%s), and the traits have no ReadyWithin", now.Phase, now.Detail)
	}
	th := b.settled(m)
	b.has(m, th.Spec, b.c.Update)
	b.checkMark(m, th)
	if th.UID != before.UID {
		b.Errorf("the uid was %q before the update and is %q after it", before.UID, th.UID)
	}
	if b.traits.Update == providers.Versioned && (before.Version == "" || before.Version == th.Version) {
		b.Errorf("the version token was %q before the update and is %q after it", before.Version, th.Version)
	}
	for field, old := range b.c.Want {
		if _, kept := b.c.Update[field]; kept {
			continue
		}
		if now, ok := th.Spec[field]; ok && cmp.Equal(now, old) {
			b.Errorf("%s was unset and is still %v", field, old)
		}
	}
}

func updateTwice(b *bench) {
	m := b.mine()
	c := b.updating(m, b.make(m), b.c.Want, b.c.Update)
	b.must("update", c)
	once := b.settled(m)
	c.Version = once.Version
	b.must("update", c)
	again := b.settled(m)
	again.Version, once.Version = "", ""
	if d := cmp.Diff(once, again); d != "" {
		b.Errorf("the same update again changed the thing (-once +twice):\n%s", d)
	}
}

// named: others may rename a thing, and an update sets its name again.
func named(b *bench) {
	m := b.mine()
	th := b.make(m)
	for _, name := range []string{m.Name + "-2", ""} { // the empty name is that of the resource
		c := b.updating(m, th, b.c.Want, b.c.Want)
		c.Name = name
		b.must("update", c)
		if th = b.settled(m); th.Name != c.Called() {
			b.Errorf("it is called %q, want %q", th.Name, c.Called())
		}
		b.has(m, th.Spec, b.c.Want)
	}
}

func undoUpdate(b *bench) {
	m := b.mine()
	before := b.make(m)
	b.must("update", b.updating(m, before, b.c.Want, b.c.Update))
	c := b.deleting(m, b.settled(m)) // what is seen now …
	c.Want = before.Spec.Clone()     // … becomes what was seen before
	b.must("update", c)
	b.same("the update was undone", before, b.settled(m))
}

// same checks that a thing has come back digest for digest.
func (b *bench) same(what string, before, after providers.Thing) {
	b.Helper()
	x, y := b.normal(b.c.Kind, before.Spec), b.normal(b.c.Kind, after.Spec)
	if x.Digest() != y.Digest() {
		b.Errorf("%s and the spec is not what it was (-before +after):\n%s", what, cmp.Diff(x, y))
	}
}

func staleUpdate(b *bench) {
	m := b.mine()
	old := b.make(m)
	b.must("update", b.updating(m, old, b.c.Want, b.c.Update))
	now := b.settled(m)
	unchanged := b.watch()
	c := b.updating(m, now, b.c.Update, b.c.Want)
	c.Version = old.Version
	b.class("an update with a stale version", b.do(b.Context(), "update", c), providers.Conflict)
	unchanged("an update with a stale version")
}

func staleDelete(b *bench) {
	m := b.mine()
	old := b.make(m)
	b.must("update", b.updating(m, old, b.c.Want, b.c.Update))
	b.settled(m)
	unchanged := b.watch()
	b.class("a delete with a stale version", b.do(b.Context(), "delete", b.deleting(m, old)), providers.Conflict)
	unchanged("a delete with a stale version")
}

// successor makes calls for a thing that was there before, under the same id.
func successor(b *bench) {
	m := b.mine()
	th := b.make(m)
	if th.UID == "" { // nothing tells it from its successor
		return
	}
	unchanged := b.watch()
	calls := map[string]providers.Call{}
	if updates(b.traits, b.c) {
		calls["update"] = b.updating(m, th, b.c.Want, b.c.Update)
	}
	if deletes(b.traits, b.c) {
		calls["delete"] = b.deleting(m, th)
	}
	for op, c := range calls {
		c.UID = "of another"
		b.class(op+" with another uid", b.do(b.Context(), op, c), providers.Conflict)
	}
	unchanged("a call for another thing")
	for _, op := range []string{"update", "delete"} {
		if c, ok := calls[op]; ok {
			now := b.settled(m)
			c.UID, c.Version, c.Have = th.UID, now.Version, b.have(m.Kind, now.Spec)
			b.must(op, c)
		}
	}
}

func unobstructed(b *bench) {
	m := b.mine()
	th := b.make(m)
	if b.world.Provider.Obstacles == nil { // only a delete shows it
		return
	}
	unchanged := b.watch()
	found, err := b.world.Provider.Obstacles(b.Context(), []providers.Target{{Kind: m.Kind, ID: m.ID}}, nil)
	if err != nil || len(found) > 0 {
		b.Errorf("in its way is %v (%v)", found, err)
	}
	unchanged("a look for what is in the way")
	b.must("delete", b.deleting(m, th))
}

func deleted(b *bench) {
	m := b.mine()
	b.must("delete", b.deleting(m, b.make(m)))
	if th, ok := b.peek(m); ok {
		if b.traits.GoneWithin == 0 && !b.traits.Eventual {
			b.Errorf("the thing is there after delete, %s, and the traits have neither GoneWithin nor Eventual", th.Phase)
		}
		if th.Phase != providers.Deleting && !b.traits.Eventual {
			b.Errorf("the deleted thing is %s for as long as it is listed, want leaving", th.Phase)
		}
	}
	b.gone(m)
	for _, th := range b.list(m.Kind) {
		if th.ID == m.ID {
			b.Errorf("the deleted thing is still in the list")
		}
	}
}

func deleteTwice(b *bench) {
	m := b.mine()
	c := b.deleting(m, b.make(m))
	b.must("delete", c)
	b.must("delete", c) // in deletion
	b.gone(m)
	b.must("delete", c)
	b.must("delete", b.call(b.other(99))) // never existed
}

func updateAbsent(b *bench) {
	m := b.mine()
	th := b.make(m)
	b.must("delete", b.deleting(m, th))
	b.gone(m)
	unchanged := b.watch()
	err := b.do(b.Context(), "update", b.updating(m, th, b.c.Want, b.c.Update))
	b.class("an update of an absent thing", err, providers.Absent, providers.Conflict)
	unchanged("an update of an absent thing")
}

func burned(b *bench) {
	m := b.mine()
	b.must("delete", b.deleting(m, b.make(m)))
	b.gone(m)
	if !b.traits.IDsNotReusable {
		b.make(m)
		return
	}
	unchanged := b.watch()
	b.class("a create with a burned id", b.do(b.Context(), "create", b.creating(m)), providers.Exists)
	unchanged("a create with a burned id")
}

func undoCreate(b *bench) {
	m := b.mine()
	before := b.snapshot()
	b.must("delete", b.deleting(m, b.make(m)))
	b.gone(m)
	if d := cmp.Diff(before, b.snapshot()); d != "" {
		b.Errorf("the create was undone and the scope is not what it was (-before +after):\n%s", d)
	}
}

func undoDelete(b *bench) {
	m := b.mine()
	before := b.make(m)
	b.must("delete", b.deleting(m, before))
	b.gone(m)
	m.Spec = before.Spec
	b.must("create", b.creating(m))
	b.same("the delete was undone", before, b.settled(m))
}

// othersUntouched changes our thing in a scope with another one of the kind and everything in the initial world.
func othersUntouched(b *bench) {
	m, other := b.mine(), b.other(1)
	b.make(other)
	before := b.snapshot(m)
	check := func(after string) {
		b.Helper()
		if d := cmp.Diff(before, b.snapshot(m)); d != "" {
			b.Errorf("%s changed other things (-before +after):\n%s", after, d)
		}
	}
	th := b.make(m)
	check("create")
	if updates(b.traits, b.c) {
		b.must("update", b.updating(m, th, b.c.Want, b.c.Update))
		th = b.settled(m)
		check("update")
	}
	if deletes(b.traits, b.c) {
		b.must("delete", b.deleting(m, th))
		b.gone(m)
		check("delete")
	}
}

func concurrent(b *bench) {
	n := 8
	if limit := b.world.Provider.Limit; limit > 0 {
		n = min(n, limit)
	}
	each := func(work func(m Made)) {
		b.Helper()
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { work(b.other(i)) })
		}
		wg.Wait()
		if b.Failed() {
			b.FailNow()
		}
	}
	try := func(op string, c providers.Call) {
		if err := b.do(b.Context(), op, c); err != nil {
			b.Errorf("%s of %s beside others failed: %v", op, c.Ref, err)
		}
	}
	each(func(m Made) {
		try("create", b.creating(m))
		if _, err := providers.Collect(b.served.Kind.List(b.Context())); err != nil {
			b.Errorf("observe beside creates failed: %v", err)
		}
	})
	seen := map[string]providers.Thing{}
	for i := range n {
		m := b.other(i)
		seen[m.ID] = b.settled(m)
		b.has(m, seen[m.ID].Spec, m.Spec)
	}
	if updates(b.traits, b.c) && b.c.Other == nil {
		each(func(m Made) { try("update", b.updating(m, seen[m.ID], m.Spec, b.c.Update)) })
		for i := range n {
			m := b.other(i)
			seen[m.ID] = b.settled(m)
			b.has(m, seen[m.ID].Spec, b.c.Update)
		}
	}
	if deletes(b.traits, b.c) {
		each(func(m Made) { try("delete", b.deleting(m, seen[m.ID])) })
		for i := range n {
			b.gone(b.other(i))
		}
	}
}
