package ovs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ovn-org/libovsdb/ovsdb"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/spec"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
)

// flowSetKey and the name of a flow set are the key of external_ids of its bridge that holds its mark, in the first line, and its flows as
// they are declared, each in one line. The switch itself has neither: it rewrites flows, and has no names for them.
const flowSetKey = "converge.dev/flow_set/"

// isFlowSet reports whether a member of external_ids of a bridge belongs to a flow set.
func isFlowSet(key, _ string) bool { return strings.HasPrefix(key, flowSetKey) }

// ours are the first 16 bits of the cookies of flow sets, the other bits of which follow from the name of the set.
const ours = 0xc0e5 << 48

func cookieOf(name string) uint64 {
	sum := sha256.Sum256([]byte(flowSetKey + name))
	return ours | binary.BigEndian.Uint64(sum[:])>>16
}

// flowSets is the kind ovs.flow_set.
type flowSets struct{}

// reads has the interfaces of all ports: flows contain their names.
func (flowSets) reads() []reading {
	return []reading{
		bridgeRows,
		{table: vswitch.PortTable, row: &vswitch.Port{}, columns: []string{"name", "interfaces"}},
		{table: vswitch.InterfaceTable, row: &vswitch.Interface{}, columns: []string{"name", "ofport"}},
	}
}

// traits: the database is changed before the switch, each with its own deadline, and the switch checks nothing: it would also carry out a
// late change of what has changed since.
func (flowSets) traits(common providers.Traits) providers.Traits {
	common.Update, common.Delete = providers.Blind, providers.Blind
	common.EffectWithin *= 2
	common.SetLast = []string{"flows"}
	return common
}

// A flowSet is one flow set as it is in the database, and the flows that the switch has of it.
type flowSet struct {
	id, name string
	bridge   *vswitch.Bridge
	note     string // the value in external_ids
	mark     providers.Mark
	lines    []string // its flows as they are declared
	have     []flow   // what the switch has of it; set by look
	reads    []flow   // what each line is on the switch; the zero flow when a line is not accepted; set by look
}

// noted returns the value in external_ids of a flow set.
func noted(lines []string, mark providers.Mark) string {
	return strings.Join(append([]string{mark.String()}, sorted(lines)...), "\n")
}

// flowSets returns the flow sets in the database by their ids. A name that two bridges have is not an id.
func (v *view) flowSets() map[string]*flowSet {
	sets := map[string]*flowSet{}
	for b := range all[vswitch.Bridge](v) {
		for key, note := range b.ExternalIDs {
			name, ok := strings.CutPrefix(key, flowSetKey)
			if !ok {
				continue
			}
			lines := strings.Split(note, "\n")
			s := &flowSet{id: name, name: name, bridge: b, note: note, mark: providers.ParseMark(lines[0]), lines: lines[1:]}
			if find(v, func(o *vswitch.Bridge) bool { _, has := o.ExternalIDs[key]; return has && o != b }) != nil {
				s.id = b.Name + "/" + name
			}
			sets[s.id] = s
		}
	}
	return sets
}

// look asks the switch for the flows of those flow sets of a view that have the given ids, all when ids is nil.
func (flowSets) look(ctx context.Context, d *db, v *view, ids []string) error {
	v.sets = v.flowSets()
	if ids != nil {
		maps.DeleteFunc(v.sets, func(id string, _ *flowSet) bool { return !slices.Contains(ids, id) })
	}
	installed := map[string][]flow{}
	for _, s := range v.sets {
		if installed[s.bridge.Name] != nil {
			continue
		}
		flows, err := d.flows(ctx, s.bridge.Name, ours, 0xffff<<48)
		if err != nil {
			return err
		}
		installed[s.bridge.Name] = append(make([]flow, 0, len(flows)), flows...)
	}
	for _, s := range v.sets {
		s.have = of(installed[s.bridge.Name], cookieOf(s.name))
		var err error
		if s.reads, err = d.understood(ctx, v, s.bridge, s.lines); err != nil {
			return err
		}
	}
	return nil
}

// of returns those of some flows that have a cookie.
func of(flows []flow, cookie uint64) []flow {
	return slices.DeleteFunc(slices.Clone(flows), func(f flow) bool { return f.cookie != cookie })
}

// understood returns what each of some lines is on the switch; the zero flow for one that it does not accept, as when a port is gone.
func (d *db) understood(ctx context.Context, v *view, b *vswitch.Bridge, lines []string) ([]flow, error) {
	flows := make([]flow, len(lines))
	var texts []string
	var at []int // the line of each text
	for i, line := range lines {
		if text, err := numbered(v, b, line); err == nil {
			texts, at = append(texts, text), append(at, i)
		}
	}
	for {
		read, err := d.parse(ctx, texts)
		var bad *badFlow
		switch {
		case errors.As(err, &bad):
			texts, at = slices.Delete(texts, bad.at, bad.at+1), slices.Delete(at, bad.at, bad.at+1)
			continue
		case err != nil:
			return nil, err
		}
		for i, f := range read {
			flows[at[i]] = f
		}
		return flows, nil
	}
}

// list reports as the flows of a set the lines that are in effect, as they are declared, and what else the switch has with its cookie.
func (flowSets) list(v *view) ([]observed, error) {
	sets := v.sets
	if sets == nil { // nobody has asked the switch
		sets = v.flowSets()
	}
	var seen []observed
	for _, s := range sets {
		var flows []string
		rest := slices.Clone(s.have)
		for i, f := range s.reads {
			if n := slices.IndexFunc(rest, f.is); n >= 0 {
				flows, rest = append(flows, s.lines[i]), slices.Delete(rest, n, n+1)
			}
		}
		for _, f := range rest {
			flows = append(flows, f.String())
		}
		cookie := fmt.Sprintf("%#x", cookieOf(s.name))
		o := spec.FlowSet{Bridge: s.bridge.Name, Flows: sorted(flows)}
		th := providers.Thing{
			ID: s.id, Name: s.name, Mark: s.mark, Spec: o.Object(), Phase: providers.Ready,
			Status: (&spec.FlowSetStatus{Cookie: &cookie}).Object(),
		}
		if value(s.bridge.FailMode) != "secure" {
			th.Detail = "bridge " + s.bridge.Name + " does not have fail_mode secure: Open vSwitch changes its flows by itself"
		}
		// The declared lines belong to it, too: they are what an update compares with.
		seen = append(seen, observed{Thing: th, rows: append([]string{s.bridge.UUID}, s.lines...)})
	}
	return seen, nil
}

func (flowSets) create(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	w, err := wantedFlowSet(v, want, name)
	if err != nil {
		return err
	}
	b, key, note := w.bridge, flowSetKey+name, noted(w.lines, mark)
	if o := find(v, func(o *vswitch.Bridge) bool { _, has := o.ExternalIDs[key]; return has }); o != nil {
		return refuse(providers.Exists, "the name %s is taken by a flow set of bridge %s", name, o.Name)
	}
	c.secure(b)
	// An insert does not overwrite: the note is there afterwards unless there was another, and before only if this call was made twice.
	taken := refuse(providers.Exists, "the name %s has just been taken", name)
	c.guard(taken, vswitch.BridgeTable, has(key, note), ovsdb.WaitConditionNotEqual, ovsdb.Row{"name": b.Name})
	c.mutate(vswitch.BridgeTable, b.UUID, "external_ids", ovsdb.MutateOperationInsert, ovsdb.OvsMap{GoMap: map[any]any{key: note}})
	c.guard(taken, vswitch.BridgeTable, has(key, note), ovsdb.WaitConditionEqual, ovsdb.Row{"name": b.Name})
	c.first = func(ctx context.Context) error { return w.check(ctx, v, c.db) }
	c.then = func(ctx context.Context) error {
		return c.program(ctx, w, func(back *change) { back.note(b, key, note, "") })
	}
	return nil
}

func (flowSets) update(v *view, c *change, id string, want schema.Object, mark providers.Mark) error {
	have := v.sets[id]
	w, err := wantedFlowSet(v, want, have.name)
	switch {
	case err != nil:
		return err
	case w.bridge != have.bridge:
		return refuse(providers.Invalid, "bridge cannot be changed in place")
	}
	b, key, note := w.bridge, flowSetKey+have.name, noted(w.lines, mark)
	c.secure(b)
	c.note(b, key, have.note, note)
	c.first = func(ctx context.Context) error { return w.check(ctx, v, c.db) }
	c.then = func(ctx context.Context) error {
		return c.program(ctx, w, func(back *change) { back.note(b, key, note, have.note) })
	}
	return nil
}

// remove deletes the flows before the note: without the note nobody would know whose they are.
func (flowSets) remove(_ context.Context, v *view, c *change, id string) error {
	have := v.sets[id]
	b, key := have.bridge, flowSetKey+have.name
	c.note(b, key, have.note, have.note)
	c.then = func(ctx context.Context) error {
		err := c.program(ctx, &wantedFlows{bridge: b, cookie: cookieOf(have.name)}, func(*change) {})
		if err != nil {
			return err
		}
		gone := c.again()
		gone.note(b, key, have.note, "")
		return gone.commit(ctx)
	}
	return nil
}

// secure guards that a bridge stays and that its flow table is left to its clients.
func (c *change) secure(b *vswitch.Bridge) {
	c.guard(refuse(providers.Conflict, "bridge %s has just been changed", b.Name),
		vswitch.BridgeTable, uuidIs(b.UUID), ovsdb.WaitConditionEqual, c.row(b, []string{"name", "fail_mode", "protocols"}))
}

// has selects the bridges with a note.
func has(key, note string) ovsdb.Condition {
	return ovsdb.NewCondition("external_ids", ovsdb.ConditionIncludes, ovsdb.OvsMap{GoMap: map[any]any{key: note}})
}

// note guards that only one bridge has a note, and replaces it; an empty one is no note.
func (c *change) note(b *vswitch.Bridge, key, from, to string) {
	c.guard(refuse(providers.Conflict, "another client has just changed it"),
		vswitch.BridgeTable, has(key, from), ovsdb.WaitConditionEqual, ovsdb.Row{"name": b.Name})
	if from == to {
		return
	}
	c.mutate(vswitch.BridgeTable, b.UUID, "external_ids", ovsdb.MutateOperationDelete, ovsdb.OvsSet{GoSet: []any{key}})
	if to != "" {
		c.mutate(vswitch.BridgeTable, b.UUID, "external_ids", ovsdb.MutateOperationInsert, ovsdb.OvsMap{GoMap: map[any]any{key: to}})
	}
}

// wantedFlows are the flows that a set shall have.
type wantedFlows struct {
	bridge *vswitch.Bridge
	cookie uint64
	lines  []string // as they are declared
	flows  []flow   // as the switch will show them; set by check
}

func wantedFlowSet(v *view, want schema.Object, name string) (*wantedFlows, error) {
	var s spec.FlowSet
	if err := read(want, &s); err != nil {
		return nil, err
	}
	b := v.bridge(s.Bridge)
	switch {
	case b == nil:
		return nil, refuse(providers.Absent, "bridge %s does not exist", s.Bridge)
	case value(b.FailMode) != "secure":
		return nil, refuse(providers.Invalid, "bridge %s does not have fail_mode secure: Open vSwitch changes its flows by itself", b.Name)
	case len(b.Protocols) > 0 && !slices.Contains(b.Protocols, dialect):
		return nil, refuse(providers.Invalid, "bridge %s does not accept %s, in which its flows are changed: add it to its protocols", b.Name, dialect)
	}
	return &wantedFlows{bridge: b, cookie: cookieOf(name), lines: s.Flows}, nil
}

// check finds out what the flows are on the switch. It refuses those that the switch will not accept, and those that would replace a flow
// of somebody else.
func (w *wantedFlows) check(ctx context.Context, v *view, d *db) error {
	var texts []string
	for _, line := range w.lines {
		text, err := numbered(v, w.bridge, line)
		if err != nil {
			return err
		}
		texts = append(texts, text)
	}
	flows, err := d.parse(ctx, texts)
	if bad := (*badFlow)(nil); errors.As(err, &bad) {
		return refuse(providers.Invalid, "flow %q: %s", w.lines[bad.at], bad.why)
	}
	if err != nil {
		return classed(err)
	}
	slots := map[slot]int{}
	for i, f := range flows {
		if first, dup := slots[f.slot()]; dup {
			return refuse(providers.Invalid, "flow %q has the table, priority and match of %q: the switch keeps one of the two", w.lines[i], w.lines[first])
		}
		slots[f.slot()] = i
	}
	there, err := d.flows(ctx, w.bridge.Name, 0, 0)
	if err != nil {
		return classed(err)
	}
	for _, f := range there {
		if i, taken := slots[f.slot()]; taken && f.cookie != w.cookie {
			return refuse(providers.Denied, "flow %q would replace a flow of somebody else, which has the cookie %#x", w.lines[i], f.cookie)
		}
	}
	w.flows = flows
	return nil
}

// program makes the flows of a set those that are wanted. When the switch refuses one of them, it has changed nothing, and what undo
// says is done in the database.
func (c *change) program(ctx context.Context, w *wantedFlows, undo func(*change)) error {
	have, err := c.db.flows(ctx, w.bridge.Name, w.cookie, ^uint64(0))
	if err != nil {
		return &fault{providers.Unknown, err}
	}
	wants := map[slot]flow{}
	for _, f := range w.flows {
		wants[f.slot()] = f
	}
	var gone []flow
	for _, f := range have {
		switch want, ok := wants[f.slot()]; {
		case !ok:
			gone = append(gone, f)
		case f.is(want):
			delete(wants, f.slot())
		}
	}
	added := slices.DeleteFunc(slices.Clone(w.flows), func(f flow) bool { _, missing := wants[f.slot()]; return !missing })
	err = c.db.program(ctx, w.bridge.Name, w.cookie, gone, added)
	if f := (*fault)(nil); errors.As(err, &f) && f.class == providers.Invalid {
		back := c.again()
		undo(back)
		if failed := back.commit(ctx); failed != nil {
			return &fault{providers.Unknown, errors.Join(err, failed)}
		}
	}
	if err != nil {
		return err
	}
	if have, err = c.db.flows(ctx, w.bridge.Name, w.cookie, ^uint64(0)); err != nil {
		return &fault{providers.Unknown, err}
	}
	for i, f := range w.flows {
		n := slices.IndexFunc(have, f.is)
		if n < 0 {
			return refuse(providers.Unknown, "flow %q is not on the switch as %q: it has another form there, or somebody else has changed it", w.lines[i], f)
		}
		have = slices.Delete(have, n, n+1)
	}
	if len(have) > 0 {
		return refuse(providers.Unknown, "the switch has another flow with the cookie of the set: %q", have[0])
	}
	return nil
}

// classed returns a fault: that of err, or that it is worth another try.
func classed(err error) error {
	if f := (*fault)(nil); err == nil || errors.As(err, &f) {
		return err
	}
	return &fault{providers.Transient, err}
}
