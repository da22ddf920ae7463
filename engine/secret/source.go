package secret

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/schema"
)

// MaxSize is the maximum size of a secret in bytes.
const MaxSize = 64 << 10

// A Source says where secrets may be read.
type Source struct {
	Lookup func(name string) (string, bool) // the environment; nil is os.LookupEnv
	Names  []string                         // variables that may be named, with * for any text; nil: depends on the reader, see Allows
	Dir    string                           // folder of the files that may be named; empty: none may
}

// Unreadable tries to read the secrets that a desired spec refers to, keeps none, and returns why some cannot be read.
func (s Source) Unreadable(k *schema.Kind, spec schema.Object) (reasons []error) {
	_, err := sealed.Each(k, spec, func(path string, v any) (any, error) {
		from, err := reference(v)
		if err == nil {
			_, err = s.Read(from)
		}
		if err != nil {
			reasons = append(reasons, fmt.Errorf("%s: %w", path, err))
		}
		return v, nil
	})
	if err != nil {
		reasons = append(reasons, err)
	}
	return reasons
}

// Allows checks whether a document that others wrote may name a place: only what is listed. Without a list it may name
// no variable, without a folder no file, and a file only by its path in the folder, so that an answer does not reveal
// what exists elsewhere. For a place that the document may not name it returns what it may name instead, and which
// setting would allow the place.
func (s Source) Allows(from string) (only, setting string) {
	scheme, name, _ := strings.Cut(from, ":")
	switch {
	case scheme == "env" && s.Names == nil || scheme == "env" && !s.named(name):
		return "listed variables", "secrets: {env: [" + yamlText(name) + "]}"
	case scheme == "file" && s.Dir == "":
		return "files in the secrets directory, and none is configured", "secrets: {dir: FOLDER}"
	case scheme == "file" && !filepath.IsLocal(name):
		return "files by a path relative to the secrets directory", "secrets: {dir: FOLDER}, with the file in that folder"
	case scheme != "env" && scheme != "file":
		return "env:NAME and file:PATH", "secrets"
	}
	return "", ""
}

// yamlText writes a name as an element of a list in YAML.
func yamlText(name string) string {
	if strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == "" && name != "" {
		return name
	}
	return strconv.Quote(name)
}

func (s Source) named(name string) bool {
	return slices.ContainsFunc(s.Names, func(p string) bool { ok, err := path.Match(p, name); return ok && err == nil })
}

// Read reads the secret at a place, env:NAME or file:PATH. An error names the place and never the value.
func (s Source) Read(from string) (Value, error) {
	text, err := s.text(from)
	switch {
	case err != nil:
	case text == "":
		err = errors.New("it is empty")
	case len(text) > MaxSize:
		err = fmt.Errorf("it has more than %d bytes", MaxSize)
	case !utf8.ValidString(text):
		err = errors.New("it is not UTF-8 text; encode it, for example with base64")
	}
	if err != nil {
		return Value{}, fmt.Errorf("%s: %w", from, err)
	}
	return NewValue(text), nil
}

func (s Source) text(from string) (string, error) {
	scheme, name, _ := strings.Cut(from, ":")
	switch {
	case name == "":
		return "", errors.New("the name is missing")
	case scheme == "env":
		return s.variable(name)
	case scheme == "file":
		return s.file(name)
	}
	return "", errors.New("want env:NAME or file:PATH")
}

func (s Source) variable(name string) (string, error) {
	if s.Names != nil && !s.named(name) {
		return "", errors.New("documents may not use this variable; the allowed ones are listed in secrets.env in the configuration")
	}
	lookup := s.Lookup
	if lookup == nil {
		lookup = os.LookupEnv
	}
	text, ok := lookup(name)
	if !ok {
		return "", errors.New("the variable is not set")
	}
	return text, nil
}

// file reads a file below Dir. A link may not lead out of Dir, a file that would block is not opened, and a file that
// others on this machine may read or replace is not secret.
func (s Source) file(name string) (text string, err error) {
	if s.Dir == "" {
		return "", errors.New("no secrets directory is configured; set secrets.dir")
	}
	if filepath.IsAbs(name) {
		dir, err := filepath.Abs(s.Dir)
		if err != nil {
			return "", err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil || !filepath.IsLocal(rel) {
			return "", fmt.Errorf("it is outside the secrets directory, %s", s.Dir)
		}
		name = rel
	}
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return "", fmt.Errorf("open the secrets directory: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for dir := filepath.Clean(name); dir != "."; { // from the folder of the file up to Dir
		dir = filepath.Dir(dir)
		info, err := files.StatIn(root, dir)
		if err != nil {
			return "", err
		}
		if mode := info.Mode().Perm(); mode&0o002 != 0 {
			return "", fmt.Errorf("anyone on this machine can create files in the directory %s (mode %04o): run chmod o-w on it", filepath.Join(s.Dir, dir), mode)
		}
	}
	f, err := files.OpenIn(root, name)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err == nil {
		err = files.Private(f.Name(), info)
	}
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxSize+3)) // the value, a newline of two bytes, and one byte too many
	if err != nil {
		return "", err
	}
	text = string(b)
	if cut, ok := strings.CutSuffix(text, "\n"); ok {
		text = strings.TrimSuffix(cut, "\r")
	}
	return text, nil
}
