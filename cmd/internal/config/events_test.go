package config_test

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestEvents(t *testing.T) {
	f, err := read(t, "events: {webhook: \"https://cloud.example/e\", token_file: token, ca: /etc/ca.crt, kinds: [run.ended, node.lost]}\n")
	if err != nil {
		t.Fatal(err)
	}
	if e := f.Events; e == nil || e.TokenFile != filepath.Join(f.Dir(), "token") || e.CA != "/etc/ca.crt" || len(e.Kinds) != 2 {
		t.Errorf("%+v", e)
	}
	if f, err := read(t, "site: a\n"); err != nil || f.Events != nil {
		t.Errorf("%+v, %v", f, err)
	}
	const canary = "canary-7c0e9b1f"
	for text, want := range map[string]string{
		"events: {}\n": "events: webhook: want a URL",
		"events: {webhook: \"https://a.example\", tokenfile: x}\n":                     "Did you mean token_file?",
		"events: {webhook: \"http://a.example/" + canary + "\"}\n":                     "without TLS",
		"events: {webhook: \"https://u:" + canary + "@a.example\"}\n":                  "put a bearer token into token_file",
		"events: {webhook: \"https://a.example\", kinds: [run.endet]}\n":               "Did you mean run.ended?",
		"events: {webhook: \"https://a.example\", kinds: [run.ended, run.ended]}\n":    "run.ended is there twice",
		"events: {webhook: \"https://a.example\", kinds: {a: b}}\n":                    "line 1",
		"events: {webhook: [\"https://a.example\"], token_file: \"" + canary + "\"}\n": "line 1",
	} {
		if _, err := read(t, text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), canary) {
			t.Errorf("%q: want %q: %v", text, want, err)
		}
	}
}
