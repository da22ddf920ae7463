package load

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const ours = "apiVersion: \"converge.dev/v1\"\n"

// lay writes files into a new folder.
func lay(t *testing.T, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestReadSources(t *testing.T) {
	dir := lay(t, map[string]string{
		"site/site.yaml": ours, "site/net.cue": "c: 3\n", "site/converge.yaml": "site: x\n", "site/README": "text", "empty/README": "text",
		"stray/plan.json": `{"format":1}`, "notes.txt": "a: 1\n", "site/below/x.cue": "d: 4\n",
	})
	folder := filepath.Join(dir, "site")
	file, big := filepath.Join(folder, "site.yaml"), filepath.Join(dir, "big.json")
	for _, path := range []string{big, filepath.Join(dir, "half.json"), filepath.Join(dir, "rest.json")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		size := int64(maxSize/2 + 1)
		if path == big {
			size = 20 << 30
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.cue"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSources([]string{file, folder, Stdin}, strings.NewReader("b: 2\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Source{{Name: file, Data: []byte(ours)}, {Name: folder, Dir: true}, {Name: file, Data: []byte(ours)}, {Name: "<stdin>", Data: []byte("b: 2\n")}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, c := range []struct {
		paths []string
		want  string
	}{
		{nil, "no file was given"},
		{[]string{filepath.Join(dir, "missing.cue")}, "missing.cue"},
		{[]string{filepath.Join(dir, "empty")}, "contains no .cue, .json or .yaml file"},
		{[]string{filepath.Join(dir, "stray")}, "contains no document"},
		{[]string{Stdin}, "standard input is not available"},
		{[]string{file, folder + "/./site.yaml"}, "/./site.yaml is given twice, first as " + file},
		{[]string{big}, "the limit is 64 MiB"},
		{[]string{filepath.Join(dir, "half.json"), filepath.Join(dir, "rest.json")}, "exceed 64 MiB in total"},
		{[]string{filepath.Join(dir, "notes.txt")}, "want a .cue, .json, .yaml or .yml file, a directory of such files, or - for"},
		{[]string{filepath.Join(dir, "pipe.cue")}, "it is a named pipe, not a regular file; to read a document from a pipe, use standard input, with -"},
		{[]string{"/dev/zero"}, "it is a device, not a regular file"},
		{[]string{dir}, "pipe.cue is a named pipe, not a regular file"},
	} {
		if got, err := ReadSources(c.paths, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, %v, want an error with %q", c.paths, got, err, c.want)
		}
	}
}

// TestFolder loads a folder with much beside the document: other files neither break it nor are part of it.
func TestFolder(t *testing.T) {
	dir := lay(t, map[string]string{
		"site.cue": "package site\n" + head, "more.json": `{"toy":{"owner":{"acme":{}}},"apiVersion":"converge.dev/v1"}`, "flow.yaml": `{"apiVersion": "converge.dev/v1", toy: {owner: {b: {}}}}`,
		".hidden.cue": "package other\n]", "_x.cue": "package other\n]", ".#lock.cue": "]", "_plan.json": "]", ".x.yaml": "]",
		"plan.json": `{"format":1,"document":{"apiVersion":"converge.dev/v1"}}`, "schema.json": `{"$schema":"x","properties":{"apiVersion":{}}}`,
		"list.json": `[1]`, "pod.yaml": "apiVersion: v1\nkind: Pod\n", "config.yaml": "data:\n  apiVersion: converge.dev/v1\n", "other.json": `{"apiVersion":["converge.dev/v1"]}`,
	})
	sources, err := ReadSources([]string{dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	doc, ds := Document(t.Context(), small(t), Options{Evaluator: child(Limits{})}, sources...)
	if doc == nil || len(doc.Resources) != 2 {
		t.Fatalf("%v, %v", doc, ds)
	}
	var left []string
	for _, d := range ds {
		if d.Severity != Warning || d.Code != codeLeftOut {
			t.Errorf("%v", d)
		}
		left = append(left, filepath.Base(d.Range.Filename))
	}
	slices.Sort(left)
	if want := []string{"config.yaml", "list.json", "other.json", "plan.json", "pod.yaml", "schema.json"}; !slices.Equal(left, want) {
		t.Errorf("warned of %v, want %v", left, want)
	}
	// When named, a file is part of the document whatever it contains.
	named := filepath.Join(dir, "config.yaml")
	sources, err = ReadSources([]string{named}, nil)
	if err != nil || len(sources) != 1 || sources[0].LeftOut {
		t.Errorf("%v, %v", sources, err)
	}
	// An unreadable one may be part of it.
	if err := os.WriteFile(filepath.Join(dir, "broken.json"), []byte(`{"toy":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if sources, err = ReadSources([]string{dir}, nil); err != nil {
		t.Fatal(err)
	}
	if doc, ds := Document(t.Context(), small(t), Options{}, sources...); doc != nil || !ds.HasErrors() || !strings.Contains(ds[0].String(), "broken.json") {
		t.Errorf("%v, %v", doc, ds)
	}
}

// TestFolderIsNotLeft puts links out of a folder, as an author of documents for others could. They are refused with a
// sentence, whatever they lead to, and nothing of the target is shown.
func TestFolderIsNotLeft(t *testing.T) {
	const canary = "root:canary:0:0"
	for name, c := range map[string]struct {
		link, to string
		folder   string
	}{
		"JSON":             {"doc/z.json", "../precious", "doc"},
		"YAML":             {"doc/z.yaml", "../precious", "doc"},
		"CUE":              {"doc/z.cue", "../precious", "doc"},
		"absolute":         {"doc/z.cue", "/precious", "doc"},
		"imported package": {"module/names/z.cue", "../../precious", "module"},
		"imported folder":  {"module/names", "../other", "module"},
		"module":           {"module/cue.mod/module.cue", "../../precious", "module"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, map[string]string{
				"precious": canary, "other/z.cue": canary, "doc/site.cue": head,
				"module/site.cue": "package site\nimport \"example.com/site/names\"\ntoy: owner: (names.owner): {}\n" + head,
			})
			if name != "module" {
				if err := os.MkdirAll(filepath.Join(dir, "module/cue.mod"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "module/cue.mod/module.cue"), []byte("module: \"example.com/site@v0\"\nlanguage: version: \"v0.17.0\"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			to := c.to
			if filepath.IsAbs(to) {
				to = filepath.Join(dir, to)
			}
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, c.link)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, filepath.Join(dir, c.link)); err != nil {
				t.Fatal(err)
			}
			said := ""
			for _, paths := range [][]string{{filepath.Join(dir, c.folder)}, {filepath.Join(dir, c.folder, "site.cue")}} {
				sources, err := ReadSources(paths, nil)
				if err != nil {
					said += err.Error()
					continue
				}
				doc, ds := Document(t.Context(), small(t), Options{}, sources...)
				if doc != nil && paths[0] == filepath.Join(dir, c.folder) {
					t.Errorf("%v is taken", paths)
				}
				for _, d := range ds {
					said += d.String() + d.Snippet
				}
			}
			if strings.Contains(said, "canary") {
				t.Errorf("it shows what is outside:\n%s", said)
			}
			if c.folder == "doc" && !strings.Contains(said, "is a link that points outside "+filepath.Join(dir, "doc")) {
				t.Errorf("it does not say what is wrong:\n%s", said)
			}
			t.Log(said)
		})
	}

	// Within the module links may lead anywhere, and a folder that the user named may be one.
	dir := lay(t, map[string]string{"real/cue.mod/module.cue": "module: \"example.com/site@v0\"\nlanguage: version: \"v0.17.0\"\n", "real/doc/site.cue": head, "real/shared.cue": "toy: owner: acme: {}\n"})
	for link, to := range map[string]string{"real/doc/shared.cue": "../shared.cue", "named": "real/doc"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	sources, err := ReadSources([]string{filepath.Join(dir, "named")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if doc, ds := Document(t.Context(), small(t), Options{}, sources...); doc == nil || len(doc.Resources) != 1 {
		t.Errorf("%v, %v", doc, ds)
	}
}

// TestNoText: what is not text is one error, not one for each of its bytes.
func TestNoText(t *testing.T) {
	binary := "\x7fELF\x02\x01" + strings.Repeat("\x00\xff\xfe{]", 1000)
	for _, name := range []string{"a.cue", "a.yaml", "a.json", "<stdin>", "folder"} {
		source := Source{Name: name, Data: []byte(binary)}
		if name == "folder" {
			source = Source{Name: lay(t, map[string]string{"a.cue": binary, "b.cue": head}), Dir: true}
		}
		doc, ds := Document(t.Context(), small(t), Options{}, source)
		if doc != nil || len(ds) != 1 || len(ds[0].String()) > 500 {
			t.Errorf("%s: %d diagnostics: %.2000v", name, len(ds), ds)
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
