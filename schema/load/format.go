package load

import (
	"bytes"
	"context"
	"fmt"

	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/parser"
	"github.com/go-json-experiment/json/jsontext"
)

// Format returns a source in its canonical layout: CUE as `cue fmt` writes it, JSON indented by two spaces with names in
// their order and numbers as they were written. YAML is only checked and returned as it is: no library keeps its
// comments and blank lines in place. A source that cannot be read is an error with file, line and column; so is a directory.
func Format(s Source) ([]byte, error) {
	if s.Dir {
		return nil, fmt.Errorf("format %s: it is a directory; name the files in it", s.Name)
	}
	if fault := s.unreadable(); fault != nil {
		return nil, (&origin{sources: []Source{s}, json: s.Data}).fault(fault).Err()
	}
	switch s.language() {
	case langJSON:
		if _, fault := decodeJSON(s.Data); fault != nil {
			return nil, (&origin{sources: []Source{s}, json: s.Data}).fault(fault).Err()
		}
		v := jsontext.Value(bytes.Clone(s.Data))
		if err := v.Indent(jsontext.WithIndent("  "), jsontext.PreserveRawStrings(true)); err != nil {
			return nil, fmt.Errorf("format %s: %w", s.Name, err)
		}
		return append(v, '\n'), nil
	case langYAML:
		if _, ds := evaluateHere(context.Background(), []Source{s}); ds.HasErrors() {
			return nil, ds.Err()
		}
		return s.Data, nil
	}
	e := evaluation{}
	file, err := parser.ParseFile(s.Name, s.Data, parser.ParseComments)
	if err != nil {
		return nil, e.refuse(codeEvaluation, err).Err()
	}
	return format.Node(file)
}
