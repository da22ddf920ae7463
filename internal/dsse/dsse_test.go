package dsse_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/internal/dsse"
)

const kind = "application/vnd.converge.test.v1+json"

func pair(seed byte) (ed25519.PublicKey, ed25519.PrivateKey) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	return key.Public().(ed25519.PublicKey), key
}

// Two of three roots sign. Whoever reads it counts the keys that it knows, not the signatures.
func Example() {
	_, first := pair(1)
	_, second := pair(2)
	data := dsse.Seal("text/plain", []byte("hello"), first, second)

	e, err := dsse.Open(data, 1<<10)
	if err != nil {
		fmt.Println(err)
		return
	}
	for seed := range byte(3) {
		root, _ := pair(seed + 1)
		fmt.Println(e.Verified(root))
	}
	fmt.Printf("%s %s\n", e.Type, e.Payload)
	// Output:
	// true
	// true
	// false
	// text/plain hello
}

// The example of the protocol: https://github.com/secure-systems-lab/dsse/blob/master/protocol.md.
func TestPAE(t *testing.T) {
	got := string(dsse.PAE("http://example.com/HelloWorld", []byte("hello world")))
	if want := "DSSEv1 29 http://example.com/HelloWorld 11 hello world"; got != want {
		t.Errorf("%q", got)
	}
	if got := string(dsse.PAE("", nil)); got != "DSSEv1 0  0 " {
		t.Errorf("%q", got)
	}
}

func TestRoundTrip(t *testing.T) {
	pub, key := pair(1)
	_, other := pair(2)
	for _, payload := range [][]byte{{}, {0, 0xff, '\n'}, []byte(`{"a":1}`), bytes.Repeat([]byte("x"), 1<<16)} {
		data := dsse.Seal(kind, payload, key, other)
		e, err := dsse.Open(data, len(data))
		if err != nil {
			t.Fatal(err)
		}
		want := &dsse.Envelope{Type: kind, Payload: payload, Signatures: []dsse.Signature{dsse.Sign(key, kind, payload), dsse.Sign(other, kind, payload)}}
		if diff := cmp.Diff(want, e); diff != "" {
			t.Error(diff)
		}
		if e.Signatures[0].KeyID != dsse.KeyID(pub) || !ed25519.Verify(pub, dsse.PAE(kind, payload), e.Signatures[0].Sig) {
			t.Errorf("%+v", e.Signatures[0])
		}
		if !bytes.Equal(e.JSON(), data) {
			t.Errorf("%s", e.JSON())
		}
		if _, err := dsse.Open(data, len(data)-1); !errors.Is(err, dsse.ErrEnvelope) {
			t.Errorf("one byte too large: %v", err)
		}
	}
	if e, err := dsse.Open(dsse.Seal(kind, nil, key), 1<<10); err != nil || len(e.Payload) != 0 || !e.Verified(pub) {
		t.Errorf("no payload: %+v, %v", e, err)
	}
}

// A signature counts for the key that it matches over the type and the payload, whatever key it names.
func TestVerified(t *testing.T) {
	pub, key := pair(1)
	other, stranger := pair(2)
	good := dsse.Sign(key, kind, []byte("a"))
	strange := dsse.Sign(stranger, kind, []byte("a"))
	for name, c := range map[string]struct {
		kind, payload string
		sigs          []dsse.Signature
		want          bool
	}{
		"good":             {kind, "a", []dsse.Signature{good}, true},
		"no key named":     {kind, "a", []dsse.Signature{{Sig: good.Sig}}, true},
		"another named":    {kind, "a", []dsse.Signature{{KeyID: dsse.KeyID(other), Sig: good.Sig}}, true},
		"second":           {kind, "a", []dsse.Signature{strange, good}, true},
		"none":             {kind, "a", nil, false},
		"another's":        {kind, "a", []dsse.Signature{strange}, false},
		"forged":           {kind, "a", []dsse.Signature{{KeyID: good.KeyID, Sig: strange.Sig}}, false},
		"other payload":    {kind, "b", []dsse.Signature{good}, false},
		"other type":       {kind + "x", "a", []dsse.Signature{good}, false},
		"cut":              {kind, "a", []dsse.Signature{{KeyID: good.KeyID, Sig: good.Sig[:63]}}, false},
		"empty":            {kind, "a", []dsse.Signature{{KeyID: good.KeyID}}, false},
		"of the bare text": {kind, "a", []dsse.Signature{{KeyID: good.KeyID, Sig: ed25519.Sign(key, []byte("a"))}}, false},
	} {
		e := &dsse.Envelope{Type: c.kind, Payload: []byte(c.payload), Signatures: c.sigs}
		if got := e.Verified(pub); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if e.Verified(nil) || e.Verified(pub[:31]) {
			t.Errorf("%s: no key verifies it", name)
		}
	}
}

func TestOpenIsStrict(t *testing.T) {
	_, key := pair(1)
	payload := []byte(`canary...`)
	data := string(dsse.Seal(kind, payload, key))
	s := dsse.Sign(key, kind, payload)
	b64, sig := base64.StdEncoding.EncodeToString(payload), base64.StdEncoding.EncodeToString(s.Sig)
	one := `{"keyid":"` + s.KeyID + `","sig":"` + sig + `"}`
	many := func(n int) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }

	for name, change := range map[string][2]string{
		"as it is":        {``, ``},
		"spaced":          {`{"payloadType"`, " \t\r\n{ \"payloadType\""},
		"a line end":      {`}]}`, "}]}\n"},
		"keyid missing":   {`"keyid":"` + s.KeyID + `",`, ``},
		"keyid empty":     {s.KeyID, ``},
		"another order":   {`"keyid":"` + s.KeyID + `","sig":"` + sig + `"`, `"sig":"` + sig + `","keyid":"x"`},
		"an escaped name": {`"payload"`, `"\u0070ayload"`},
		"the most":        {one, many(dsse.MaxSignatures)},
	} {
		if _, err := dsse.Open([]byte(strings.Replace(data, change[0], change[1], 1)), 1<<20); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string][2]string{
		"folded name":           {`"payload"`, `"Payload"`},
		"folded sig":            {`"sig"`, `"SIG"`},
		"folded by Unicode":     {`"sig"`, "\"\u017fig\""},
		"a name twice":          {`"payload"`, `"payload":"e30=","payload"`},
		"an escaped one":        {`"payload"`, `"payload":"e30=","\u0070ayload"`},
		"one too many":          {`{"payloadType"`, `{"x":1,"payloadType"`},
		"no payloadType":        {`"payloadType":"` + kind + `",`, ``},
		"no payload":            {`"payload":"` + b64 + `",`, ``},
		"no signatures":         {`,"signatures":[` + one + `]`, ``},
		"no sig":                {`,"sig":"` + sig + `"`, ``},
		"type is null":          {`"` + kind + `"`, `null`},
		"type is a number":      {`"` + kind + `"`, `7`},
		"type is not UTF-8":     {kind, "\xff"},
		"half a surrogate":      {kind, `\ud800`},
		"payload is null":       {`"` + b64 + `"`, `null`},
		"payload is a list":     {`"` + b64 + `"`, `[]`},
		"payload is an object":  {`"` + b64 + `"`, `{}`},
		"no base64":             {b64, `!` + b64[1:]},
		"URL base64":            {sig, strings.Repeat("-_", 43) + "=="},
		"a break in it":         {b64, b64[:4] + `\n` + b64[4:]},
		"a return in it":        {b64, b64[:4] + `\r` + b64[4:]},
		"a space in it":         {b64, b64[:4] + ` ` + b64[4:]},
		"a break behind":        {sig, sig + `\n`},
		"without padding":       {sig, strings.TrimRight(sig, "=")},
		"more padding":          {sig, sig + "===="},
		"spare bits":            {sig, sig[:85] + "x=="},
		"short":                 {sig, "AAAA"},
		"long":                  {sig, base64.StdEncoding.EncodeToString(make([]byte, 65))},
		"empty list":            {one, ``},
		"a null":                {one, `null`},
		"a text":                {one, `"` + sig + `"`},
		"list is null":          {`[` + one + `]`, `null`},
		"list is an object":     {`[` + one + `]`, one},
		"too many":              {one, many(dsse.MaxSignatures + 1)},
		"a bad second":          {one, one + `,{}`},
		"one more name":         {`"sig":`, `"alg":"none","sig":`},
		"a sig twice":           {`"sig":`, `"sig":"","sig":`},
		"keyid is a number":     {`"` + s.KeyID + `"`, `7`},
		"keyid is null":         {`"` + s.KeyID + `"`, `null`},
		"an object behind":      {`}]}`, `}]} {}`},
		"a comma behind":        {`}]}`, `}]},`},
		"a zero byte behind":    {`}]}`, "}]}\x00"},
		"a byte order mark":     {`{"payloadType"`, "\ufeff" + `{"payloadType"`},
		"cut":                   {`}]}`, `}]`},
		"in a list":             {data, `[` + data + `]`},
		"in a text":             {data, `"` + b64 + `"`},
		"empty":                 {data, ``},
		"deep":                  {one, strings.Repeat(`[`, 100_000) + strings.Repeat(`]`, 100_000)},
		"a comment":             {`}]}`, `}]} // x`},
		"a comma before the ]":  {one, one + `,`},
		"a control char inside": {kind, kind + "\n"},
	} {
		bad := strings.Replace(data, change[0], change[1], 1)
		if bad == data {
			t.Fatalf("%s: nothing was changed", name)
		}
		if e, err := dsse.Open([]byte(bad), 1<<20); !errors.Is(err, dsse.ErrEnvelope) || e != nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
}

func TestParseKeyID(t *testing.T) {
	pub, _ := pair(1)
	if got, err := dsse.ParseKeyID(dsse.KeyID(pub)); err != nil || !got.Equal(pub) {
		t.Errorf("%v, %v", got, err)
	}
	id := dsse.KeyID(pub)
	for _, bad := range []string{"", "ed25519:", "ed25519:AAAA", "rsa:" + id[8:], id[8:], "ED25519:" + id[8:], id + "\n", "\n" + id, id + "AAAA", id[:len(id)-1], id[:50] + "\n" + id[50:]} {
		if _, err := dsse.ParseKeyID(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// What Open accepts, it accepts again as JSON writes it, with the same signatures.
func FuzzOpen(f *testing.F) {
	pub, key := pair(1)
	_, other := pair(2)
	f.Add(dsse.Seal(kind, []byte("{}"), key))
	f.Add(dsse.Seal("", nil, key, other))
	f.Add([]byte(`{"payloadType":"","payload":"","signatures":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := dsse.Open(data, 1<<16)
		if err != nil {
			return
		}
		again, err := dsse.Open(e.JSON(), 1<<20)
		if err != nil || !cmp.Equal(e, again) || e.Verified(pub) != again.Verified(pub) {
			t.Fatalf("%+v became %+v, %v", e, again, err)
		}
	})
}
