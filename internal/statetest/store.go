package statetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Store runs the laws of the store that is derived from a backend. Open is called once for each.
func Store(t *testing.T, open func(t *testing.T) state.KV) {
	for name, law := range map[string]func(*testing.T, state.KV, string){
		"Sites":         sites,
		"Document":      document,
		"Conflict":      conflict,
		"Sharing":       sharing,
		"Retention":     retention,
		"Inbox":         inbox,
		"Blob":          blob,
		"Damage":        damage,
		"Records":       records,
		"Amended":       amended,
		"NewerLayout":   newerLayout,
		"Runs":          runs,
		"SecretKey":     secretKey,
		"Stops":         stops,
		"Publish":       publish,
		"Lock":          lock,
		"LockWait":      lockWait,
		"LockGuards":    lockGuards,
		"ForceUnlock":   forceUnlock,
		"Audits":        audits,
		"EpochRaised":   epochRaised,
		"Quarantine":    quarantine,
		"Inventory":     inventory,
		"InventoryRace": inventoryRace,
	} {
		t.Run(name, func(t *testing.T) { law(t, open(t), site()) })
	}
}

// sites: a site is in the store once something of it is, and not because somebody planned it, locked it or asked for its key.
func sites(t *testing.T, kv state.KV, site string) {
	ctx := context.Background()
	op := func(s *state.Store, key string) state.Op {
		return state.Op{Key: s.Path() + "/" + key, Value: []byte("{}")}
	}
	for i, c := range []struct {
		key   string
		begun bool
	}{
		{"secret-key", false}, {"epoch", false}, {"inventory/head", false}, {"audit/20260101", false},
		{"document/head", true}, {"document/log/1", true}, {"inbox", true}, {"resource/site/fake.thing/a", true}, {"run/20260101", true},
		{"hold/site", true}, {"freeze", true}, {"node/gpu-01", true}, {"keeper", true}, {"status", true},
	} {
		name := fmt.Sprintf("%s-%d", site, i)
		s := state.New(kv, name)
		if _, err := kv.Commit(ctx, nil, []state.Op{op(s, c.key)}); err != nil {
			t.Fatal(err)
		}
		names, err := state.Sites(ctx, kv)
		if got := slices.Contains(names, name); err != nil || got != c.begun {
			t.Errorf("a site of which there is %s alone: listed %t, want %t: %v", c.key, got, c.begun, err)
		}
	}
}

// site makes the site of every law unique, so that laws may share a server.
func site() string { return fmt.Sprintf("site-%d-%d", time.Now().UnixNano(), names.Add(1)) }

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// text returns n bytes that look like a document: they compress, and no two positions are alike.
func text(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, `"vpc-%08x":{"tenant":"t-%d","vni":%d},`, r.Uint32(), r.IntN(100), r.Uint32())
	}
	return b.Bytes()[:n]
}

func putDoc(t *testing.T, s *state.Store, body []byte) state.Head {
	t.Helper()
	h, err := s.PutDocument(t.Context(), body, digest(body), 0, "ann@host", state.AnyRevision)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func document(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	ctx := t.Context()
	if _, err := s.Head(ctx); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("the head of no document: %v", err)
	}
	var heads []state.Head
	var bodies [][]byte
	for _, body := range [][]byte{{}, []byte("{}"), text(100), text(300 << 10), text(2 << 20)} {
		h := putDoc(t, s, body)
		heads, bodies = append(heads, h), append(bodies, body)
		if h.Serial != int64(len(heads)) || h.Digest != digest(body) || h.Size != len(body) || h.By != "ann@host" || h.Revision == 0 {
			t.Errorf("put gave %+v", h)
		}
	}
	for i, h := range heads {
		got, body, err := s.Document(ctx, h.Serial)
		if err != nil || !bytes.Equal(body, bodies[i]) {
			t.Fatalf("serial %d: %d bytes, %v; want %d", h.Serial, len(body), err, len(bodies[i]))
		}
		if diff := cmp.Diff(h, got); diff != "" {
			t.Errorf("serial %d:\n%s", h.Serial, diff)
		}
	}
	last := len(heads) - 1
	if got, body, err := s.Document(ctx, 0); err != nil || got.Serial != heads[last].Serial || !bytes.Equal(body, bodies[last]) {
		t.Errorf("the newest is %+v, %v", got, err)
	}
	history, err := s.History(ctx)
	if err != nil || len(history) != len(heads) {
		t.Fatalf("%d revisions in the history, %v", len(history), err)
	}
	for i, h := range history {
		if diff := cmp.Diff(heads[last-i], h); diff != "" {
			t.Errorf("place %d of the history:\n%s", i, diff)
		}
	}
	if _, _, err := s.Document(ctx, 99); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("serial 99: %v", err)
	}
	again, err := s.PutDocument(ctx, bodies[last], heads[last].Digest, 0, "bob@host", state.AnyRevision)
	if err != nil || cmp.Diff(heads[last], again) != "" {
		t.Errorf("the same again gave %+v, %v", again, err)
	}
	if _, err := s.PutDocument(ctx, []byte("a"), digest([]byte("b")), 0, "", state.AnyRevision); !errors.Is(err, state.ErrInvalid) {
		t.Errorf("a digest of other bytes: %v", err)
	}
}

func conflict(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	put := func(body string, serial, revision int64) (state.Head, error) {
		return s.PutDocument(t.Context(), []byte(body), digest([]byte(body)), serial, "ann@host", revision)
	}
	if _, err := put("a", 0, 7); !errors.Is(err, state.ErrGuard) {
		t.Errorf("a revision that never was: %v", err)
	}
	first, err := put("a", 10, 0)
	if err != nil || first.Serial != 10 {
		t.Fatalf("the first: %+v, %v", first, err)
	}
	for _, serial := range []int64{schema.MaxSerial + 1, math.MaxInt64} {
		if _, err := put("b", serial, first.Revision); !errors.Is(err, state.ErrInvalid) {
			t.Errorf("serial %d: %v", serial, err)
		}
	}
	if _, err := put("b", 0, 0); !errors.Is(err, state.ErrGuard) {
		t.Errorf("a second first one: %v", err)
	}
	second, err := put("b", 0, first.Revision)
	if err != nil || second.Serial != 11 {
		t.Fatalf("the second: %+v, %v", second, err)
	}
	_, err = put("c", 0, first.Revision)
	var conflict *state.ConflictError
	if !errors.As(err, &conflict) || conflict.Head.Serial != 11 || conflict.Head.By != "ann@host" {
		t.Errorf("an old revision: %v", err)
	}
	for _, serial := range []int64{10, 11} {
		if _, err := put("c", serial, state.AnyRevision); !errors.As(err, &conflict) {
			t.Errorf("serial %d after 11: %v", serial, err)
		}
		if _, err := s.NextSerial(t.Context(), digest([]byte("c")), serial); !errors.As(err, &conflict) {
			t.Errorf("serial %d would follow 11: %v", serial, err)
		}
	}
	for serial, want := range map[int64]int64{0: 12, 12: 12, 20: 20} {
		if got, err := s.NextSerial(t.Context(), digest([]byte("c")), serial); err != nil || got != want {
			t.Errorf("serial %d would become %d, %v; want %d", serial, got, err, want)
		}
	}
	if got, err := s.NextSerial(t.Context(), digest([]byte("b")), 3); err != nil || got != 11 {
		t.Errorf("the same document again would become %d, %v; want 11", got, err)
	}
	if h, err := put("c", 12, second.Revision); err != nil || h.Serial != 12 {
		t.Errorf("serial 12 after 11: %+v, %v", h, err)
	}
	// Of many writers that saw the same revision one wins, and none is lost of those that accept any.
	head, _ := s.Head(t.Context())
	results := make(chan error)
	for i := range 6 {
		go func() {
			_, err := put(fmt.Sprint("same ", i), 0, head.Revision)
			results <- err
		}()
		go func() {
			_, err := put(fmt.Sprint("any ", i), 0, state.AnyRevision)
			if err != nil {
				err = fmt.Errorf("any: %w", err)
			}
			results <- err
		}()
	}
	won := 0
	for range 12 {
		switch err := <-results; {
		case err == nil:
			won++
		case !errors.As(err, &conflict):
			t.Error(err)
		}
	}
	if won != 6 && won != 7 {
		t.Errorf("%d writers won, want the 6 that accept any and at most one more", won)
	}
	if history, err := s.History(t.Context()); err != nil || len(history) != 3+won {
		t.Errorf("%d revisions, %v; want %d", len(history), err, 3+won)
	}
	// At the end of their range serials are refused, and never start again.
	if h, err := put("last", schema.MaxSerial, state.AnyRevision); err != nil || h.Serial != schema.MaxSerial {
		t.Fatalf("the largest serial: %+v, %v", h, err)
	}
	for _, serial := range []int64{0, 1, schema.MaxSerial, schema.MaxSerial + 1} {
		if _, err := put("beyond", serial, state.AnyRevision); !errors.Is(err, state.ErrLastSerial) {
			t.Errorf("serial %d after the largest: %v", serial, err)
		}
	}
	if h, err := s.Head(t.Context()); err != nil || h.Serial != schema.MaxSerial {
		t.Errorf("the head after that: %+v, %v", h, err)
	}
}

// sharing: an edit stores again only what is around it, wherever it is, and not the whole document.
func sharing(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	body := text(5 << 20)
	putDoc(t, s, body)
	bytesStored := func() (n int) {
		for _, it := range list(t, kv, s.Path()+"/document/chunk/") {
			n += len(it.Value)
		}
		return n
	}
	whole := bytesStored()
	if whole > len(body)*3/4 {
		t.Errorf("%d bytes are stored for %d: nothing was packed", whole, len(body))
	}
	for _, at := range []int{0, len(body) / 3, len(body)} {
		before := bytesStored()
		edited := bytes.Join([][]byte{body[:at], []byte(`"new":{},`), body[at:]}, nil)
		h := putDoc(t, s, edited)
		if more := bytesStored() - before; more > whole/8 {
			t.Errorf("9 bytes more at %d stored %d bytes, the whole takes %d", at, more, whole)
		}
		if _, got, err := s.Document(t.Context(), h.Serial); err != nil || !bytes.Equal(got, edited) {
			t.Errorf("the edited document comes back as %d bytes, %v", len(got), err)
		}
		body = edited
	}
}

// retention: the last hundred revisions stay readable, older ones are removed, and with them what only they held.
func retention(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	const n = 115
	for i := range n {
		putDoc(t, s, fmt.Appendf(nil, "revision %d", i))
	}
	history, err := s.History(t.Context())
	if err != nil || len(history) < 100 || len(history) > 110 {
		t.Fatalf("%d revisions are kept, %v; want 100 to 110", len(history), err)
	}
	if chunks := list(t, kv, s.Path()+"/document/chunk/"); len(chunks) != len(history) {
		t.Errorf("%d chunks for %d revisions of one each", len(chunks), len(history))
	}
	for _, h := range history {
		if _, body, err := s.Document(t.Context(), h.Serial); err != nil || string(body) != fmt.Sprintf("revision %d", h.Serial-1) {
			t.Errorf("serial %d: %q, %v", h.Serial, body, err)
		}
	}
	if history[0].Serial != n {
		t.Errorf("the newest has the serial %d, want %d", history[0].Serial, n)
	}
}

func inbox(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	ctx := t.Context()
	if body, revision, err := s.Inbox(ctx); err != nil || body != nil || revision != 0 {
		t.Errorf("an empty inbox: %q, %d, %v", body, revision, err)
	}
	if _, err := s.Answered(ctx); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("an answer before there was a question: %v", err)
	}
	if err := s.AnswerApplied(ctx, 7, state.InboxApplied{Status: "applied"}); err != nil {
		t.Errorf("a run without an answer to add to: %v", err)
	}
	put(t, kv, "/converge/"+site+"/inbox", "{one}")
	body, revision, err := s.Inbox(ctx)
	if err != nil || string(body) != "{one}" || revision == 0 {
		t.Fatalf("%q, %d, %v", body, revision, err)
	}
	put(t, kv, "/converge/"+site+"/inbox", "{two}")
	accepted := state.InboxResult{Revision: revision, Digest: digest([]byte("{one}")), Verdict: state.Accepted, Serial: 7, By: "ann@host", At: time.Unix(1, 0).UTC()}
	pending := accepted
	pending.Verdict = state.Pending
	if err := s.Answer(ctx, pending); !errors.Is(err, state.ErrGuard) {
		t.Errorf("answer what was written over: %v", err)
	}
	if _, err := s.Answered(ctx); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("what was written over got an answer: %v", err)
	}
	if err := s.Answer(ctx, accepted); err != nil { // it is a revision, whatever is there by now
		t.Errorf("answer what was accepted and written over: %v", err)
	}
	if got, err := s.Answered(ctx); err != nil || cmp.Diff(accepted, got) != "" {
		t.Errorf("%v %s", err, cmp.Diff(accepted, got))
	}
	body, revision, _ = s.Inbox(ctx)
	if string(body) != "{two}" {
		t.Fatalf("the inbox holds %q", body)
	}
	accepted.Revision = revision
	for _, verdict := range []state.Verdict{state.Pending, state.Refused} { // which leave it where it is
		r := accepted
		r.Verdict, r.Problems = verdict, []state.InboxProblem{{Severity: "error", Summary: "wrong", Line: 1}}
		if err := s.Answer(ctx, r); err != nil {
			t.Error(err)
		}
		if got, err := s.Answered(ctx); err != nil || cmp.Diff(r, got) != "" {
			t.Errorf("%s: %v %s", verdict, err, cmp.Diff(r, got))
		}
		if body, again, _ := s.Inbox(ctx); string(body) != "{two}" || again != revision {
			t.Errorf("%s: the inbox holds %q at %d, want the same at %d", verdict, body, again, revision)
		}
		if err := s.AnswerApplied(ctx, 7, state.InboxApplied{Status: "applied"}); err != nil {
			t.Error(err)
		}
		if got, _ := s.Answered(ctx); got.Applied != nil {
			t.Errorf("%s: a run was added to what was not accepted", verdict)
		}
	}
	if err := s.Answer(ctx, accepted); err != nil {
		t.Error(err)
	}
	if body, _, _ := s.Inbox(ctx); body != nil {
		t.Errorf("the inbox still holds %q", body)
	}
	reverted := state.InboxApplied{Status: "reverted", Run: "r", Problem: "why", At: time.Unix(2, 0).UTC()}
	for _, serial := range []int64{6, 7} {
		if err := s.AnswerApplied(ctx, serial, reverted); err != nil {
			t.Error(err)
		}
		if got, err := s.Answered(ctx); err != nil || (got.Applied != nil) != (serial == accepted.Serial) {
			t.Errorf("a run for serial %d, and serial 7 was accepted: %+v, %v", serial, got.Applied, err)
		}
	}
	if err := s.AnswerApplied(ctx, 7, state.InboxApplied{Status: "refused", Problem: "held"}); err != nil {
		t.Error(err)
	}
	accepted.Applied = &reverted
	if got, _ := s.Answered(ctx); cmp.Diff(accepted, got) != "" {
		t.Error(cmp.Diff(accepted, got))
	}
	accepted.Applied = nil
	if err := s.Answer(ctx, accepted); !errors.Is(err, state.ErrGuard) {
		t.Errorf("answer an empty inbox: %v", err)
	}
}

func blob(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	noise := make([]byte, 4<<20)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for name, body := range map[string][]byte{
		"empty": {}, "small": []byte("plan"), "text": text(3 << 20), "noise": noise, "zeros": make([]byte, 20<<20),
	} {
		digests, err := s.PutBlob(t.Context(), body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := s.Blob(t.Context(), digests)
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%s comes back as %d bytes, %v", name, len(got), err)
		}
		if again, err := s.PutBlob(t.Context(), body); err != nil || cmp.Diff(digests, again) != "" {
			t.Errorf("%s has other digests the second time, %v", name, err)
		}
	}
	for _, it := range list(t, kv, s.Path()+"/blob/") {
		if len(it.Value) > 513<<10 {
			t.Errorf("%s has %d bytes", it.Key, len(it.Value))
		}
	}
	if _, err := s.Blob(t.Context(), []string{digest(nil)}); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("a blob that is not there: %v", err)
	}
}

// damage: altered bytes are never returned, and the error names the key.
func damage(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	ctx := t.Context()
	digests, err := s.PutBlob(ctx, []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.PutBlob(ctx, []byte("two"))
	if err != nil {
		t.Fatal(err)
	}
	key := s.Path() + "/blob/" + digests[0]
	stranger, err := s.Get(ctx, s.Path()+"/blob/"+other[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"another's": string(stranger.Value), "garbage": "garbage", "nothing": ""} {
		put(t, kv, key, value)
		if body, err := s.Blob(ctx, digests); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("with %s bytes: %q, %v; want an error that names %s", name, body, err, key)
		}
	}
	h := putDoc(t, s, []byte("{}"))
	put(t, kv, s.Path()+"/document/chunk/"+h.Chunks[0], string(stranger.Value))
	if _, body, err := s.Document(ctx, 0); err == nil {
		t.Errorf("a damaged document reads as %q", body)
	}
	put(t, kv, s.Path()+"/run/broken", `{"v":1,`)
	if _, err := s.Run(ctx, "broken"); err == nil || !strings.Contains(err.Error(), "run/broken") {
		t.Errorf("a torn run: %v", err)
	}
}

// amended: the last change of the records beside all runs replaces the note of an earlier one, and a damaged note is named.
func amended(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	ctx := t.Context()
	if a, err := s.Amended(ctx); err != nil || a != (state.Amended{}) {
		t.Errorf("before any change: %+v, %v", a, err)
	}
	written := int64(0) // revision of the last one
	for epoch := range int64(2) {
		want := state.Amended{Epoch: epoch + 3, Action: "state mv", By: "ann@host", At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		if _, err := kv.Commit(ctx, nil, []state.Op{s.AmendedOp(want)}); err != nil {
			t.Fatal(err)
		}
		a, err := s.Amended(ctx)
		if a.Revision <= written {
			t.Errorf("the revision is %d after %d", a.Revision, written)
		}
		written, want.Revision = a.Revision, a.Revision
		if err != nil || a != want {
			t.Errorf("%+v, %v; want %+v", a, err, want)
		}
	}
	put(t, kv, s.Path()+"/amended", `{"v":1,`)
	if _, err := s.Amended(ctx); err == nil || !strings.Contains(err.Error(), "/amended") {
		t.Errorf("a torn note: %v", err)
	}
	put(t, kv, s.Path()+"/rebuilt", `{"v":1,`)
	found := map[state.Part]bool{}
	ds, err := s.Damaged(ctx)
	for _, d := range ds {
		found[d.Part] = true
	}
	if err != nil || !found[state.PartAmended] || !found[state.PartRebuilt] {
		t.Errorf("damaged are %+v, %v", ds, err)
	}
}

func record(name string) state.Record {
	ref := schema.Ref{Scope: "site", Kind: "carbide.vpc", Name: name}
	return state.Record{
		Ref: ref, ID: "id-" + name, Incarnation: 2, Gone: true,
		Spec: schema.Object{
			"tenant": "acme", "vni": int64(1) << 60, "ratio": 0.5, "on": true, "none": nil,
			"labels": map[string]any{"a": "b<&>\u2028"}, "list": []any{int64(1), "x", map[string]any{}},
		},
		After:    []schema.Ref{{Scope: "site", Kind: "carbide.tenant", Name: "acme"}},
		Protect:  true,
		OnRemove: schema.Forget,
		Ignore:   []string{"labels"},
		Run:      "r1",
		At:       time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
	}
}

func records(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	ctx := t.Context()
	if rs, err := s.Records(ctx); err != nil || len(rs) != 0 {
		t.Errorf("no records: %v, %v", rs, err)
	}
	const n = 1000
	var wanted []state.Record
	var ops []state.Op
	for i := range n {
		r := record(fmt.Sprintf("vpc-%04d", i))
		wanted = append(wanted, r)
		ops = append(ops, s.RecordOp(r))
		if len(ops) == state.MaxOps || i == n-1 {
			commit(t, kv, nil, ops)
			ops = nil
		}
	}
	got, err := s.Records(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Fatal(diff)
	}
	one, err := s.Record(ctx, wanted[7].Ref)
	if err != nil || cmp.Diff(wanted[7], one) != "" {
		t.Errorf("one alone: %+v, %v", one, err)
	}
	commit(t, kv, nil, []state.Op{s.ForgetOp(wanted[7].Ref)})
	if _, err := s.Record(ctx, wanted[7].Ref); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("a forgotten one: %v", err)
	}
	if got, err := s.Records(ctx); err != nil || len(got) != n-1 {
		t.Errorf("%d records, %v; want %d", len(got), err, n-1)
	}
	// For one kind in one scope, nothing is read of another whose name begins alike.
	for _, ref := range []string{"site/far.net/b", "site/far.net/a", "site/far.network/a", "n1/far.net/a", "n11/far.net/a"} {
		r := record("")
		if r.Ref, err = schema.ParseRef(ref); err != nil {
			t.Fatal(err)
		}
		put(t, kv, s.Path()+"/resource/"+ref, string(s.RecordOp(r).Value))
	}
	for place, want := range map[string]string{"site/far.net": "[site/far.net/a site/far.net/b]", "n1/far.net": "[n1/far.net/a]", "n2/far.net": "[]"} {
		scope, kind, _ := strings.Cut(place, "/")
		of, err := s.RecordsOf(ctx, scope, kind)
		refs := make([]schema.Ref, len(of))
		for i := range of {
			refs[i] = of[i].Ref
		}
		if got := fmt.Sprint(refs); err != nil || got != want {
			t.Errorf("records of %s: %s, %v, want %s", place, got, err, want)
		}
	}
	got, err = s.Records(ctx) // the site comes first, which its keys do not
	if err != nil || len(got) != n-1+5 || !slices.IsSortedFunc(got, state.ByRef) {
		t.Errorf("%d records, %v; want %d in the order of their refs", len(got), err, n-1+5)
	}
	if got, err := state.New(kv, site+"-2").Records(ctx); err != nil || len(got) != 0 {
		t.Errorf("another site sees %d records, %v", len(got), err)
	}
}

// newerLayout proves W8: what a newer program wrote is refused by the name of its key, wherever it is.
func newerLayout(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	ref := record("a").Ref
	for key, read := range map[string]func(context.Context) error{
		"resource/" + ref.String():         func(ctx context.Context) error { _, err := s.Record(ctx, ref); return err },
		"resource/site/carbide.vpc/b":      func(ctx context.Context) error { _, err := s.Records(ctx); return err },
		"run/r1":                           func(ctx context.Context) error { _, err := s.Run(ctx, "r1"); return err },
		"spent/d":                          func(ctx context.Context) error { _, _, err := s.Spent(ctx, "d"); return err },
		"document/head":                    func(ctx context.Context) error { _, err := s.Head(ctx); return err },
		"document/log/0000000000000000003": func(ctx context.Context) error { _, err := s.History(ctx); return err },
		"audit/a":                          func(ctx context.Context) error { _, err := s.Audits(ctx); return err },
		"leader":                           func(ctx context.Context) error { _, err := s.LockInfo(ctx); return err },
	} {
		for _, value := range []string{`{"v":2,"ref":"site/a.b/c","scope":"site"}`, `{"serial":1}`, `{"v":0}`} {
			put(t, kv, s.Path()+"/"+key, value)
			if err := read(t.Context()); err == nil || !strings.Contains(err.Error(), s.Path()+"/"+key) {
				t.Errorf("%s with %s: %v, want an error that names it", key, value, err)
			}
		}
		remove(t, kv, s.Path()+"/"+key)
	}
	if kept := list(t, kv, s.Path()+"/"); len(kept) != 0 {
		t.Errorf("%v remain", kept)
	}
	commit(t, kv, nil, []state.Op{s.PutRunOp(state.Run{ID: "r2"})})
	if it, err := s.Get(t.Context(), s.Path()+"/run/r2"); err != nil || !bytes.HasPrefix(it.Value, []byte(`{"v":1,`)) {
		t.Errorf("a run is stored as %s, %v", it.Value, err)
	}
}
