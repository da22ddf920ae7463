package command

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

func keyOf(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

var cloud, stranger = keyOf(1), keyOf(2)

// told is in every document of these tests, and must not be repeated before its signature is verified.
const told = "canary-of-the-content"

// inboxDocument returns a document as a cloud writes it, with its own spaces and order.
func inboxDocument(name, id string, serial int, from string) []byte {
	return fmt.Appendf(nil, `{ "site": {"serial": %d, "name": %q, "id": %q}, "apiVersion": "converge.dev/v1",
 "carbide": {"tenant": {"acme": {"display_name": %q}}, "os_image": {"img": {"tenant": "acme", "source_url": "https://images.example/a.qcow2", "auth_type": "bearer",
  "digest": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "auth_token": {"from": %q}}}}}`, serial, name, id, told, from)
}

const (
	siteID  = "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"
	otherID = "6a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"
	allowed = "env:IMAGE_TOKEN"
)

// trusting returns a session of a site that trusts the cloud, at serial 41, and its output.
func trusting(tb testing.TB, a *app, require bool) (*session, *bytes.Buffer) {
	tb.Helper()
	var said bytes.Buffer
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer null.Close()
	a.out, a.err = &output{w: &said}, &output{w: &said}
	a.env["IMAGE_TOKEN"] = "of the images"
	a.sys.Stdout, a.sys.Stderr = null, null
	a.view = a.newView(false, nil)
	if _, err := a.schema(); err != nil {
		tb.Fatal(err)
	}
	kv := mem.New(mem.Options{})
	s := &session{app: a, kv: kv, site: "fra1", store: state.New(kv, "fra1"), conf: &config.File{
		Secrets: config.Secrets{Env: []string{"IMAGE_TOKEN"}},
		Trust:   config.Trust{Require: require, Documents: []config.Signer{{Name: "cloud", Key: signed.Name(cloud.Public().(ed25519.PublicKey))}}},
	}}
	putSigned(tb, s, inboxDocument("fra1", siteID, 41, allowed), cloud, 41)
	return s, &said
}

func putSigned(tb testing.TB, s *session, body []byte, key ed25519.PrivateKey, serial int64) {
	tb.Helper()
	sig := signed.Sign(key, body)
	put(tb, s, body, &sig, serial)
}

func put(tb testing.TB, s *session, body []byte, sig *signed.Signature, serial int64) {
	tb.Helper()
	sum := sha256.Sum256(body)
	if _, err := s.store.PutSigned(context.Background(), body, hex.EncodeToString(sum[:]), sig, serial, "somebody", state.AnyRevision); err != nil {
		tb.Fatal(err)
	}
}

func leave(tb testing.TB, s *session, body []byte) {
	tb.Helper()
	if _, err := s.kv.Commit(context.Background(), nil, []state.Op{{Key: s.store.Path() + "/inbox", Value: body}}); err != nil {
		tb.Fatal(err)
	}
}

// A document is checked wherever it is read, so one that was changed in the store is refused everywhere.
func TestChangedInTheStore(t *testing.T) {
	good := inboxDocument("fra1", siteID, 42, allowed)
	sig := signed.Sign(cloud, good)
	for name, c := range map[string]struct {
		change  func(*session)
		require bool
	}{
		"other bytes under the signature": {func(s *session) { put(t, s, bytes.Replace(good, []byte("acme"), []byte("acne"), 2), &sig, 42) }, false},
		"a higher serial":                 {func(s *session) { put(t, s, good, &sig, 43) }, false},
		"no signature":                    {func(s *session) { put(t, s, good, nil, 42) }, true},
		"a stranger's":                    {func(s *session) { putSigned(t, s, good, stranger, 42) }, true},
		"a stranger's under a good name": {func(s *session) {
			put(t, s, good, &signed.Signature{Key: sig.Key, Sig: signed.Sign(stranger, good).Sig}, 42)
		}, false},
	} {
		s, _ := trusting(t, testApp(), c.require)
		if doc, err := s.stored(t.Context(), 0); err != nil || doc.Author.Signer != "cloud" || doc.Author.Own || doc.Site.Serial != 41 {
			t.Fatalf("as it was: %v", err)
		}
		c.change(s)
		if doc, err := s.stored(t.Context(), 0); doc != nil || s.status(err) != exitRefused || strings.Contains(err.Error(), told) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A signed document is stored as it was signed, to the byte, and read back as signed; putting it again changes nothing, and
// an existing unsigned one gets its signature.
func TestSignedStays(t *testing.T) {
	s, _ := trusting(t, testApp(), true)
	good := inboxDocument("fra1", siteID, 42, allowed)
	s.conf.Trust.Require = false
	put(t, s, good, nil, 42)
	leave(t, s, signed.Envelope(signed.Sign(cloud, good), good))
	if err := s.takeInbox(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.conf.Trust.Require = true
	doc, err := s.stored(t.Context(), 0)
	if err != nil || !bytes.Equal(doc.JSON, good) || doc.Author.Signer != "cloud" || doc.Author.By != "inbox" || doc.Site.Serial != 42 {
		t.Fatalf("%+v, %v", doc, err)
	}
	before, err := s.store.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, good, nil, 0) // like an apply of it
	if after, err := s.store.Head(t.Context()); err != nil || after.Revision != before.Revision || after.Signature == nil {
		t.Errorf("%+v, %v", after, err)
	}
}

// A mutation is a change of a document by an attacker who can write the inbox, but does not have the cloud's key; or, where
// signs is set, by one who has it.
type mutation struct {
	name  string
	do    func(r *rand.Rand, envelope []byte) []byte
	signs bool
}

func replaced(pairs ...string) func(*rand.Rand, []byte) []byte {
	return func(r *rand.Rand, b []byte) []byte {
		i := 2 * r.IntN(len(pairs)/2)
		return bytes.Replace(b, []byte(pairs[i]), []byte(pairs[i+1]), 1)
	}
}

var mutations = []mutation{
	{"none", func(_ *rand.Rand, b []byte) []byte { return b }, true},
	{"a bit", func(r *rand.Rand, b []byte) []byte { b[r.IntN(len(b))] ^= 1 << r.IntN(8); return b }, false},
	{"a byte", func(r *rand.Rand, b []byte) []byte { b[r.IntN(len(b))] = byte(r.IntN(256)); return b }, false},
	{"cut", func(r *rand.Rand, b []byte) []byte { return b[:r.IntN(len(b))] }, false},
	{"left out", func(r *rand.Rand, b []byte) []byte {
		i := r.IntN(len(b))
		return append(b[:i:i], b[min(len(b), i+1+r.IntN(4)):]...)
	}, false},
	{"twice", func(r *rand.Rand, b []byte) []byte {
		i := r.IntN(len(b))
		j := i + r.IntN(len(b)-i)
		return append(b[:j:j], b[i:]...)
	}, false},
	{"spaces", func(r *rand.Rand, b []byte) []byte {
		return append([]byte(" \n\t"[:r.IntN(4)]), append(b, " \n"[:r.IntN(3)]...)...)
	}, false},
	{"duplicate key", replaced(`"payload":`, `"payload":"e30=","payload":`, `"sig":`, `"sig":"AA==","sig":`, `"serial":`, `"serial": 99, "serial":`, `"site":`, `"site": {}, "site":`, `"from":`, `"from": "env:AWS_SECRET_ACCESS_KEY", "from":`), false},
	{"folded name", replaced(`"payload":`, `"Payload":`, `"signatures":`, `"Signatures":`, `"payloadType":`, `"payloadtype":`, `"site":`, `"SITE":`, `"serial":`, `"Serial":`, `"from":`, `"From":`, `"auth_token":`, `"auth_Token":`), false},
	{"another key id", replaced(`"keyid":"ed25519:`, `"keyid":"ed25519:A`, `"keyid":"`, `"keyid":"x`, `"keyid":`, `"keyID":`), false},
	{"another type", replaced(`v1+json`, `v1+JSON`, `v1+json`, `v2+json`, `"application/`, `"text/`), false},
	{"another site", func(r *rand.Rand, _ []byte) []byte {
		if r.IntN(2) == 0 {
			return inboxDocument("fra1", otherID, 42, allowed)
		}
		return inboxDocument("ber1", siteID, 42, allowed)
	}, true},
	{"a serial that is no digits", func(r *rand.Rand, doc []byte) []byte {
		return bytes.Replace(doc, []byte("42"), []byte([]string{"42.0", "42e0", "4.2e1", "420e-1"}[r.IntN(4)]), 1)
	}, true},
	{"lower serial", func(r *rand.Rand, _ []byte) []byte { return inboxDocument("fra1", siteID, r.IntN(42), allowed) }, true},
	{"a secret", func(r *rand.Rand, _ []byte) []byte {
		return inboxDocument("fra1", siteID, 42, []string{"env:AWS_SECRET_ACCESS_KEY", "env:IMAGE_TOKEN2", "file:/etc/shadow", "file:../x", "file:x", "env:*"}[r.IntN(6)])
	}, true},
}

// inboxForms are the forms of a document in the inbox, for a site that requires signatures and for one that does not.
var inboxForms = []struct {
	name            string
	signed, require bool
	by              ed25519.PrivateKey
}{
	{"signed, required", true, true, cloud}, {"signed", true, false, cloud}, {"plain, required", false, true, nil}, {"plain", false, false, nil}, {"a stranger's, required", true, true, stranger}, {"a stranger's", true, false, stranger},
}

// carried makes a plan of a document and reads it as a process does that resumes the run.
func carried(doc *schema.Document) error {
	file, _, err := (&plan.Plan{Format: plan.Format, ID: "1", Site: doc.Site, Document: doc.JSON, Digest: doc.Digest, MaxDestroy: plan.DefaultMaxDestroy}).EncodeFile(make([]byte, 32))
	if err == nil {
		_, err = plan.DecodeFile(file)
	}
	return err
}

// TestTortureSignedInbox: a document in the inbox that was changed in any way is refused, without a change and without repeating its
// words where it had to be signed; or it is accepted like one that was written so.
func TestTortureSignedInbox(t *testing.T) {
	const seed = 20261122
	a := testApp()
	var names, forms []string
	for _, m := range mutations {
		names = append(names, m.name)
	}
	for _, f := range inboxForms {
		forms = append(forms, f.name)
	}
	tried, form := torture.Cover(t, "mutation", names), torture.Cover(t, "form", forms)
	ends := torture.Cover(t, "end", []string{"taken signed", "taken unsigned", "refused", "not valid"})
	n := torture.Scale(500, 5_000, 100_000)
	var s *session
	var said *bytes.Buffer
	for i := range n {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		m, f := mutations[i%len(mutations)], inboxForms[i/len(mutations)%len(inboxForms)]
		doc := inboxDocument("fra1", siteID, 42, allowed)
		if s == nil { // a refused document changes nothing, so that the next may use the same site
			s, said = trusting(t, a, f.require)
		}
		s.conf.Trust.Require = f.require
		said.Reset()
		if m.signs {
			doc = m.do(r, bytes.Clone(doc))
		}
		body := bytes.Clone(doc)
		if f.signed {
			body = signed.Envelope(signed.Sign(f.by, doc), doc)
		}
		if !m.signs {
			body = m.do(r, body)
		}
		tried.Reach(m.name)
		form.Reach(f.name)
		fail := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("%d, %s, %s: %s\n%s", i, m.name, f.name, fmt.Sprintf(format, args...), body)
		}
		leave(t, s, body)
		before, err := s.store.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = s.takeInbox(t.Context())
		if err != nil {
			after, herr := s.store.Head(t.Context())
			if left, _, ierr := s.store.Inbox(t.Context()); herr != nil || ierr != nil || after.Revision != before.Revision || !bytes.Equal(left, body) {
				fail("it was refused (%v), and is in the store or no longer in the inbox", err)
			}
			var secrets *engine.RefusedError
			status := s.status(err)
			switch {
			case errors.As(err, &secrets) && m.name != "a secret" && (m.signs || f.require):
				fail("its secret was refused: %v", err)
			case m.signs && (m.name == "none" && !f.require || m.name == "none" && bytes.Equal(f.by, cloud)):
				fail("nothing was changed, and it is refused: %v", err)
			case status == exitRefused:
				ends.Reach("refused")
			case status == exitError:
				ends.Reach("not valid")
			default:
				fail("exit status %d: %v", status, err)
			}
			if f.require && !(m.signs && bytes.Equal(f.by, cloud)) && (strings.Contains(said.String()+err.Error(), told) || status != exitRefused) {
				fail("exit status %d, and it says: %s %v", status, said, err)
			}
			continue
		}
		head, stored, err := s.store.Document(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Site struct {
				Name, ID string
				Serial   int64
			}
			Carbide struct {
				OSImage map[string]struct {
					AuthToken struct{ From string } `json:"auth_token"`
				} `json:"os_image"`
			}
		}
		if err := json.Unmarshal(stored, &got); err != nil {
			fail("what is stored is not JSON: %v", err)
		}
		if got.Site.Name != "fra1" || got.Site.ID != siteID || head.Serial <= before.Serial && head.Digest != before.Digest || got.Site.Serial != 0 && got.Site.Serial != head.Serial {
			fail("taken for site %+v as serial %d", got.Site, head.Serial)
		}
		for _, image := range got.Carbide.OSImage {
			if from := image.AuthToken.From; from != allowed && from != "" {
				fail("taken with the secret %s", from)
			}
		}
		read, err := s.stored(t.Context(), 0)
		s = nil
		if err != nil {
			fail("it was taken, and cannot be read: %v", err)
		}
		switch {
		case read.Author.Own:
			fail("it counts as the operator's own")
		case read.Author.Signer != "":
			if read.Author.Signer != "cloud" || !f.signed || !bytes.Equal(f.by, cloud) || !bytes.Equal(stored, doc) {
				fail("it counts as signed by %s: %s", read.Author.Signer, stored)
			}
			if err := carried(read); err != nil {
				fail("a plan of it cannot be kept: %v", err)
			}
			ends.Reach("taken signed")
		case f.require:
			fail("it is not signed and was taken: %s", stored)
		default:
			ends.Reach("taken unsigned")
		}
	}
	torture.Report(t, "J", "inbox: %d documents, plain and signed: %s; %s", n, tried, ends)
}
