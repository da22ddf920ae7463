package load

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadSources(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "site")
	file, big := filepath.Join(folder, "site.yaml"), filepath.Join(dir, "big.json")
	for path, text := range map[string]string{
		file: "a: 1\n", filepath.Join(folder, "net.cue"): "c: 3\n", filepath.Join(folder, "converge.yaml"): "site: x\n",
		filepath.Join(folder, "README"): "text", filepath.Join(dir, "empty", "README"): "text",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, maxSize+1); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSources([]string{file, folder, Stdin}, strings.NewReader("b: 2\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Source{{Name: file, Data: []byte("a: 1\n")}, {Name: folder, Dir: true}, {Name: file, Data: []byte("a: 1\n")}, {Name: "<stdin>", Data: []byte("b: 2\n")}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, c := range []struct {
		paths []string
		want  string
	}{
		{nil, "no file is named"},
		{[]string{filepath.Join(dir, "missing.cue")}, "missing.cue"},
		{[]string{filepath.Join(dir, "empty")}, "has no .cue, .json or .yaml file"},
		{[]string{Stdin}, "standard input is not there"},
		{[]string{big}, "the limit is 64 MiB"},
	} {
		if got, err := ReadSources(c.paths, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, %v, want an error with %q", c.paths, got, err, c.want)
		}
	}
}

func TestLanguage(t *testing.T) {
	for _, c := range []struct {
		name, data string
		want       language
	}{
		{"a.json", "x", langJSON}, {"a.JSON", "", langJSON}, {"a.yml", "{}", langYAML}, {"a.yaml", "", langYAML}, {"a.cue", `{"a":1}`, langCUE},
		{"<stdin>", ` { "a":1}`, langJSON}, {"<stdin>", "{}", langJSON}, {"<stdin>", "{a:1}", langCUE}, {"<stdin>", "a: 1", langCUE}, {"<stdin>", "", langCUE},
	} {
		if got := (Source{Name: c.name, Data: []byte(c.data)}).language(); got != c.want {
			t.Errorf("%s with %q is %s, want %s", c.name, c.data, got, c.want)
		}
	}
}
