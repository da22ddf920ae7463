package plan_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
)

func somePlan(t testing.TB) *plan.Plan {
	t.Helper()
	s := enginetest.New()
	return s.Plan(t, s.Document(t, map[string]string{
		"site/far.net/a":     `{"cidr":"10.0.0.0/24","size":9007199254740993}`,
		"site/far.host/h":    `{"net":"a","labels":{"text":"a<b & c>d"}}`,
		"n1/near.bridge/br0": `{}`,
	}), plan.Options{})
}

// A plan file holds the plan byte for byte. Only the owner of the key can have written it.
func TestFile(t *testing.T) {
	key, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	p := somePlan(t)
	saved, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	body, digest := saved.Data, saved.Digest
	data, shown, err := p.EncodeFile(key)
	if err != nil || shown != digest || !bytes.Contains(data, body) || !plan.IsFile(data) {
		t.Fatalf("digest %s, want %s: %v\n%s", shown, digest, err, data)
	}
	f, err := plan.DecodeFile(data)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := f.Plan.Encode(); err != nil || !bytes.Equal(again.Data, body) || f.Digest != digest {
		t.Errorf("the plan is another one: %v\n%s\n%s", err, body, again)
	}
	if err := f.Verify(key); err != nil {
		t.Error(err)
	}
	if err := f.Verify(other); !errors.Is(err, plan.ErrForeign) {
		t.Errorf("with another key: %v", err)
	}
	edited := bytes.Replace(data, []byte(`"reason":"declared, but does not exist yet"`), []byte(`"reason":"harmless"`), 1)
	if f, err = plan.DecodeFile(edited); err != nil {
		t.Fatal(err)
	}
	if err := f.Verify(key); !errors.Is(err, plan.ErrForeign) {
		t.Errorf("an edited plan is taken: %v", err)
	}
}

// The document of a plan comes back byte for byte, however it is formatted: its digest, and its signature, cover its bytes.
func TestDocumentComesBack(t *testing.T) {
	key, p := bytes.Repeat([]byte{1}, 32), somePlan(t)
	for name, form := range map[string]func(compact string) string{
		"compact":             func(c string) string { return c },
		"a blank at its end":  func(c string) string { return c + " " },
		"a line at its end":   func(c string) string { return c + "\n" },
		"a blank in front":    func(c string) string { return " " + c },
		"blanks between":      func(c string) string { return strings.ReplaceAll(c, ":", ": ") },
		"letters escaped":     func(c string) string { return strings.ReplaceAll(c, "far", `\u0066ar`) },
		"what HTML escapes":   func(c string) string { return strings.Replace(c, "{", `{"<&>":"\u2028`+"\u2028"+`",`, 1) },
		"numbers of any form": func(c string) string { return strings.Replace(c, "{", `{"n":[1.0,1e2,-0,9007199254740993],`, 1) },
	} {
		p.Document = plan.Verbatim(form(string(somePlan(t).Document)))
		sum := sha256.Sum256(p.Document)
		p.Digest = hex.EncodeToString(sum[:])
		file, _, err := p.EncodeFile(key)
		if err != nil {
			t.Fatal(err)
		}
		again, err := plan.DecodeFile(file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !bytes.Equal(again.Plan.Document, p.Document) {
			t.Errorf("%s: %s became %s", name, p.Document, again.Plan.Document)
		}
		if err := again.Verify(key); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file is verified byte for byte: an edit that does not change its meaning is an edit as well.
func TestFileIsExact(t *testing.T) {
	key := bytes.Repeat([]byte{1}, 32)
	p := somePlan(t)
	file, digest, err := p.EncodeFile(key)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	body := saved.Data
	text := string(file)
	id := `"id":"` + p.ID + `",`
	_, between, _ := strings.Cut(string(body[:bytes.Index(body, []byte(`"document_digest"`))]), id)
	resealed := func(old, becomes string) string { // with the key
		return string(plan.Seal(bytes.Replace(enginetest.Members(t, p), []byte(old), []byte(becomes), 1), key))
	}
	mac := text[strings.Index(text, `"mac":`):strings.Index(text, `"plan":`)]
	for name, edited := range map[string]string{
		"a blank in front":        " " + text,
		"lines in front":          "\n\n" + text,
		"a line less":             strings.TrimSuffix(text, "\n"),
		"a line more":             text + "\n",
		"CR LF":                   strings.TrimSuffix(text, "\n") + "\r\n",
		"a blank in its envelope": strings.Replace(text, `"plan":`, `"plan": `, 1),
		"a blank at its end":      strings.TrimSuffix(text, "}\n") + " }\n",
		"an escape":               strings.Replace(text, `"plan":`, `"\u0070lan":`, 1),
		"another order":           strings.TrimSuffix(strings.Replace(text, mac, "", 1), "}\n") + "," + strings.TrimSuffix(mac, ",") + "}\n",
		"a capital in its proof":  strings.Replace(text, mac, strings.Replace(strings.ToUpper(mac), "MAC", "mac", 1), 1),
		"no proof":                strings.Replace(text, mac, `"mac":"",`, 1),
		"no hex":                  strings.Replace(text, mac, `"mac":"zz",`, 1),
		"a blank in the plan":     strings.Replace(text, `{"format":2,`, `{"format":2, `, 1),
		"a blank, with the key":   resealed(`{"format":2,`, `{"format":2, `),
		"an order, with the key":  resealed(id+between, between+id),
	} {
		t.Run(name, func(t *testing.T) {
			if edited == text {
				t.Fatal("nothing is edited")
			}
			f, err := plan.DecodeFile([]byte(edited))
			if err != nil || f.Digest != digest {
				t.Fatalf("it says the same, and cannot be read: %v", err)
			}
			if err := f.Verify(key); !errors.Is(err, plan.ErrForeign) {
				t.Errorf("it is taken as it was saved: %v", err)
			}
		})
	}
}

// What is not a plan is not read, whoever wrote it.
func TestFileIsStrict(t *testing.T) {
	p := somePlan(t)
	saved, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	body := saved.Data
	said := string(enginetest.Members(t, p))
	seal := func(members string) string { return string(plan.Seal([]byte(members), make([]byte, 32))) }
	wrap := func(instead string) string { return seal(strings.Replace(said, string(body), instead, 1)) }
	if _, err := plan.DecodeFile([]byte(seal(said))); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, says string }{
		"nothing":             {"", "not a valid plan"},
		"a plan as it was":    {string(body), "plan again"},
		"a later format":      {strings.Replace(wrap(string(body)), `"format":3`, `"format":4`, 1), "plan again"},
		"trailing data":       {wrap(string(body)) + "{}", "not a valid plan"},
		"no plan":             {`{"format":3,"mac":"00"}`, "not a valid plan"},
		"an unknown name":     {wrap(strings.Replace(string(body), `{"format":2,`, `{"format":2,"nope":1,`, 1)), "nope"},
		"a folded name":       {wrap(strings.Replace(string(body), `"steps":`, `"STEPS":`, 1)), "STEPS"},
		"a name twice":        {wrap(strings.Replace(string(body), `"steps":`, `"steps":[],"steps":`, 1)), "steps"},
		"a folded step":       {wrap(strings.Replace(string(body), `"undo":`, `"Undo":`, 1)), "Undo"},
		"a folded name file":  {strings.Replace(wrap(string(body)), `"mac":`, `"MAC":`, 1), "MAC"},
		"no document":         {seal(`"plan":` + string(body)), "document"},
		"another document":    {seal(`"plan":` + string(body) + `,"document":{"site":{}}`), "document_digest"},
		"a document inside":   {wrap(strings.Replace(string(body), `{"format":2,`, `{"format":2,"document":{},`, 1)), "document"},
		"a step needs itself": {wrap(strings.Replace(string(body), `{"id":0,`, `{"id":0,"needs":[0],`, 1)), "need one another"},
		"not UTF-8":           {wrap(strings.Replace(string(body), `declared, but`, "declared\xff but", 1)), "not a valid plan"},
		"deep":                {wrap(strings.Repeat(`[`, 200) + strings.Repeat(`]`, 200)), "nests objects and lists"},
		"bottomless":          {wrap(strings.Repeat(`{"a":`, 1<<20)), "nests objects and lists"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := plan.DecodeFile([]byte(c.text))
			if f != nil || !errors.Is(err, plan.ErrFormat) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want it to say %q", err, c.says)
			}
		})
	}
}
