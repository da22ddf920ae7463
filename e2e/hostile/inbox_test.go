package hostile

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// TestTortureInbox proves E5: it lets a cloud leave documents in the store with its own client, bypassing all our checks. The site
// accepts plain JSON within the bounds of the inbox, and leaves everything else in place, keeping its previous document.
func TestTortureInbox(t *testing.T) {
	y := newYard(t)
	const key = "/converge/hostile/inbox"
	head := bombHead + `,"carbide":{"tenant":{"acme":{}`
	tenants := func(n int) string {
		var b strings.Builder
		b.WriteString(head)
		for i := range n - 1 {
			fmt.Fprintf(&b, `,"t%d":{}`, i)
		}
		return b.String() + "}}}"
	}
	sized := func(n int) string { return head + strings.Repeat(" ", n-len(head)-3) + "}}}" }
	y.write("site.json", head+"}}}")
	y.ended(y.run("put", "site.json"), 0)
	first := y.ended(y.run("get"), 0).stdout

	cases := []struct{ name, text, want string }{
		{"over 1 MiB", sized(1<<20 + 1), "the limit is 1 MiB"},
		{"as much as etcd takes", sized(1<<20 + 400_000), "the limit is 1 MiB"},
		{"20 001 resources", tenants(20_001), "more than 20000 resources"},
		{"33 deep", bombHead + `,"x":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + "}", "32 levels deep"},
		{"1e5 deep", bombHead + `,"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}", "32 levels deep"},
		{"CUE", "import \"list\"\nl: list.Range(0, 1000, 1)\nn: [for a in l for b in l for c in l if a*b*c < 0 {a}]\n", "CV1051"},
		{"CUE that looks like JSON", strings.Replace(head, `"acme":{}`, `"acme":{display_name: "a" & "b"}`, 1) + "}}}", "CV1051"},
		{"YAML", "a0: &a0 [x, x]\na1: [*a0, *a0]\n", "CV1051"},
		{"blank", " \n", "CV1051"},
		{"no document", "{}", "CV1002"},
		{"not UTF-8", strings.Replace(head, "acme", "ac\xffme", 1) + "}}}", "CV1051"},
		{"NUL", strings.Replace(head, "acme", `ac\u0000me`, 1) + "}}}", "CV1051"},
		{"a name twice", head + `,"acme":{}}}}`, "CV1052"},
		{"two documents", head + "}}}" + head + "}}}", "CV1051"},
		{"escapes", strings.Replace(head, "acme", `\u001b[2J\u202e`, 1) + "}}}", "CV1008"},
		{"another site", strings.Replace(head, `"name":"hostile"`, `"name":"other"`, 1) + "}}}", "another site"},
		{"a site that is a path", strings.Replace(head, `"name":"hostile"`, `"name":"../other"`, 1) + "}}}", "CV1005"},
		{"a serial that does not rise", strings.Replace(head, `"name":"hostile"`, `"serial":1,"name":"hostile"`, 1) + `,"more":{}}}}`, "not newer"},
	}
	if every := torture.Scale(4, 1, 1); every > 1 { // a sample has the bounds and some of the rest
		kept := cases[:3:3]
		for i, c := range cases[3:] {
			if i%every == 0 {
				kept = append(kept, c)
			}
		}
		cases = kept
	}
	var names []string
	for _, c := range cases {
		names = append(names, c.name)
	}
	reached := torture.Cover(t, "documents", names)
	for _, c := range cases {
		y.leave(t, key, c.text)
		before := y.outside()
		var r result
		for range 3 { // the best of three, as for the bombs
			status := 1
			if strings.HasPrefix(c.want, "another") || strings.HasPrefix(c.want, "not newer") { // valid, but not for here
				status = 7
			}
			if r = y.ended(y.run("plan", "-site=hostile"), status); r.took <= limit() {
				break
			}
		}
		reached.Reach(c.name)
		switch {
		case !strings.Contains(r.out, c.want):
			t.Errorf("%s: does not say %q:\n%.1000s", c.name, c.want, r.out)
		case r.took > limit() || !race && r.peak > maxMemory:
			t.Errorf("%s: took %v and %d MiB", c.name, r.took, r.peak)
		}
		if err := harmless(r.out); err != nil {
			t.Errorf("%s: %.300v", c.name, err)
		}
		if now := y.ended(y.run("get", "-site=hostile"), 0).stdout; now != first {
			t.Errorf("%s: the site has another document:\n%.1000s", c.name, now)
		}
		if got := y.left(t, key); got != c.text {
			t.Errorf("%s: what lay in the inbox is now %.100q", c.name, got)
		}
		y.unchanged(before)
	}

	// What is within the bounds is accepted, to the last byte and the last resource: planned in place, and accepted even when
	// the plan needs an approval.
	for i, text := range []string{tenants(20_000), sized(1 << 20)} {
		y.leave(t, key, text)
		y.ended(y.run("plan", "-site=hostile", "-max-destroy=100%"), 0)
		if got := y.left(t, key); got != text {
			t.Errorf("document %d within the bounds left the inbox for a plan", i)
		}
		y.run("apply", "-site=hostile", "-max-destroy=100%", "-auto-approve", "-approve=0000000000000000")
		if got := y.left(t, key); got != "" {
			t.Errorf("document %d within the bounds still lies in the inbox", i)
		}
	}
	torture.Report(t, "J", "%d documents in the inbox refused, 2 at the bounds taken up", len(cases))
}

// leave puts text into a key of the embedded store, like a client of etcd.
func (y *yard) leave(t *testing.T, key, text string) {
	t.Helper()
	y.store(t, func(kv state.KV) {
		_, err := kv.Commit(t.Context(), nil, []state.Op{{Key: key, Value: []byte(text)}})
		y.must(err)
	})
}

// left returns the value of a key of the embedded store.
func (y *yard) left(t *testing.T, key string) (text string) {
	t.Helper()
	y.store(t, func(kv state.KV) {
		it, err := kv.Get(t.Context(), key)
		y.must(err)
		text = string(bytes.Clone(it.Value))
	})
	return text
}

func (y *yard) store(t *testing.T, do func(state.KV)) {
	t.Helper()
	kv, err := etcd.Open(t.Context(), etcd.Options{Dir: filepath.Join(y.work, ".converge"), Command: "a test"})
	y.must(err)
	do(kv)
	y.must(kv.Close())
}
