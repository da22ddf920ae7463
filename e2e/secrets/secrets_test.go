package secrets

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/internal/torture"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// The canaries: what each stands for, and characters that encodings treat differently.
var canaries = func() map[string]canary {
	all := map[string]canary{}
	for name, special := range map[string]string{
		"a variable":                              "",
		"a file":                                  "/+",
		"in a list":                               " ",
		"with every special character":            "\"\\'%41+<&>\té漢\u2028😀=",
		"of several lines":                        "\n-----END KEY-----\n",
		"rotated":                                 "",
		"changed since the plan":                  "",
		"set by a stranger":                       "\"",
		"plain in a document":                     "",
		"plain in the place of a place":           "",
		"beside a misspelt name":                  "",
		"plain in the inbox":                      "",
		"a file that everybody may read":          "",
		"a file outside the folder of secrets":    "",
		"a variable that may not be named":        "",
		"another variable of the environment":     "",
		"an unknown setting of the environment":   "",
		"an address of etcd in a flag":            "",
		"an address of etcd in the environment":   "",
		"an address of etcd in the configuration": "",
		"an unknown setting":                      "",
		"a value in the wrong place":              "",
		"a value that reads as an alias":          "",
		"the key of etcd's certificate":           "",
		"the key of Carbide's certificate":        "",
		"the address of Carbide":                  "",
		"the address of Open vSwitch":             "",
		"an unknown flag":                         "",
	} {
		all[name] = newCanary(name, special)
	}
	return all
}()

// situations are what must have happened for the test to prove anything.
var situations = []string{
	"planned", "saved", "applied", "reverted", "stopped", "partial", "resumed", "rolled back", "killed", "provider panics", "observation panics",
	"observation fails", "thing failed", "drift", "rotation", "changed since the plan", "refused document", "refused configuration", "destroyed",
}

const document = `apiVersion: "converge.dev/v1"
site: {name: "q", id: "5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10"}
policy: max_destroy: "100%%"
far: account: {
	a: {login: %q, password: from: "env:PW_A", tokens: t: from: "file:token", keys: [{name: "k", value: from: "env:PW_K"}]}
	b: {login: %q, password: from: "env:PW_S", tokens: pem: from: "file:sub/pem"}
}
`

// TestTortureCanaries proves W6: canaries in every place where a secret can come from, through every failure path of the
// real program, with all logs. Afterwards none of them may be in anything that the program has written.
func TestTortureCanaries(t *testing.T) {
	s := newSite(t)
	names := make([]string, 0, len(canaries))
	list := make([]canary, 0, len(canaries))
	for name, c := range canaries {
		names, list = append(names, name), append(list, c)
	}
	entered := torture.Cover(t, "canary", names) // that it could really have leaked
	happened := torture.Cover(t, "situation", situations)
	echoed := torture.Cover(t, "encoding of the far side", slices.Concat(encodings, mangled))
	value := func(name string) string { return canaries[name].value }

	s.write("converge.yaml", "secrets: {dir: secrets, env: [\"PW_*\"]}\n")
	s.write("secrets/token", value("a file")+"\n")
	s.write("secrets/sub/pem", value("of several lines"))
	s.write("secrets/open", value("a file that everybody may read"))
	s.must(os.Chmod(filepath.Join(s.dir, "secrets", "open"), 0o644))
	s.write("outside", value("a file outside the folder of secrets"))
	s.env = map[string]string{
		"PW_A": value("a variable"), "PW_K": value("in a list"), "PW_S": value("with every special character"),
		"OTHER_TOKEN": value("another variable of the environment"), "NOT_FOR_DOCUMENTS": value("a variable that may not be named"),
	}
	s.write("site.cue", fmt.Sprintf(document, "a1", "b1"))

	s.run(done, "validate", "site.cue")
	s.run(done, "plan", "site.cue")
	s.run(done, "plan", "-json", "-out=first.plan", "site.cue")
	s.run(done, "show", "first.plan")
	s.run(done, "show", "-json", "first.plan")
	s.run(done, "graph", "site.cue")
	happened.Reach("planned")
	happened.Reach("saved")

	// Creates whose refusal echoes the request: undone, each time.
	for i, encoding := range slices.Concat(encodings, mangled) {
		s.mischief("create", "b", "echo", encoding)
		flags := []string{"-auto-approve", "site.cue"}
		if i%2 == 1 {
			flags = append([]string{"-json"}, flags...)
		}
		r := s.apply(reverted, flags...)
		if !strings.Contains(r.all(), "invalid (BadRequest): the remote system's message is withheld") || strings.Contains(r.all(), "400: ") {
			t.Errorf("%s: the far side's echo was told, or not its class: %s", encoding, r.all())
		}
		echoed.Reach(encoding)
		happened.Reach("reverted")
	}
	s.mischief("create", "b", "panic", "quoted")
	if r := s.apply(reverted, "-auto-approve", "site.cue"); !strings.Contains(r.all(), "message is withheld") {
		t.Errorf("no panic was told: %s", r.all())
	}
	happened.Reach("provider panics")
	s.mischief("create", "b", "echo", "plain")
	s.apply(partial, "-auto-approve", "-on-failure=stop", "site.cue")
	happened.Reach("stopped")
	s.run(done, "runs")
	s.run(done, "runs", "-json")
	s.run(done, "rollback", "-auto-approve", s.newest())
	happened.Reach("rolled back")
	s.mischief("create", "", "hang", "")
	s.kill("apply", "-auto-approve", "site.cue")
	happened.Reach("killed")
	s.mischief("", "", "", "")
	s.run(done, "resume", "-lock-timeout=1m", "-json")
	happened.Reach("resumed")
	happened.Reach("applied")
	far := s.read("far.json")
	for _, name := range []string{"a variable", "a file", "in a list", "with every special character", "of several lines"} {
		if len(search([]place{{"far.json", []byte(far)}}, []canary{canaries[name]})) == 0 {
			t.Errorf("%s: the far side never got it: %s", name, far)
		}
		entered.Reach(name)
	}

	// Observing it.
	look := func() {
		for _, args := range [][]string{
			{"plan"}, {"plan", "-json"}, {"get"}, {"history", "-json"}, {"state", "list"}, {"state", "show", "site/far.account/a"}, {"state", "show", "-json", "site/far.account/b"},
			{"runs"}, {"runs", "-json"}, {"drift"}, {"drift", "-json"}, {"graph"},
		} {
			s.run([]int{0, 2}, args...)
		}
	}
	look()
	if r := s.run(done, "plan", "-detailed-exitcode"); r.status != 0 {
		t.Errorf("the second plan is not empty: %s", r.all())
	}
	for i, way := range []string{"panic", "echo", "detail"} {
		for _, encoding := range encodings[:torture.Scale(2, len(encodings), len(encodings))] {
			s.mischief("observe", "b", way, encoding)
			s.run([]int{0, 8}, "plan")
			s.run([]int{2, 8}, "drift", "-json")
		}
		s.mischief("observe", "b", way, encodings[i])
		r := s.run([]int{0, 8}, "plan")
		want := map[string]string{"panic": "the provider panicked", "echo": "403", "detail": "it was given"}[way]
		if !strings.Contains(r.all(), want) {
			t.Errorf("observe, %s: %s", way, r.all())
		}
		happened.Reach(map[string]string{"panic": "observation panics", "echo": "observation fails", "detail": "thing failed"}[way])
	}
	for _, way := range []string{"panic", "echo"} { // and by a process that cannot read the secrets
		s.mischief("observe", "b", way, "plain")
		env := s.env
		s.env = nil
		if r := s.run([]int{8}, "drift"); !strings.Contains(r.all(), "message is withheld") {
			t.Errorf("observe, %s: %s", way, r.all())
		}
		s.env = env
	}
	s.mischief("", "", "", "")

	// Changes beside the secrets, with every refusal.
	s.write("site.cue", fmt.Sprintf(document, "a2", "b2"))
	for _, encoding := range slices.Concat(encodings, mangled) {
		s.mischief("update", "b", "echo", encoding)
		s.apply(reverted, "-auto-approve", "site.cue")
	}
	s.mischief("update", "b", "echo", "quoted")
	s.apply(partial, "-auto-approve", "-on-failure=continue", "-json", "site.cue")
	happened.Reach("partial")
	s.run([]int{0, 7}, "plan") // of a held site
	s.mischief("", "", "", "")
	s.run(done, "resume")
	s.write("site.cue", fmt.Sprintf(document, "a3", "b3"))
	s.mischief("update", "a", "hang", "")
	s.kill("apply", "-auto-approve", "-json", "site.cue")
	s.mischief("", "", "", "")
	s.run(done, "rollback", "-auto-approve", "-lock-timeout=1m", s.newest())
	look()

	// A stranger changes a secret.
	s.write("far.json", strings.Replace(s.read("far.json"), value("a variable"), strings.ReplaceAll(value("set by a stranger"), `"`, `\"`), 1))
	if r := s.run([]int{2}, "drift", "-json"); !strings.Contains(r.stdout, "password") {
		t.Errorf("no drift: %s", r.all())
	}
	entered.Reach("set by a stranger")
	happened.Reach("drift")
	look()
	s.mischief("update", "a", "echo", "quoted") // which leaks both
	s.apply([]int{3, 4}, "-auto-approve")
	s.run([]int{0, 1, 7}, "rollback", "-auto-approve", s.newest())
	s.mischief("", "", "", "")
	s.apply(done, "-auto-approve")

	// Rotation; and a saved plan whose secret has changed by the time that it is applied.
	s.env["PW_A"] = value("rotated")
	s.run(done, "plan", "-out=rotate.plan")
	s.env["PW_A"] = value("changed since the plan")
	if r := s.apply([]int{6}, "rotate.plan"); !strings.Contains(r.all(), "the secret changed since the plan was made") {
		t.Errorf("changed since the plan: %s", r.all())
	}
	entered.Reach("changed since the plan")
	happened.Reach("changed since the plan")
	s.env["PW_A"] = value("rotated")
	s.run(done, "plan", "-json", "-out=again.plan")
	s.run(done, "show", "-json", "again.plan")
	s.apply(done, "-json", "again.plan")
	if !strings.Contains(s.read("far.json"), value("rotated")) {
		t.Errorf("it was not rotated: %s", s.read("far.json"))
	}
	entered.Reach("rotated")
	happened.Reach("rotation")
	look()

	s.wrongDocuments(entered, happened)
	s.wrongConfigurations(entered, happened)

	s.apply(done, "-destroy", "-auto-approve", "-max-destroy=100%", "-json")
	_ = os.Remove(filepath.Join(s.dir, "hanging"))
	happened.Reach("destroyed")
	entered.Reach("another variable of the environment")

	places, keys := s.places()
	log := s.read("log.txt")
	if !strings.Contains(log, "far create") || !strings.Contains(log, "far observed") || !strings.Contains(log, "(secret)") {
		t.Error("the provider logged nothing at debug level")
	}
	found := search(places, list)
	for i, f := range found {
		if f.canary == "plain in the inbox" && (strings.HasPrefix(f.place, "file .converge/etcd/") || strings.HasSuffix(f.place, "/inbox")) {
			continue // the cloud wrote it into the store itself
		}
		if i < 40 {
			t.Errorf("%s, in %s, is in the %s: …%q…", f.canary, f.encoding, f.place, f.excerpt)
		}
	}
	torture.Report(t, "Q", "%d canaries in %d encodings: 0 found in %d places (%d commands, %d keys of the store, %d bytes of log)",
		len(list), len(encodings), len(places), s.number, keys, len(log))
}

// wrongDocuments puts secrets where their places belong, and places that may not be named.
func (s *site) wrongDocuments(entered, happened *torture.Coverage) {
	s.Helper()
	account := func(password string) string {
		return `apiVersion: "converge.dev/v1", site: {name: "q", id: "5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10"}, far: account: a: ` + password + "\n"
	}
	for name, text := range map[string]string{
		"plain in a document":                  `{password: "%s"}`,
		"plain in the place of a place":        `{password: from: "%s"}`,
		"beside a misspelt name":               `{password: {form: "env:PW_A", value: "%s"}, pasword: "%[1]s"}`,
		"a file that everybody may read":       `{password: from: "file:open"} // %.0s`,
		"a file outside the folder of secrets": `{password: from: "file:../outside"} // %.0s`,
		"a variable that may not be named":     `{password: from: "env:NOT_FOR_DOCUMENTS"} // %.0s`,
	} {
		s.write("wrong.cue", account(fmt.Sprintf(text, canaries[name].value)))
		for _, args := range [][]string{{"plan", "wrong.cue"}, {"plan", "-json", "wrong.cue"}, {"apply", "-auto-approve", "wrong.cue"}, {"validate", "wrong.cue"}, {"validate", "-json", "wrong.cue"}} {
			if strings.Contains(text, "from: \"file:") || strings.Contains(text, "from: \"env:NOT") {
				s.run([]int{0, 1}, args...) // valid; what it names is refused when it is read
				if args[0] != "plan" {
					continue
				}
			}
			s.run(failed, args...)
		}
		entered.Reach(name)
		happened.Reach("refused document")
	}
	s.write("wrong.json", `{"apiVersion": "converge.dev/v1", "site": {"name": "q", "id": "5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10", "serial": 99}, "far": {"account": {"a": {"password": "`+canaries["plain in the inbox"].value+`"}}}}`)
	s.run(failed, "put", "wrong.json")
	kv := s.store()
	_, err := kv.Commit(s.Context(), nil, []state.Op{{Key: "/converge/q/inbox", Value: []byte(s.read("wrong.json"))}})
	s.must(err)
	s.must(kv.Close())
	s.run(failed, "plan")
	s.run(failed, "plan", "-json")
	kv = s.store()
	_, err = kv.Commit(s.Context(), nil, []state.Op{{Key: "/converge/q/inbox", Delete: true}})
	s.must(err)
	s.must(kv.Close())
	entered.Reach("plain in the inbox")
}

// wrongConfigurations puts secrets where the program or a person may take them for something else.
func (s *site) wrongConfigurations(entered, happened *torture.Coverage) {
	s.Helper()
	s.write("carbide.cue", `apiVersion: "converge.dev/v1", site: {name: "other", id: "5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f11"}, carbide: tenant: acme: {}, nodes: n1: ovs: bridge: br0: {}`)
	pem := func(name string) string {
		file := strings.Fields(name)[2] + ".pem"
		s.write(file, "-----BEGIN PRIVATE KEY-----\n"+canaries[name].value+"\n-----END PRIVATE KEY-----\n")
		return file
	}
	kept := s.env
	for _, c := range []struct {
		canary, config string
		args           []string
		env            string
		want           []int
	}{
		{canary: "an address of etcd in a flag", args: []string{"runs", "-etcd-endpoints=http://root:%s@127.0.0.1:1"}},
		{canary: "an address of etcd in the environment", args: []string{"runs", "-json"}, env: "CONVERGE_ETCD_ENDPOINTS=http://root:%s@127.0.0.1:1"},
		{canary: "an address of etcd in the configuration", args: []string{"plan", "carbide.cue"}, config: `etcd: {endpoints: ["https://root:%s@127.0.0.1:1"]}`},
		{canary: "an unknown setting", args: []string{"runs"}, config: `etcd: {username: root, password: "%s"}`},
		{canary: "a value in the wrong place", args: []string{"runs"}, config: "etcd: %s"},
		{canary: "a value that reads as an alias", args: []string{"runs"}, config: "etcd: {key: *%s}"},
		{canary: "an unknown setting of the environment", args: []string{"version"}, env: "CONVERGE_PASSWORD=%s", want: done},
		{canary: "an unknown flag", args: []string{"plan", "-etcd-password=%s"}},
		{canary: "the key of etcd's certificate", args: []string{"runs", "-etcd-endpoints=https://127.0.0.1:1", "-etcd-cert=" + pem("the key of etcd's certificate"), "-etcd-key=" + pem("the key of etcd's certificate")}},
		{canary: "the key of Carbide's certificate", args: []string{"plan", "-data-dir=.converge/other", "carbide.cue"}, config: fmt.Sprintf("carbide: {address: \"127.0.0.1:1\", tls: {cert: %s, key: %[1]s}} # %%.0s", pem("the key of Carbide's certificate")), want: []int{0, 8}},
		{canary: "the address of Carbide", args: []string{"plan", "-data-dir=.converge/other", "carbide.cue"}, config: `carbide: {address: "root:%s@127.0.0.1:1", tls: {mode: "off"}}`, want: []int{0, 1, 8}},
		{canary: "the address of Open vSwitch", args: []string{"plan", "-data-dir=.converge/other", "carbide.cue"}, config: `nodes: {n1: {ovs: "tcp:root:%s@127.0.0.1:1"}}`},
	} {
		value := canaries[c.canary].value
		args := slices.Clone(c.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "%s", value)
		}
		if c.config != "" {
			s.write("wrong.yaml", fmt.Sprintf(c.config, value))
			args = slices.Insert(args, 1, "-config=wrong.yaml")
		}
		s.env = map[string]string{}
		for k, v := range kept {
			s.env[k] = v
		}
		if name, text, ok := strings.Cut(c.env, "="); ok {
			s.env[name] = fmt.Sprintf(text, value)
		}
		if c.want == nil {
			c.want = failed
		}
		if r := s.run(c.want, args...); r.all() == "" {
			s.Errorf("%s: nothing was said", c.canary)
		}
		entered.Reach(c.canary)
		happened.Reach("refused configuration")
	}
	s.env = kept
}

// TestSearchFinds is the test of the test: a planted canary, in each encoding and at each alignment, in each place that is
// searched, is found there.
func TestSearchFinds(t *testing.T) {
	special := canaries["with every special character"].value
	sinks := []string{"standard output", "standard error", "log.txt", "saved.plan", "file .converge/lock", "blob", "document", "journal", "record", "run", "status", "key"}
	reached := torture.Cover(t, "sink", sinks)
	for _, sink := range sinks {
		s := newSite(t)
		s.write("site.cue", `apiVersion: "converge.dev/v1", site: {name: "q", id: "5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10"}`)
		var planted []canary
		var leaks []string
		for _, encoding := range encodings {
			for _, before := range []string{"", "x", "xx"} {
				c := newCanary(encoding+before, special[12:len(special)-12])
				planted, leaks = append(planted, c), append(leaks, c.write(encoding, before))
			}
		}
		text := strings.Join(leaks, " ")
		kv := s.store()
		store := state.New(kv, "q")
		commit := func(ops ...state.Op) {
			_, err := kv.Commit(t.Context(), nil, ops)
			s.must(err)
		}
		plain := []byte(fmt.Sprintf("%s %s", strings.Repeat("compressible ", 1000), text))
		switch sink {
		case "standard output":
			s.keep(result{stdout: text}, "plan")
		case "standard error":
			s.keep(result{stderr: text}, "plan")
		case "log.txt", "saved.plan":
			s.write(sink, text)
		case "file .converge/lock":
			s.must(os.WriteFile(filepath.Join(s.dir, ".converge", "planted"), []byte(text), 0o600))
		case "blob":
			_, err := store.PutBlob(t.Context(), plain)
			s.must(err)
		case "document":
			sum := sha256.Sum256(plain)
			_, err := store.PutDocument(t.Context(), plain, hex.EncodeToString(sum[:]), 0, "me", state.AnyRevision)
			s.must(err)
		case "journal":
			commit(state.Op{Key: store.JournalKey("r1", 1), Value: []byte(text)})
		case "record":
			for i, leak := range leaks { // as JSON, which escapes it once more
				commit(store.RecordOp(state.Record{Ref: refOf(i), ID: leak}))
			}
		case "run":
			for i, leak := range leaks {
				commit(store.PutRunOp(state.Run{ID: fmt.Sprint("r", i), Message: leak}))
			}
		case "status":
			s.must(store.Publish(t.Context(), "status", fmt.Appendf(nil, `{"x": %s}`, mustJSON(t, leaks))))
		case "key":
			commit(state.Op{Key: "/converge/q/" + text, Value: []byte("{}")})
		}
		s.must(kv.Close())
		places, _ := s.places()
		for _, c := range planted {
			inPlace := slices.ContainsFunc(search(places, []canary{c}), func(f finding) bool {
				return strings.Contains(f.place, sink) || sink == "saved.plan" && strings.HasSuffix(f.place, ".plan") ||
					strings.Contains(f.place, "planted") || strings.HasPrefix(f.place, "value of ") && strings.Contains(f.place, map[string]string{
					"blob": "/blob/", "document": "/document/chunk/", "journal": "/journal/", "record": "/resource/", "run": "/run/", "status": "/status"}[sink])
			})
			if !inPlace {
				t.Errorf("%s: %s is not found", sink, c.name)
			} else {
				reached.Reach(sink)
			}
		}
		if clean := search(places, []canary{newCanary("never written", "")}); len(clean) > 0 {
			t.Errorf("%s: found what was never written: %v", sink, clean)
		}
	}
}

func refOf(i int) schema.Ref {
	return schema.Ref{Scope: schema.ScopeSite, Kind: "far.account", Name: fmt.Sprint("a", i)}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
