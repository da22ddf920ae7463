package plan_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"converge.dev/converge/engine/enginetest"
	"converge.dev/converge/engine/plan"
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

// A plan file holds the plan byte for byte. Only who has the key can have written it.
func TestFile(t *testing.T) {
	key, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	p := somePlan(t)
	body, digest, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	data, shown, err := p.EncodeFile(key)
	if err != nil || shown != digest || !bytes.Contains(data, body) || !plan.IsFile(data) {
		t.Fatalf("digest %s, want %s: %v\n%s", shown, digest, err, data)
	}
	f, err := plan.DecodeFile(data)
	if err != nil {
		t.Fatal(err)
	}
	if again, _, err := f.Plan.Encode(); err != nil || !bytes.Equal(again, body) || f.Digest != digest {
		t.Errorf("the plan is another one: %v\n%s\n%s", err, body, again)
	}
	if err := f.Verify(key); err != nil {
		t.Error(err)
	}
	if err := f.Verify(other); !errors.Is(err, plan.ErrForeign) {
		t.Errorf("with another key: %v", err)
	}
	edited := bytes.Replace(data, []byte(`"reason":"declared, not there yet"`), []byte(`"reason":"harmless"`), 1)
	if f, err = plan.DecodeFile(edited); err != nil {
		t.Fatal(err)
	}
	if err := f.Verify(key); !errors.Is(err, plan.ErrForeign) {
		t.Errorf("an edited plan is taken: %v", err)
	}
}

// What is not written as EncodeFile writes it is refused, whoever wrote it.
func TestFileIsStrict(t *testing.T) {
	p := somePlan(t)
	body, _, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	mac := strings.Repeat("00", 32)
	wrap := func(body string) string { return `{"format":2,"mac":"` + mac + `","plan":` + body + "}\n" }
	if _, err := plan.DecodeFile([]byte(wrap(string(body)))); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, says string }{
		"nothing":             {"", "not a plan"},
		"a plan as it was":    {string(body), "plan again"},
		"a later format":      {strings.Replace(wrap(string(body)), `"format":2`, `"format":3`, 1), "plan again"},
		"trailing data":       {wrap(string(body)) + "{}", "not a plan"},
		"no plan":             {`{"format":2,"mac":"` + mac + `"}`, "not a plan"},
		"no hex":              {strings.Replace(wrap(string(body)), `"00`, `"zz`, 1), "mac"},
		"blanks":              {wrap(strings.Replace(string(body), `{"format":1,`, `{"format":1, `, 1)), "not written as converge writes it"},
		"an unknown name":     {wrap(strings.Replace(string(body), `{"format":1,`, `{"format":1,"nope":1,`, 1)), "nope"},
		"a folded name":       {wrap(strings.Replace(string(body), `"steps":`, `"STEPS":`, 1)), "STEPS"},
		"a name twice":        {wrap(strings.Replace(string(body), `"steps":`, `"steps":[],"steps":`, 1)), "steps"},
		"a folded step":       {wrap(strings.Replace(string(body), `"undo":`, `"Undo":`, 1)), "Undo"},
		"a folded name file":  {strings.Replace(wrap(string(body)), `"mac":`, `"MAC":`, 1), "MAC"},
		"a step needs itself": {wrap(strings.Replace(string(body), `{"id":0,`, `{"id":0,"needs":[0],`, 1)), "need one another"},
		"not UTF-8":           {wrap(strings.Replace(string(body), `declared, not`, "declared\xff not", 1)), "not a plan"},
		"reordered":           {},
		"deep":                {wrap(strings.Repeat(`[`, 200) + strings.Repeat(`]`, 200)), "within each other"},
		"bottomless":          {wrap(strings.Repeat(`{"a":`, 1<<20)), "within each other"},
	} {
		if name == "reordered" {
			id := `"id":"` + p.ID + `",`
			c.text = wrap(strings.Replace(strings.Replace(string(body), id, "", 1), `"unchanged"`, id+`"unchanged"`, 1))
			c.says = "not written as converge writes it"
		}
		t.Run(name, func(t *testing.T) {
			f, err := plan.DecodeFile([]byte(c.text))
			if f != nil || !errors.Is(err, plan.ErrFormat) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want it to say %q", err, c.says)
			}
		})
	}
}
