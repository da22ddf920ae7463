package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/internal/torture"
)

// TestTortureHostileText makes the program itself report hostile names, in a form for a terminal and in one for a program.
func TestTortureHostileText(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	before := y.outside()
	head := `{"apiVersion":"converge.dev/v1","site":{"name":"hostile","id":"7d9f1c62-3a54-4b0e-9c86-2f1d8e5b7a30"},`
	every := torture.Scale(12, 3, 1)
	said := torture.Cover(t, "codes", []string{"CV1001", "CV1005", "CV1006", "CV1008", "CV1010", "CV1051", "CV1102"})
	runs := 0
	check := func(doc string) {
		t.Helper()
		runs++
		y.write("hostile.json", doc)
		r := y.ended(y.run("validate", "hostile.json"), 1)
		if err := harmless(r.out); err != nil {
			t.Errorf("%v\n%.200s", err, doc)
		}
		r = y.ended(y.run("validate", "-json", "hostile.json"), 1)
		var report struct {
			Valid       bool
			Diagnostics []struct{ Code, Path string }
		}
		if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || report.Valid || len(report.Diagnostics) == 0 {
			t.Errorf("validate -json: %v, %+v", err, report)
		}
		for _, b := range []byte(r.out) {
			if b < ' ' && b != '\n' || b == 0x7f {
				t.Errorf("validate -json writes the byte %#x", b)
				break
			}
		}
		for _, d := range report.Diagnostics {
			if slices.Contains([]string{"CV1001", "CV1005", "CV1006", "CV1008", "CV1010", "CV1051", "CV1102"}, d.Code) {
				said.Reach(d.Code)
			}
		}
	}
	var whole []hostile
	broken := 0
	for _, h := range hostiles {
		if !h.broken && len(h.text) < 256 {
			whole = append(whole, h)
			continue
		}
		if broken++; broken%every == 1 || every == 1 {
			check(head + `"carbide":{"tenant":{` + h.literal + `:{}}}}`) // no name is that long
		}
	}
	forms := []func(h hostile, i int) string{
		func(h hostile, _ int) string { return h.literal + ":{}" },
		func(h hostile, i int) string {
			return fmt.Sprintf(`"t%d":{"routing_profile":%s,"nope":1}`, i, h.literal)
		},
		func(h hostile, i int) string { return fmt.Sprintf(`"t%d":{%s:1}`, i, h.literal) },
		func(h hostile, i int) string { return fmt.Sprintf(`"t%d":{"depends_on":[%s]}`, i, h.literal) },
		func(h hostile, i int) string {
			return fmt.Sprintf(`"t%d":{"lifecycle":{"on_remove":%s}}`, i, h.literal)
		},
	}
	for f, form := range forms {
		turn := 0
		for some := range slices.Chunk(whole, 60) { // a hundred diagnostics are shown
			if turn++; (turn+f)%torture.Scale(4, 1, 1) != 0 {
				continue
			}
			members := make([]string, len(some))
			for i, h := range some {
				members[i] = form(h, i)
			}
			check(head + `"carbide":{"tenant":{` + strings.Join(members, ",") + `}}}`)
		}
	}
	var members []string
	seen := map[string]bool{"site": true, "nodes": true} // of every document, not of providers
	for _, h := range whole {
		if !seen[h.text] {
			seen[h.text] = true
			members = append(members, h.literal+":{}")
		}
	}
	check(head + strings.Join(members[:90], ",") + "}")
	y.unchanged(before)
	torture.Report(t, "J", "what %d documents with hostile names are told: %s", runs, said)
}

// TestTortureHostileRun makes the program apply a document with hostile texts in every place that accepts them, to a world in a
// file: it prints nothing that a terminal obeys, finds nothing to do afterwards, and writes only into its folder.
func TestTortureHostileRun(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	doc := map[string]any{}
	places, texts := 0, 0
	every := torture.Scale(19, 19, 5)
	for i, p := range positions(t) {
		sort, _, _ := strings.Cut(p.where, " ")
		if sort == "head" || p.field != nil && (p.field.Computed || p.field.Ref != "") || !strings.HasPrefix(p.kind, "ovs.") && sort == "name" {
			continue // names of the site's kinds follow below; they have one grammar
		}
		for j, h := range hostiles {
			if h.broken || (i+j)%every != 0 && sort != "name" && sort != "node" || len(h.text) > 2000 {
				continue
			}
			one := map[string]any{}
			if json.Unmarshal(p.with(h), &one) != nil {
				t.Fatal("not JSON")
			}
			if d, _ := loadOne(t, p.with(h)); !d {
				continue
			}
			texts++
			// Each in a node or under a name of its own, so that all fit into one document.
			ref, _ := p.at(h.text)
			at := place(ref)
			spec := lookup(one, at).(map[string]any)
			delete(lookup(one, at[:len(at)-1]).(map[string]any), ref.Name)
			switch {
			case p.kind == "carbide.vpc" || p.kind == "carbide.instance_type":
				merge(doc, one) // what it needs
				ref.Name = fmt.Sprintf("thing-%d", texts)
				merge(doc, nest(place(ref)[:2]))
				set(doc, place(ref), spec)
			case ref.Kind == "ovs.bridge":
				if sort != "node" {
					ref.Scope = fmt.Sprintf("node-%d", texts)
				}
				at := place(ref)
				merge(doc, nest(at[:len(at)-1]))
				set(doc, at, spec)
			}
		}
		places++
	}
	text, err := json.Marshal(doc)
	y.must(err)
	y.write("hostile.json", string(text))
	before := y.outside()
	for _, args := range [][]string{
		{"plan", "-out=saved plan $(id)", "hostile.json"},
		{"apply", "-auto-approve", "saved plan $(id)"},
		{"plan", "-detailed-exitcode", "hostile.json"},
		{"drift"}, {"state", "list"}, {"runs"}, {"history"}, {"diff", "head", "hostile.json"}, {"graph", "hostile.json"},
	} {
		r := y.ended(y.run(args...), 0)
		if err := harmless(r.out); err != nil {
			t.Errorf("%s: %.500v", args[0], err)
		}
	}
	got := y.ended(y.run("get"), 0)
	var again map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &again); err != nil {
		t.Errorf("get: %v", err)
	}
	if a, b := canonical(t, doc), canonical(t, again); !bytes.Equal(a, b) {
		t.Error("the document comes back otherwise than it was given")
	}
	inside, err := filepath.Glob(filepath.Join(y.work, "*"))
	y.must(err)
	for i, path := range inside {
		inside[i] = filepath.Base(path)
	}
	if want := []string{".converge", "converge.yaml", "hostile.json", "saved plan $(id)", "world.json"}; !slices.Equal(inside, want) {
		t.Errorf("the folder holds %q, want %q", inside, want)
	}
	y.unchanged(before)
	if texts < 300 {
		t.Errorf("only %d texts went in", texts)
	}
	torture.Report(t, "J", "one run of the program with %d hostile texts in %d places", texts, places)
}
