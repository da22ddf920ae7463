package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// spoils reports whether the value of a key was changed, where it exists.
func (h harm) spoils(m moment, key string) bool {
	v, there := h.store[key]
	return there && !bytes.Equal(v, m.store[key])
}

// suffer carries out an operation on a damaged store and judges it; then the damage is repaired and it is tried again.
func (tr *trace) suffer(t *testing.T, m moment, kind string, d harm, op string) {
	t.Helper()
	name := fmt.Sprintf("%s of a %s run, the %s %v %s", op, tr.kind, kind, d.keys, d.what)
	s := revive(t, d.store, m.world)
	tr.reads(t, s, m, d, name)
	s.Release(t) // a run that failed holds its revision of the document; holds are tested elsewhere
	got := tr.do(t, s, op)
	switch {
	case got.err != nil && got.touched:
		t.Errorf("%s: it failed after it had changed the world: %v", name, got.err)
	case got.err != nil && d.want[op] == goOn:
		t.Errorf("%s: it failed, and nothing that it needs is damaged: %v", name, got.err)
	case got.err != nil && d.want[op] == refuse && d.named && !d.names(got.err):
		t.Errorf("%s: the error does not name the key: %v", name, got.err)
	case got.err == nil && d.want[op] == refuse && !unpacked(s, kind, d):
		t.Errorf("%s: it went on and ended %s", name, got.status)
	}
	if got.err != nil { // once the value is repaired, the operation can continue
		mend(t, s, m, d)
		if got = tr.do(t, s, op); got.err != nil {
			t.Errorf("%s: with the value mended: %v", name, got.err)
		}
	}
	if d.what != "missing" && d.what != "older" { // those are undetectable; of the others, something is not read yet
		mend(t, s, m, d)
	}
	var forgotten []string
	if d.what == "missing" || d.what == "older" {
		forgotten = d.keys
	}
	wrong := tr.right(t, s, op, got, forgotten)
	if wrong != "" && forgotten != nil {
		// A forgotten thing that conflicts with another is reported as stray: its record is restored.
		s.Release(t)
		mend(t, s, m, d)
		wrong = tr.right(t, s, op, got, nil)
	}
	if wrong != "" && forgotten != nil && op != opRollback {
		wrong = tr.finish(t, s, got, wrong)
	}
	if wrong != "" && forgotten != nil && kind == "resource" {
		// With its record a field is forgotten that left the document meanwhile: it counts as unmanaged and is kept, and what it
		// refers to cannot be deleted. The run is undone and says so; or, when that is the old half of a replacement, it is partial
		// and names it.
		s.Release(t)
		p := s.Plan(t, s.Document(t, tr.desired), plan.Options{Unlimited: true})
		if toldOf(t, s, p.Unmanaged) && !slices.ContainsFunc(p.Steps, func(st plan.Step) bool { return st.Action == plan.Create }) {
			tr.kept++
			wrong = ""
		}
	}
	if wrong != "" {
		t.Errorf("%s: %s", name, wrong)
	}
	tr.rises(t, s, m, d, name)
}

// finish continues the run that ended partial because the old half of a replacement could not be deleted: what was forgotten
// still referred to it. No plan knows the old half, which is a stray beside its new one, but that run does: once nothing
// prevents it, resuming that run is what is left to do, as after every partial end.
func (tr *trace) finish(t *testing.T, s *enginetest.Site, got end, wrong string) string {
	t.Helper()
	s.Release(t)
	p := s.Plan(t, s.Document(t, tr.desired), plan.Options{Unlimited: true, AllowMissing: true})
	if !p.Empty() || !toldOf(t, s, p.Unmanaged) {
		return wrong
	}
	if last := tr.do(t, s, opResume); last.err != nil || last.status != state.RunApplied {
		return fmt.Sprintf("%s\nthe run that left it ended %s when it was resumed: %v", wrong, last.status, last.err)
	}
	return tr.right(t, s, opResume, got, nil)
}

// toldOf reports whether everything that no record explains is a stray that a run which ended partial did not delete, and named.
func toldOf(t *testing.T, s *enginetest.Site, unmanaged []plan.Unmanaged) bool {
	t.Helper()
	runs, err := s.Store.Runs(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return !slices.ContainsFunc(unmanaged, func(f plan.Unmanaged) bool {
		ref := schema.Ref{Scope: f.Scope, Kind: f.Kind, Name: f.Name}
		return !f.Stray || !slices.ContainsFunc(runs, func(r state.Run) bool {
			return r.Status == state.RunPartial && slices.ContainsFunc(r.Partial, func(d string) bool {
				return strings.HasPrefix(d, ref.String()+": delete ") // failed, or was not started
			})
		})
	})
}

// rises checks that the epoch is higher than that of every holder that may have sent something.
func (tr *trace) rises(t *testing.T, s *enginetest.Site, m moment, d harm, name string) {
	t.Helper()
	epoch := func(text []byte) int64 {
		var v struct{ Epoch int64 }
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		return v.Epoch
	}
	was := epoch(m.store["/converge/test/epoch"])
	if (d.what == "missing" || d.what == "older") && slices.Contains(d.keys, "/converge/test/epoch") {
		was = 0 // a holder that has opened no run has sent nothing
		for key, v := range m.store {
			if strings.HasPrefix(key, "/converge/test/run/") {
				was = max(was, epoch(v))
			}
		}
	}
	it, err := s.KV.Get(context.Background(), "/converge/test/epoch")
	if err != nil {
		t.Fatal(err)
	}
	if is := epoch(it.Value); is <= was {
		t.Errorf("%s: the epoch was %d, and is %d after another holder", name, was, is)
	}
}

// mend restores the values of the damaged keys, where no new ones have been written.
func mend(t *testing.T, s *enginetest.Site, m moment, d harm) {
	t.Helper()
	var ops []state.Op
	for key, whole := range withoutLock(m.store) {
		bent, there := d.store[key]
		if there && bytes.Equal(bent, whole) {
			continue
		}
		it, err := s.KV.Get(context.Background(), key)
		if err != nil {
			t.Fatal(err)
		}
		if there && bytes.Equal(it.Value, bent) || !there && it.Modified == 0 {
			ops = append(ops, state.Op{Key: key, Value: whole})
		}
	}
	for key := range d.store {
		if _, there := withoutLock(m.store)[key]; !there { // the lease of a dead process expires
			ops = append(ops, state.Op{Key: key, Delete: true})
		}
	}
	for part := range slices.Chunk(ops, state.MaxOps) {
		if _, err := s.KV.Commit(context.Background(), nil, part); err != nil {
			t.Fatal(err)
		}
	}
}

// unpacked reports whether a packed body still unpacks to the bytes that its name promises: the flipped bit does not count.
func unpacked(s *enginetest.Site, kind string, d harm) bool {
	if kind != "plan" || d.what != "flipped" {
		return false
	}
	_, err := s.Store.Blob(context.Background(), []string{d.keys[0][strings.LastIndex(d.keys[0], "/")+1:]})
	return err == nil
}

// reads reads what no run needs: revisions of the document, spent plans, the audit log. Each is unchanged, or an error names
// the damaged key.
func (tr *trace) reads(t *testing.T, s *enginetest.Site, m moment, d harm, name string) {
	t.Helper()
	ctx := context.Background()
	judge := func(what, got, want string, err error) {
		switch {
		case err != nil && !d.names(err) && !(d.what == "missing" && errors.Is(err, state.ErrNotFound)):
			t.Errorf("%s: %s cannot be read, and the error names no damaged key: %v", name, what, err)
		case err == nil && got != want && d.what != "older" && d.what != "missing":
			t.Errorf("%s: %s is read as %s, and was %s", name, what, got, want)
		}
	}
	for key, v := range m.store {
		rest, _ := strings.CutPrefix(key, "/converge/test/")
		switch {
		case rest == "document/head", strings.HasPrefix(rest, "document/log/"):
			var was state.Head
			if err := json.Unmarshal(v, &was); err != nil {
				t.Fatal(err)
			}
			serial := was.Serial
			if rest == "document/head" {
				serial = 0
			}
			got, body, err := s.Store.Document(ctx, serial)
			judge("the document of "+rest, fmt.Sprint(got.Serial, got.Digest, len(body)), fmt.Sprint(was.Serial, was.Digest, was.Size), err)
		case strings.HasPrefix(rest, "spent/"):
			var was struct{ Run string }
			if err := json.Unmarshal(v, &was); err != nil {
				t.Fatal(err)
			}
			run, _, err := s.Store.Spent(ctx, strings.TrimPrefix(rest, "spent/"))
			judge(rest, run, was.Run, err)
		}
	}
	audits, err := s.Store.Audits(ctx)
	entries := 0
	for key := range m.store {
		if strings.Contains(key, "/audit/") {
			entries++
		}
	}
	judge("the audit log", fmt.Sprint(len(audits)), fmt.Sprint(entries), err)
}
