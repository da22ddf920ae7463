package trust_test

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/internal/dsse"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/trust"
)

func sign(t *testing.T, d *trust.Document, keys ...ed25519.PrivateKey) []byte {
	t.Helper()
	envelope, err := trust.Sign(d, keys...)
	if err != nil {
		t.Fatal(err)
	}
	return envelope
}

// next returns the proposal for the next document.
func (b *bed) next() *trust.Document {
	b.t.Helper()
	d, err := b.Proposal()
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// Documents that are refused as the successor of version 1, each for its reason, and by a node as well.
func TestVerifyRefused(t *testing.T) {
	b := newBed(t)
	id := b.node("gpu-01")
	first, roots, fresh := b.Document(), b.roots, trust.NewRoots(3)
	publics := func(keys []ed25519.PrivateKey) (all []ed25519.PublicKey) {
		for _, k := range keys {
			all = append(all, k.Public().(ed25519.PublicKey))
		}
		return all
	}
	with := func(change func(d *trust.Document), keys ...ed25519.PrivateKey) []byte {
		d := *b.next()
		if change != nil {
			change(&d)
		}
		return sign(t, &d, keys...)
	}
	payload := func(old, now string) []byte { // signed, and not as Sign would
		e, err := dsse.Open(with(nil, roots...), trust.MaxDocument)
		if err != nil || !strings.Contains(string(e.Payload), old) {
			t.Fatalf("%v: %s is not in %s", err, old, e.Payload)
		}
		return dsse.Seal(trust.Type, []byte(strings.Replace(string(e.Payload), old, now, 1)), roots...)
	}
	for name, c := range map[string]struct {
		envelope []byte
		want     error
	}{
		"the one after the next":       {with(func(d *trust.Document) { d.Version = 3 }, roots...), trust.ErrVersion},
		"another site":                 {with(func(d *trust.Document) { d.Site.ID = otherID }, roots...), trust.ErrSite},
		"one signature":                {with(nil, roots[0]), trust.ErrThreshold},
		"one signature, twice":         {with(nil, roots[0], roots[0]), trust.ErrThreshold},
		"strangers":                    {with(nil, fresh...), trust.ErrThreshold},
		"a root and a stranger":        {with(nil, roots[0], fresh[0]), trust.ErrThreshold},
		"new roots, by themselves":     {with(func(d *trust.Document) { d.Roots = publics(fresh) }, fresh...), trust.ErrThreshold},
		"new roots, by the old":        {with(func(d *trust.Document) { d.Roots = publics(fresh) }, roots...), trust.ErrThreshold},
		"new roots, by one of the old": {with(func(d *trust.Document) { d.Roots = publics(fresh) }, append(slices.Clone(fresh), roots[0])...), trust.ErrThreshold},
		"a lower threshold, by one":    {with(func(d *trust.Document) { d.Threshold = 1 }, roots[0]), trust.ErrThreshold},
		"a higher one, by too few":     {with(func(d *trust.Document) { d.Threshold = 3 }, roots[:2]...), trust.ErrThreshold},
		"a field more":                 {payload(`{"version"`, `{"x":1,"version"`), trust.ErrDocument},
		"a field twice":                {payload(`{"version":2`, `{"version":2,"version":2`), trust.ErrDocument},
		"a folded name":                {payload(`"version"`, `"Version"`), trust.ErrDocument},
		"a fraction":                   {payload(`"version":2`, `"version":2.5`), trust.ErrDocument},
		"a serial of the site":         {payload(`"name":"fra1"`, `"name":"fra1","serial":7`), trust.ErrDocument},
		"something behind":             {dsse.Seal(trust.Type, append(payloadOf(t, with(nil, roots...)), " {}"...), roots...), trust.ErrDocument},
		"another type":                 {dsse.Seal("application/vnd.converge.task.v1+json", payloadOf(t, with(nil, roots...)), roots...), trust.ErrDocument},
		"no envelope":                  {payloadOf(t, with(nil, roots...)), trust.ErrDocument},
		"nothing":                      {nil, trust.ErrDocument},
	} {
		if d, err := trust.Verify(first, c.envelope); d != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := id.Update([][]byte{c.envelope}); !errors.Is(err, c.want) || id.Document().Version != 1 {
			t.Errorf("%s, by a node: %v", name, err)
		}
		if err := b.Adopt(c.envelope); !errors.Is(err, c.want) || b.Document().Version != 1 {
			t.Errorf("%s, by the authority: %v", name, err)
		}
	}
	// Another version 1, well signed, replaces nothing.
	other := *first
	other.NotAfter = other.NotAfter.Add(time.Hour)
	envelope := sign(t, &other, roots...)
	if _, err := trust.Verify(first, envelope); !errors.Is(err, trust.ErrVersion) {
		t.Error(err)
	}
	if err := id.Update([][]byte{envelope}); err != nil || !id.Document().NotAfter.Equal(first.NotAfter) {
		t.Error(err)
	}
	if _, err := trust.Verify(first, with(nil, roots[1:]...)); err != nil {
		t.Errorf("two of three: %v", err)
	}
	if _, err := trust.Verify(first, with(func(d *trust.Document) { d.Roots = publics(fresh) }, append(slices.Clone(fresh[:2]), roots[1:]...)...)); err != nil {
		t.Errorf("new roots, by both: %v", err)
	}
}

func payloadOf(t *testing.T, envelope []byte) []byte {
	t.Helper()
	e, err := dsse.Open(envelope, trust.MaxDocument)
	if err != nil {
		t.Fatal(err)
	}
	return e.Payload
}

// What no roots can make valid.
func TestDocumentRefused(t *testing.T) {
	b := newBed(t)
	for name, change := range map[string]func(d *trust.Document){
		"no version":       func(d *trust.Document) { d.Version = 0 },
		"no site":          func(d *trust.Document) { d.Site.ID = "" },
		"a site in braces": func(d *trust.Document) { d.Site.ID = "{" + siteID + "}" },
		"a bad name":       func(d *trust.Document) { d.Site.Name = "Fra 1" },
		"no roots":         func(d *trust.Document) { d.Roots = nil },
		"a root twice":     func(d *trust.Document) { d.Roots = append(slices.Clone(d.Roots), d.Roots[0]) },
		"a short root":     func(d *trust.Document) { d.Roots = []ed25519.PublicKey{{1}, {2}} },
		"no threshold":     func(d *trust.Document) { d.Threshold = 0 },
		"too high a one":   func(d *trust.Document) { d.Threshold = 4 },
		"no CA":            func(d *trust.Document) { d.CAs = nil },
		"a damaged CA":     func(d *trust.Document) { d.CAs = []trust.Certificate{"x"} },
		"a CA twice":       func(d *trust.Document) { d.CAs = append(slices.Clone(d.CAs), d.CAs[0]) },
		"no task key":      func(d *trust.Document) { d.Tasks = nil },
		"a root for tasks": func(d *trust.Document) {
			d.Tasks = []trust.TaskKey{{ID: dsse.KeyID(d.Roots[0]), Public: d.Roots[0], NotBefore: start, NotAfter: start.Add(1)}}
		},
		"another key's id": func(d *trust.Document) { d.Tasks = slices.Clone(d.Tasks); d.Tasks[0].ID = dsse.KeyID(d.Roots[0]) },
		"a task key for long": func(d *trust.Document) {
			d.Tasks = slices.Clone(d.Tasks)
			d.Tasks[0].NotAfter = d.Tasks[0].NotAfter.Add(1)
		},
		"no validity": func(d *trust.Document) { d.NotAfter = d.NotBefore },
		"a node as CA": func(d *trust.Document) {
			ca, key := b.ca()
			d.CAs = []trust.Certificate{trust.Certificate(pemOf(issue(t, template("gpu-01", ca.SerialNumber), ca, key).Certificate[0]))}
		},
	} {
		d := *b.Document()
		change(&d)
		if _, err := trust.Sign(&d, b.roots...); !errors.Is(err, trust.ErrDocument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node that was away follows a chain through documents that have expired, and accepts no newest one that has.
func TestFollow(t *testing.T) {
	b := newBed(t)
	dir := filepath.Join(t.TempDir(), "node")
	id, err := b.bootstrap(dir, b.token("gpu-01"))
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		b.clock.add(23 * 24 * time.Hour)
		if err := b.Adopt(sign(t, b.next(), b.roots[:2]...)); err != nil {
			t.Fatal(err)
		}
	}
	all := b.Envelopes(0)
	if len(all) != 6 || len(b.Envelopes(4)) != 2 || len(b.Envelopes(6)) != 0 || len(b.Envelopes(9)) != 0 {
		t.Fatal(len(all))
	}
	var expired *trust.ExpiredError
	if err := id.Update(all[:2]); !errors.As(err, &expired) || id.Document().Version != 1 {
		t.Errorf("an old one: %v", err)
	}
	if err := id.Update(slices.Concat(all[:2], all[3:])); !errors.Is(err, trust.ErrVersion) {
		t.Errorf("a gap: %v", err)
	}
	if err := id.CatchUp(t.Context(), b.address); err != nil || id.Document().Version != 6 {
		t.Fatalf("%d, %v", id.Document().Version, err)
	}
	if err := id.Update(all); err != nil || id.Document().Version != 6 {
		t.Errorf("again: %v", err)
	}
	if again, err := trust.OpenIdentity(dir, trust.IdentityOptions{}); err != nil || again.Document().Version != 6 {
		t.Errorf("on the disk: %v", err)
	}
	// The document ends before the authorities in it: then nobody is trusted by it.
	short := *b.next()
	short.NotAfter = b.clock.now().Add(time.Hour)
	if err := b.Adopt(sign(t, &short, b.roots...)); err != nil {
		t.Fatal(err)
	}
	id = b.node("gpu-01")
	if node, err := who(t, b.address, id.TLS()); err != nil || node != "gpu-01" {
		t.Errorf("%q, %v", node, err)
	}
	b.clock.add(time.Hour)
	if _, err := who(t, b.address, id.TLS()); err == nil || !strings.Contains(err.Error(), "version 7 of the trust document expired") {
		t.Errorf("by an expired document: %v", err)
	}
}

// Online keys are replaced with an overlap: what the old ones signed stays valid, and a node needs the new document before the new
// ones are used.
func TestRotation(t *testing.T) {
	b := newBed(t)
	_, old, err := b.SignKey()
	if err != nil {
		t.Fatal(err)
	}
	ca, _ := b.ca()
	due := ca.NotAfter.Add(-trust.Overlap)
	if !b.RotateAt().Equal(due) {
		t.Errorf("due at %s", b.RotateAt())
	}
	b.clock.set(due)
	id := b.node("gpu-01")
	proposal := b.next()
	if again := b.next(); !slices.Equal(again.CAs, proposal.CAs) || again.Tasks[1].ID != proposal.Tasks[1].ID {
		t.Error("two proposals for one version")
	}
	// Each root signs where it is.
	envelope := sign(t, proposal, b.roots[2])
	if err := b.Adopt(envelope); !errors.Is(err, trust.ErrThreshold) {
		t.Error(err)
	}
	envelope, seen, err := trust.Cosign(envelope, b.roots[0])
	if err != nil || seen.Version != 2 {
		t.Fatal(err)
	}
	if err := b.Adopt(envelope); err != nil {
		t.Fatal(err)
	}
	// The old keys are used still.
	if _, k, err := b.SignKey(); err != nil || k.ID != old.ID {
		t.Errorf("%v, %v", k, err)
	}
	renewed := func() *trust.Identity {
		t.Helper()
		if err := id.Renew(t.Context(), dial(t, b.address, id.RenewTLS())); err != nil {
			t.Fatal(err)
		}
		return id
	}
	b.clock.set(id.RenewAt())
	renewed()
	if id.Document().Version != 2 {
		t.Error("the node has not learnt of the new document")
	}
	// Three days before its end, the old CA gives way, and what it issued is valid.
	b.clock.set(ca.NotAfter.Add(-3*24*time.Hour - time.Hour))
	id = b.node("gpu-01")
	if id.Certificate().CheckSignatureFrom(ca) != nil {
		t.Error("the new CA is used too early")
	}
	b.clock.add(2 * time.Hour)
	if _, k, err := b.SignKey(); err != nil || k.ID != proposal.Tasks[1].ID {
		t.Errorf("%v, %v", k, err)
	}
	if node, err := who(t, b.address, id.TLS()); err != nil || node != "gpu-01" {
		t.Errorf("of the old CA, by the new: %q, %v", node, err)
	}
	if renewed().Certificate().CheckSignatureFrom(ca) == nil {
		t.Error("the old CA is used still")
	}
	if node, err := who(t, b.address, id.TLS()); err != nil || node != "gpu-01" {
		t.Errorf("%q, %v", node, err)
	}
	// Opened again, all is as before; private keys that nothing names are gone after the next one.
	other, err := trust.Open(b.dir, trust.Options{Now: b.clock.now})
	if err != nil || other.Document().Version != 2 {
		t.Fatal(err)
	}
	b.clock.set(b.RotateAt().Add(24 * time.Hour))
	if err := b.Adopt(sign(t, b.next(), b.roots...)); err != nil {
		t.Fatal(err)
	}
	if tasks, _ := filepath.Glob(filepath.Join(b.dir, "task-*.key")); len(tasks) != 2 {
		t.Errorf("%v", tasks)
	}
	if err := other.Reload(); err != nil || other.Document().Version != 3 {
		t.Error(err)
	}
}

// With the roots beside it, for trying things out, an authority rotates by itself, when it is due.
func TestRotateDev(t *testing.T) {
	c := &clock{at: start}
	dir := filepath.Join(t.TempDir(), "a")
	a, err := trust.Init(dir, schema.Site{Name: "fra1", ID: siteID}, 1, trust.NewRoots(1), trust.Options{Now: c.now, Dev: true})
	if err != nil {
		t.Fatal(err)
	}
	if done, err := a.Rotate(); done || err != nil {
		t.Error(done, err)
	}
	c.set(a.RotateAt())
	if done, err := a.Rotate(); !done || err != nil || a.Document().Version != 2 {
		t.Error(done, err)
	}
	b := newBed(t)
	b.clock.set(b.RotateAt())
	if done, err := b.Rotate(); done || err == nil {
		t.Error("without the roots")
	}
}

// Half, three quarters and nine tenths of each lifetime raise alarms, until there is a successor.
func TestAlarms(t *testing.T) {
	b := newBed(t)
	d := b.Document()
	for days, want := range map[int][]string{0: nil, 14: nil, 15: {"the node CA 50", "the task key 50"}, 23: {"the node CA 75", "the task key 75"},
		27: {"the node CA 90", "the task key 90"}, 45: {"the trust document 50", "the node CA 90", "the task key 90"}} {
		var got []string
		for _, a := range d.Alarms(d.NotBefore.Add(time.Duration(days) * 24 * time.Hour)) {
			got = append(got, a.What+" "+map[int]string{50: "50", 75: "75", 90: "90"}[a.Share])
		}
		if !slices.Equal(got, want) {
			t.Errorf("day %d: %v", days, got)
		}
	}
	b.clock.set(b.RotateAt())
	if alarms := b.next().Alarms(b.clock.now()); alarms != nil {
		t.Errorf("%v", alarms)
	}
}

// The directory is private, is made once, and says what is wrong with it.
func TestAuthorityDirectory(t *testing.T) {
	b := newBed(t)
	entries, err := os.ReadDir(b.dir)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
	}
	if _, err := trust.Init(b.dir, b.Site(), 2, b.roots, trust.Options{}); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("again: %v", err)
	}
	if _, err := trust.Open(filepath.Join(t.TempDir(), "none"), trust.Options{}); err == nil || !strings.Contains(err.Error(), "no trust document") {
		t.Errorf("none: %v", err)
	}
	if _, err := trust.Init(filepath.Join(t.TempDir(), "few"), schema.Site{Name: "fra1", ID: siteID}, 4, b.roots, trust.Options{}); !errors.Is(err, trust.ErrDocument) {
		t.Errorf("a threshold that nobody reaches: %v", err)
	}
	if err := os.Chmod(b.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := trust.Open(b.dir, trust.Options{}); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("open to others: %v", err)
	}
	// A root key's file is as openssl writes it.
	path := filepath.Join(t.TempDir(), "root.key")
	if err := os.WriteFile(path, trust.MarshalKey(b.roots[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	if key, err := signed.ReadPrivateKey(path); err != nil || !key.Equal(b.roots[0]) {
		t.Error(err)
	}
	// All keys have expired.
	b.clock.add(31 * 24 * time.Hour)
	if _, _, err := b.SignKey(); err == nil || !strings.Contains(err.Error(), "converge trust rotate") {
		t.Error(err)
	}
	if _, err := b.Issue("gpu-01", request(t, newKey(), ""), 1); err == nil || !strings.Contains(err.Error(), "converge trust rotate") {
		t.Error(err)
	}
}
