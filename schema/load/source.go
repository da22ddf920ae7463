package load

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Stdin is the path that stands for standard input.
const Stdin = "-"

// A Source is one piece of a document: a file that was read, or a directory with CUE files, which are read when it is
// evaluated, because they may import packages beside them. The name says how it is written: .cue, .json, .yaml or .yml; any other name is CUE, or JSON when the data
// starts like it.
type Source struct {
	Name string `json:"name"`           // as it appears in diagnostics: the path that the user gave
	Data []byte `json:"data,omitempty"` // nothing for a directory
	Dir  bool   `json:"dir,omitempty"`  // Name is a directory; its CUE files are meant
}

// configName is a file that lies beside documents and is none.
const configName = "converge.yaml"

// ReadSources reads the files that paths name. A path is a file, a directory, or [Stdin]; stdin may be nil when no path
// is that. Of a directory all CUE, JSON and YAML files are meant, converge.yaml aside, but not its folders. What is beyond
// the size limit of a document is an error and not kept in memory.
func ReadSources(paths []string, stdin io.Reader) ([]Source, error) {
	var sources []Source
	for _, path := range paths {
		some, err := readPath(path, stdin)
		if err != nil {
			return nil, fmt.Errorf("read document: %w", err)
		}
		sources = append(sources, some...)
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("read document: no file is named; want a .cue, .json or .yaml file, a directory of such files, or %s for standard input", Stdin)
	}
	return sources, nil
}

func readPath(path string, stdin io.Reader) ([]Source, error) {
	if info, err := os.Stat(path); path == Stdin || err != nil || !info.IsDir() {
		s, err := readSource(path, stdin)
		return []Source{s}, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var sources []Source
	cue := false
	for _, e := range entries {
		if e.IsDir() || e.Name() == configName || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		switch strings.ToLower(filepath.Ext(e.Name())) {
		case ".cue":
			cue = true
		case ".json", ".yaml", ".yml":
			s, err := readSource(filepath.Join(path, e.Name()), nil)
			if err != nil {
				return nil, err
			}
			sources = append(sources, s)
		}
	}
	if cue {
		sources = append([]Source{{Name: path, Dir: true}}, sources...)
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%s has no .cue, .json or .yaml file", path)
	}
	return sources, nil
}

func readSource(path string, stdin io.Reader) (Source, error) {
	if path == Stdin {
		if stdin == nil {
			return Source{}, fmt.Errorf("standard input is not there")
		}
		data, err := io.ReadAll(io.LimitReader(stdin, maxSize+1))
		if err == nil && len(data) > maxSize {
			err = fmt.Errorf("standard input has more than %d MiB; split the site", maxSize>>20)
		}
		return Source{Name: "<stdin>", Data: data}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return Source{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Source{}, err
	}
	if info.Size() > maxSize {
		return Source{}, fmt.Errorf("%s has %d bytes, the limit is %d MiB; split the site, or remove what does not belong in it", path, info.Size(), maxSize>>20)
	}
	var data bytes.Buffer
	data.Grow(int(info.Size()) + bytes.MinRead)
	_, err = data.ReadFrom(io.LimitReader(f, maxSize+1)) // what grows meanwhile, or is no regular file, is for Load to refuse
	return Source{Name: path, Data: data.Bytes()}, err
}

// A language is how a source is written.
type language string

const (
	langJSON language = "JSON"
	langYAML language = "YAML"
	langCUE  language = "CUE"
)

// language tells how the source is written, by its name and, where the name says nothing, by how the data starts.
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
