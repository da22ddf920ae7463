package signed_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"converge.dev/converge/schema/signed"
)

func pair(seed byte) (ed25519.PublicKey, ed25519.PrivateKey) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	return key.Public().(ed25519.PublicKey), key
}

// What is signed is DSSE's encoding, so that other tools can make and check the signature.
func TestSignAsDSSE(t *testing.T) {
	pub, key := pair(1)
	s := signed.Sign(key, []byte(`{"a":1}`))
	if s.Key != signed.Name(pub) || !ed25519.Verify(pub, []byte(`DSSEv1 41 application/vnd.converge.document.v1+json 7 {"a":1}`), s.Sig) {
		t.Errorf("%+v", s)
	}
}

// A signature is attributed to the key that it matches, whatever key it names.
func TestCheck(t *testing.T) {
	pub, key := pair(1)
	other, stranger := pair(2)
	trust := signed.Trust{{Name: "cloud", Key: pub}}
	doc := []byte(`{"a":1}`)
	good, strange := signed.Sign(key, doc), signed.Sign(stranger, doc)
	forged := signed.Signature{Key: good.Key, Sig: strange.Sig}
	for name, c := range map[string]struct {
		s       signed.Signature
		doc     string
		by, key string
		bad     bool
	}{
		"good":             {s: good, doc: `{"a":1}`, by: "cloud", key: signed.Name(pub)},
		"no key named":     {s: signed.Signature{Sig: good.Sig}, doc: `{"a":1}`, by: "cloud", key: signed.Name(pub)},
		"another named":    {s: signed.Signature{Key: signed.Name(other), Sig: good.Sig}, doc: `{"a":1}`, by: "cloud", key: signed.Name(pub)},
		"not trusted":      {s: strange, doc: `{"a":1}`, key: signed.Name(other)},
		"forged":           {s: forged, doc: `{"a":1}`, bad: true},
		"other bytes":      {s: good, doc: `{"a":2}`, bad: true},
		"the same, spaced": {s: good, doc: `{"a": 1}`, bad: true},
		"of the bare text": {s: signed.Signature{Key: good.Key, Sig: ed25519.Sign(key, doc)}, doc: `{"a":1}`, bad: true},
		"none":             {s: signed.Signature{Key: good.Key}, doc: `{"a":1}`, bad: true},
		"a stranger's own": {s: signed.Signature{Key: "cloud", Sig: strange.Sig}, doc: `{"a":1}`, bad: true},
	} {
		by, k, err := trust.Check(c.s, []byte(c.doc))
		if by != c.by || k != c.key || (err != nil) != c.bad || c.bad && !errors.Is(err, signed.ErrSignature) {
			t.Errorf("%s: %q, %q, %v", name, by, k, err)
		}
	}
}

func TestOpen(t *testing.T) {
	_, key := pair(1)
	doc := []byte(`{"apiVersion":"canary"}`)
	s := signed.Sign(key, doc)
	e := string(signed.Envelope(s, doc))
	payload, got, err := signed.Open([]byte(" " + e + "\n"))
	if err != nil || !bytes.Equal(payload, doc) || got.Key != s.Key || !bytes.Equal(got.Sig, s.Sig) {
		t.Fatalf("%s, %+v, %v", payload, got, err)
	}
	for _, plain := range []string{`{}`, string(doc), ``, `[`, `{"apiVersion": {"payload": 1}}`, `null`, `{"a"`} {
		if b, got, err := signed.Open([]byte(plain)); err != nil || got != nil || string(b) != plain {
			t.Errorf("%s: %s, %v, %v", plain, b, got, err)
		}
	}
	b64 := base64.StdEncoding.EncodeToString(doc)
	sig := base64.StdEncoding.EncodeToString(s.Sig)
	for name, change := range map[string][2]string{
		"folded name":         {`"payload"`, `"Payload"`},
		"a name twice":        {`"payload"`, `"payload":"e30=","payload"`},
		"an escaped one":      {`"payload"`, `"payload":"e30=","\u0070ayload"`},
		"one too many":        {`{"payloadType"`, `{"x":1,"payloadType"`},
		"one too few":         {`"payloadType":"` + signed.PayloadType + `",`, ``},
		"another type":        {`v1+json`, `v2+json`},
		"no type":             {`"` + signed.PayloadType + `"`, `null`},
		"no base64":           {b64, `!` + b64[1:]},
		"base64 with a break": {b64, b64[:4] + `\n` + b64[4:]},
		"without padding":     {sig, strings.TrimRight(sig, "=")},
		"spare bits":          {sig, sig[:85] + "x=="},
		"a short signature":   {sig, "AAAA"},
		"no signature":        {`[{"keyid":"` + s.Key + `","sig":"` + sig + `"}]`, `[]`},
		"two":                 {`"signatures":[`, `"signatures":[{"keyid":"","sig":"` + sig + `"},`},
		"a signature is null": {`[{"keyid":"` + s.Key + `","sig":"` + sig + `"}]`, `[null]`},
		"one more name":       {`"sig":`, `"alg":"none","sig":`},
		"a sig twice":         {`"sig":`, `"sig":"","sig":`},
		"a number":            {`"` + s.Key + `"`, `7`},
		"something behind":    {`}]}`, `}]} {}`},
		"cut":                 {`}]}`, `}]`},
	} {
		bad := strings.Replace(e, change[0], change[1], 1)
		if bad == e {
			t.Fatalf("%s: nothing was changed in %s", name, e)
		}
		if b, got, err := signed.Open([]byte(bad)); !errors.Is(err, signed.ErrEnvelope) || got != nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %s, %v, %v", name, b, got, err)
		}
	}
	if _, _, err := signed.Open(signed.Envelope(s, bytes.Repeat([]byte("x"), signed.MaxSize))); !errors.Is(err, signed.ErrEnvelope) {
		t.Errorf("too large: %v", err)
	}
}

// A private key is accepted when it is in the format of openssl and inaccessible to others; an error repeats nothing of the file.
func TestReadKeys(t *testing.T) {
	pub, key := pair(1)
	dir := t.TempDir()
	write := func(name string, mode os.FileMode, data []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	block := func(kind string, b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	private := block("PRIVATE KEY", pkcs8, err)
	pkix, err := x509.MarshalPKIXPublicKey(pub)
	public := block("PUBLIC KEY", pkix, err)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := x509.MarshalPKCS8PrivateKey(ec)
	ecPrivate := block("PRIVATE KEY", ecKey, err)
	ecPub, err := x509.MarshalPKIXPublicKey(ec.Public())
	ecPublic := block("PUBLIC KEY", ecPub, err)

	for _, mode := range []os.FileMode{0o600, 0o400} {
		if got, err := signed.ReadPrivateKey(write("good.key", mode, private)); err != nil || !got.Equal(key) {
			t.Errorf("mode %04o: %v", mode, err)
		}
		_ = os.Remove(filepath.Join(dir, "good.key"))
	}
	for name, data := range map[string][]byte{"PEM": public, "text": []byte(signed.Name(pub) + "\n")} {
		if got, err := signed.ReadPublicKey(write("good.pub", 0o644, data)); err != nil || !got.Equal(pub) {
			t.Errorf("%s: %v", name, err)
		}
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, path := range map[string]string{
		"no such file": filepath.Join(dir, "none"), "regular file": pipe, "is not a regular": dir,
		"mode 0640": write("group.key", 0o640, private), "mode 0604": write("others.key", 0o604, private),
		"no private key": write("text.key", 0o600, []byte("canary")), "encrypted": write("enc.key", 0o600, block("ENCRYPTED PRIVATE KEY", []byte("canary"), nil)),
		"contains a public key": write("pub.key", 0o600, public), "another algorithm": write("ec.key", 0o600, ecPrivate),
		"PKCS#8": write("sec1.key", 0o600, block("EC PRIVATE KEY", []byte("canary"), nil)), "damaged": write("bad.key", 0o600, block("PRIVATE KEY", []byte("canary"), nil)),
		"one block": write("two.key", 0o600, append(bytes.Clone(private), private...)), "too large for a key": write("large.key", 0o600, make([]byte, 1<<20)),
	} {
		if _, err := signed.ReadPrivateKey(path); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", want, err)
		}
	}
	for want, data := range map[string][]byte{
		"no public key": []byte("canary"), "contains a private key": private, "another algorithm": ecPublic, "damaged": block("PUBLIC KEY", []byte("canary"), nil),
		"one block": append(bytes.Clone(public), public...),
	} {
		if _, err := signed.ReadPublicKey(write("bad.pub", 0o644, data)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, text := range []string{"", "ed25519:", "ed25519:AAAA", "rsa:" + signed.Name(pub)[8:], signed.Name(pub)[8:], signed.Name(pub) + "\n", signed.Name(pub) + "AAAA"} {
		if _, err := signed.ParseName(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
