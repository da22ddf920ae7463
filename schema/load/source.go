package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/schema"
)

// Stdin is the path that stands for standard input.
const Stdin = "-"

// A Source is one piece of a document: a file that was read, or a directory with CUE files, which are read when it is
// evaluated, because they may import packages beside them. The extension of the name is its language: .cue, .json,
// .yaml or .yml; any other name is CUE, or JSON when the data starts like it.
type Source struct {
	Name string `json:"name"`           // as in diagnostics: the path that the user gave
	Data []byte `json:"data,omitempty"` // nil for a directory
	Dir  bool   `json:"dir,omitempty"`  // Name is a directory and stands for its CUE files

	// LeftOut means that the file is in a directory but is not a document: Load only warns of it.
	LeftOut bool `json:"left_out,omitempty"`
}

// configName is a file that may be next to documents but is not one.
const configName = "converge.yaml"

// accepted describes what may be named as a document.
const accepted = "a .cue, .json, .yaml or .yml file, a directory of such files, or " + Stdin + " for standard input"

// ReadSources reads the files that paths name. A path is a file, a directory, or [Stdin]; stdin may be nil when no path
// is that. A directory stands for its CUE files, and for those JSON and YAML files that have an apiVersion of ours at their
// top, but not for converge.yaml, names that begin with a dot or an underscore, or subfolders; no link may lead out of it,
// or out of the CUE module that it is part of. A path that is not a regular file is an error, and so is one that is named
// twice. A file, or all files together, beyond the size limit of a document is also an error, and is not kept in memory.
func ReadSources(paths []string, stdin io.Reader) ([]Source, error) {
	var sources []Source
	for i, path := range paths {
		if first := slices.IndexFunc(paths[:i], func(other string) bool { return same(path, other) }); first >= 0 {
			return nil, fmt.Errorf("read document: %s is given twice, first as %s", path, paths[first])
		}
		some, err := readPath(path, stdin)
		if err != nil {
			return nil, fmt.Errorf("read document: %w", err)
		}
		sources = append(sources, some...)
		if err := together(sources); err != nil {
			return nil, fmt.Errorf("read document: %w", err)
		}
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("read document: no file was given; want %s", accepted)
	}
	return sources, nil
}

// same reports whether two paths name the same file or directory.
func same(path, other string) bool {
	if path == other {
		return true
	}
	one, err := os.Stat(path)
	if err != nil {
		return false
	}
	two, err := os.Stat(other)
	return err == nil && os.SameFile(one, two)
}

// together applies the limit of one source to all of them together.
func together(sources []Source) error {
	size := 0
	for _, s := range sources {
		size += len(s.Data)
	}
	if size > maxSize {
		return fmt.Errorf("the files of the document exceed %s in total; split the site, or remove what does not belong in it", files.Size(maxSize))
	}
	return nil
}

func readPath(path string, stdin io.Reader) ([]Source, error) {
	if info, err := os.Stat(path); path == Stdin || err != nil || !info.IsDir() {
		s, err := readSource(path, stdin)
		return []Source{s}, err
	}
	f, err := openFolder(path)
	if err != nil {
		return nil, err
	}
	defer f.tree.close()
	var sources []Source
	if len(f.cue) > 0 {
		sources = append(sources, Source{Name: path, Dir: true})
	}
	leftOut := ""
	for _, name := range f.data {
		data, err := f.tree.read(filepath.Join(f.abs, name))
		if err != nil {
			return nil, tooMuch(err)
		}
		s := Source{Name: filepath.Join(path, name), Data: data}
		if !s.isDocument() {
			s, leftOut = Source{Name: s.Name, LeftOut: true}, s.Name
		}
		sources = append(sources, s)
		if err := together(sources); err != nil {
			return nil, err
		}
	}
	switch {
	case len(sources) == 0:
		return nil, fmt.Errorf("%s contains no .cue, .json or .yaml file", path)
	case !slices.ContainsFunc(sources, func(s Source) bool { return !s.LeftOut }):
		return nil, fmt.Errorf("%s contains no document: %s has no apiVersion: %q at its top level", path, leftOut, schema.APIVersion)
	}
	return sources, nil
}

// A folder is a directory with the names of the files that may belong to a document.
type folder struct {
	tree *tree
	abs  string
	cue  []string
	data []string // JSON and YAML
}

// openFolder finds the files of a directory that may belong to a document, and checks that each is a regular file
// within its tree. The caller must close the tree.
func openFolder(path string) (_ *folder, err error) {
	t, abs, err := openTree(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	f := &folder{tree: t, abs: abs}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		ext := strings.ToLower(filepath.Ext(e.Name()))
		if hidden(e.Name()) || e.Name() == configName || !documentExt(ext) {
			continue
		}
		below, _ := t.below(filepath.Join(abs, e.Name()))
		info, err := files.StatIn(t.root, below)
		switch shown := filepath.Join(path, e.Name()); {
		case errors.Is(err, files.ErrLeadsOut):
			return nil, fmt.Errorf("%s is a link that points outside %s, and is not followed; put the file there, or name the file it points to", shown, t.dir)
		case err != nil:
			return nil, err
		case info.IsDir():
			continue
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is %s, not a regular file; remove it, or start its name with an underscore", shown, files.Kind(info.Mode()))
		}
		if ext == ".cue" {
			f.cue = append(f.cue, e.Name())
		} else {
			f.data = append(f.data, e.Name())
		}
	}
	return f, nil
}

// FolderCUE returns the CUE files of a directory that belong to a document, as [ReadSources] finds them.
func FolderCUE(dir string) ([]string, error) {
	f, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	defer f.tree.close()
	paths := make([]string, len(f.cue))
	for i, name := range f.cue {
		paths[i] = filepath.Join(dir, name)
	}
	return paths, nil
}

func documentExt(ext string) bool {
	return slices.Contains([]string{".cue", ".json", ".yaml", ".yml"}, ext)
}

func readSource(path string, stdin io.Reader) (Source, error) {
	if path == Stdin {
		if stdin == nil {
			return Source{}, fmt.Errorf("standard input is not available")
		}
		data, err := io.ReadAll(io.LimitReader(stdin, maxSize+1))
		if err == nil && len(data) > maxSize {
			err = fmt.Errorf("standard input exceeds %s; split the site", files.Size(maxSize))
		}
		return Source{Name: "<stdin>", Data: data}, err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return Source{}, err
	case info.Mode().IsRegular() && !documentExt(strings.ToLower(filepath.Ext(path))):
		return Source{}, fmt.Errorf("%s: cannot tell the format from the file name; want %s", path, accepted)
	}
	data, err := files.Read(path, maxSize)
	if errors.Is(err, files.ErrNotRegular) {
		err = fmt.Errorf("%w; to read a document from a pipe, use standard input, with %s as the file name", err, Stdin)
	}
	return Source{Name: path, Data: data}, tooMuch(err)
}

// tooMuch adds what to do to the error for a file that is too large.
func tooMuch(err error) error {
	var large *files.TooLargeError
	if errors.As(err, &large) {
		return fmt.Errorf("%w; split the site, or remove what does not belong in it", err)
	}
	return err
}

// ourVersion is the prefix of the apiVersion of every document of ours, whatever its version.
var ourVersion, _, _ = strings.Cut(schema.APIVersion, "/")

// versionYAML finds an apiVersion of ours at the top of a YAML file. A false match is refused later; a missed one causes
// a warning.
var versionYAML = regexp.MustCompile(`(?m)^(?:\{\s*)?["']?apiVersion["']?\s*:\s*["']?` + regexp.QuoteMeta(ourVersion) + `/`)

// isDocument reports whether a JSON or YAML file has an apiVersion of ours at its top. One that cannot be read counts as
// a document, so that its problem is reported.
func (s Source) isDocument() bool {
	if s.language() == langYAML {
		return versionYAML.Match(s.Data)
	}
	in := jsontext.NewDecoder(bytes.NewReader(s.Data))
	if start, err := in.ReadToken(); err != nil || start.Kind() != '{' {
		return err != nil
	}
	for in.PeekKind() != '}' {
		name, err := in.ReadToken()
		if err != nil {
			return true
		}
		if name.String() != "apiVersion" {
			if err := in.SkipValue(); err != nil {
				return true
			}
			continue
		}
		version, err := in.ReadToken()
		return err != nil || version.Kind() == '"' && strings.HasPrefix(version.String(), ourVersion+"/")
	}
	return false
}

// A language is the language in which a source is written.
type language string

const (
	langJSON language = "JSON"
	langYAML language = "YAML"
	langCUE  language = "CUE"
)

// language returns the language of the source, according to its name or, where the name says nothing, to the start of its data.
func (s Source) language() language {
	switch strings.ToLower(filepath.Ext(s.Name)) {
	case ".json":
		return langJSON
	case ".yaml", ".yml":
		return langYAML
	case ".cue":
		return langCUE
	}
	// In JSON a quoted name or the closing bracket follows the first bracket; in CUE hardly ever.
	if rest, ok := bytes.CutPrefix(bytes.TrimSpace(s.Data), []byte("{")); ok {
		rest = bytes.TrimLeft(rest, " \t\r\n")
		if len(rest) > 0 && (rest[0] == '"' || rest[0] == '}') {
			return langJSON
		}
	}
	return langCUE
}
