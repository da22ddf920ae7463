package secret

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSource: what is read, and what is refused, with the reason and without the value.
func TestSource(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(dir, 0o700))
	put := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		must(os.WriteFile(path, []byte(text), 0o600))
		must(os.Chmod(path, mode))
	}
	const value = "canary-hunter22"
	put("plain", value, 0o600)
	put("line", value+"\n", 0o440)
	put("dos", value+"\r\n", 0o600)
	put("lines", value+"\n\n", 0o600)
	put("open", value, 0o644)
	put("writable", value, 0o602)
	put("empty", "\n", 0o600)
	put("binary", value+"\xff\xfe", 0o600)
	put("full", strings.Repeat("x", MaxSize)+"\r\n", 0o600)
	put("large", strings.Repeat("x", MaxSize+1), 0o600)
	put("../outside", value, 0o600)
	must(os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	must(os.Symlink("../plain", filepath.Join(dir, "sub", "inside")))
	must(os.Symlink("../outside", filepath.Join(dir, "escape")))
	must(os.Mkdir(filepath.Join(dir, "shared"), 0o700))
	put("shared/plain", value, 0o600)
	must(os.Chmod(filepath.Join(dir, "shared"), 0o1777))
	must(syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))

	s := Source{Dir: dir, Names: []string{"PW_*", "EMPTY"}, Lookup: func(name string) (string, bool) {
		return map[string]string{"PW_A": value, "OTHER": value, "EMPTY": ""}[name], name != "PW_NONE"
	}}
	for from, want := range map[string]string{ // the text, or !the reason
		"file:plain": value, "file:line": value, "file:dos": value, "file:lines": value + "\n", "file:sub/inside": value,
		"file:" + dir + "/plain": value, "file:full": strings.Repeat("x", MaxSize), "env:PW_A": value,
		"file:open": "!anyone on this machine can", "file:writable": "!anyone on this machine can", "file:empty": "!it is empty", "file:binary": "!not UTF-8", "file:large": "!more than",
		"file:missing": "!no such file", "file:sub": "!it is a directory", "file:pipe": "!it is a named pipe",
		"file:../outside": "!leads outside the directory", "file:escape": "!leads outside the directory", "file:shared/plain": "!can create files in the directory " + dir + "/shared", "file:/etc/passwd": "!outside the secrets directory",
		"file:" + dir + "/../outside": "!outside the secrets directory", "file:": "!the name is missing",
		"env:OTHER": "!may not use", "env:PW_NONE": "!not set", "env:EMPTY": "!it is empty", "env:": "!the name is missing", "http://x": "!want env:NAME",
	} {
		got, err := s.Read(from)
		reason, refused := strings.CutPrefix(want, "!")
		switch {
		case !refused && (err != nil || got.Reveal() != want):
			t.Errorf("%s: %q, %v", from, got.Reveal(), err)
		case refused && (err == nil || !strings.Contains(err.Error(), reason) || !strings.Contains(err.Error(), from)):
			t.Errorf("%s: want %q in %v", from, reason, err)
		case refused && strings.Contains(err.Error(), value):
			t.Errorf("%s: the value is shown: %v", from, err)
		}
	}
	if _, err := (Source{}).Read("file:plain"); err == nil || !strings.Contains(err.Error(), "secrets.dir") {
		t.Errorf("without a folder: %v", err)
	}
	must(os.Chmod(dir, 0o777))
	if _, err := s.Read("file:plain"); err == nil || !strings.Contains(err.Error(), "chmod o-w") || strings.Contains(err.Error(), value) {
		t.Errorf("a folder that everybody may write: %v", err)
	}
	t.Setenv("PW_REAL", value)
	if got, err := (Source{}).Read("env:PW_REAL"); err != nil || got.Reveal() != value {
		t.Errorf("the real environment: %v, %v", got, err)
	}
}

// TestAllows: what a third-party document may name: only what is listed, and files only by their path in the folder.
func TestAllows(t *testing.T) {
	listed := Source{Names: []string{"PW_*", "TOKEN"}, Dir: "/run/secrets"}
	for _, c := range []struct {
		s       Source
		from    string
		setting string // that would allow it; empty: it is allowed
	}{
		{Source{}, "env:TOKEN", "secrets: {env: [TOKEN]}"}, {Source{Names: []string{}}, "env:TOKEN", "secrets: {env: [TOKEN]}"},
		{Source{}, "file:token", "secrets: {dir: FOLDER}"}, {Source{}, "env:a b: c", `secrets: {env: ["a b: c"]}`},
		{listed, "env:TOKEN", ""}, {listed, "env:PW_A", ""}, {listed, "file:token", ""}, {listed, "file:sub/token", ""},
		{listed, "env:TOKEN2", "secrets: {env: [TOKEN2]}"}, {listed, "env:token", "secrets: {env: [token]}"}, {listed, "env:", `secrets: {env: [""]}`},
		{listed, "env:*", `secrets: {env: ["*"]}`}, {listed, "env:PW_A/x", `secrets: {env: ["PW_A/x"]}`},
		{listed, "file:/run/secrets/token", "secrets: {dir: FOLDER}"}, {listed, "file:../token", "secrets: {dir: FOLDER}"},
		{listed, "file:sub/../../token", "secrets: {dir: FOLDER}"}, {listed, "file:", "secrets: {dir: FOLDER}"}, {listed, "ENV:TOKEN", "secrets"}, {listed, "TOKEN", "secrets"},
	} {
		if only, setting := c.s.Allows(c.from); (only == "") != (c.setting == "") || !strings.HasPrefix(setting, c.setting) || c.setting == "" && setting != "" {
			t.Errorf("%s: %q, %q; want %q", c.from, only, setting, c.setting)
		}
	}
}
