package load

import (
	"bytes"
	"context"
	stderrors "errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	cueload "cuelang.org/go/cue/load"
	"cuelang.org/go/cue/token"
	cuejson "cuelang.org/go/encoding/json"
	cueyaml "cuelang.org/go/encoding/yaml"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/message"
)

// An Evaluator turns sources in CUE, YAML and JSON into one plain document: all of them unified, every value concrete.
// It returns the document, or diagnostics that say why there is none. It knows nothing about kinds.
type Evaluator func(ctx context.Context, sources []Source) (*Evaluated, Diagnostics)

// Evaluated is a document as plain JSON, with the positions that its values came from.
type Evaluated struct {
	JSON  []byte   // names sorted, no blanks
	Files []string // the files that Places refers to
	// Places has four numbers for each value of JSON, in the order of the text: index in Files (-1: none), line, column
	// and byte.
	Places []int32
}

// at returns the file and position of the n-th value; the file name is empty when it has none.
func (e *Evaluated) at(n int) (string, Pos) {
	if 4*n+3 >= len(e.Places) || e.Places[4*n] < 0 {
		return "", Pos{}
	}
	p := e.Places[4*n:]
	return e.Files[p[0]], Pos{Line: int(p[1]), Column: int(p[2]), Byte: int(p[3])}
}

// read decodes the sources to a document; nil when that is not possible. Take is as in [decodeBounded].
func read(ctx context.Context, o Options, sources []Source, take func(path []string, v any)) (*origin, map[string]any, Diagnostics) {
	if len(sources) == 0 {
		return nil, nil, Diagnostics{{Severity: Error, Code: codeSyntax, Summary: summaries[codeSyntax], Detail: "No source was given to read the document from."}}
	}
	sources, warnings := leftOut(sources)
	at := &origin{sources: sources, warnings: warnings}
	for _, s := range sources {
		if fault := s.unreadable(); fault != nil {
			return nil, nil, (&origin{sources: []Source{s}, json: s.Data}).fault(fault)
		}
	}
	switch alone := len(sources) == 1 && !sources[0].Dir; {
	case alone && sources[0].language() == langJSON:
		at.json = sources[0].Data
	case alone && sources[0].language() == langCUE && len(bytes.TrimSpace(sources[0].Data)) == 0: // one of several sources may be empty
		return nil, nil, at.fault(nothing(strconv.Quote(schema.APIVersion)))
	default:
		evaluate := o.Evaluator
		if evaluate == nil {
			evaluate = evaluateHere
		}
		evaluated, ds := evaluate(ctx, sources)
		if evaluated == nil {
			return nil, nil, at.snippets(ds)
		}
		at.json, at.evaluated = evaluated.JSON, evaluated
	}
	doc, fault := decodeBounded(at.json, o.Bounds, take)
	if fault != nil {
		return nil, nil, at.fault(fault)
	}
	return at, doc, nil
}

// leftOut removes from sources the files next to a document that are not documents, and warns of them: an overlooked
// resource would otherwise be removed.
func leftOut(sources []Source) (kept []Source, ds Diagnostics) {
	for _, s := range sources {
		if !s.LeftOut {
			kept = append(kept, s)
			continue
		}
		ds = append(ds, Diagnostic{Severity: Warning, Code: codeLeftOut, Summary: summaries[codeLeftOut], Range: &Range{s.Name, Pos{Line: 1, Column: 1}, Pos{Line: 1, Column: 1}},
			Detail: fmt.Sprintf("This file in the directory was skipped because it has no apiVersion at its top level. If it belongs to the document, add apiVersion: %q there; if not, start its name with an underscore to silence this warning.", schema.APIVersion)})
	}
	return kept, ds
}

// unreadable returns one fault for a source that is not even text; evaluation would report an error for each byte.
func (s Source) unreadable() *fault {
	if s.Dir || s.language() == langJSON {
		return nil // the strict decoder also reports it only once
	}
	if len(s.Data) > maxSize {
		return tooLarge(len(s.Data), maxSize)
	}
	if at := notText(s.Data); at >= 0 {
		return &fault{offset: int64(at), code: codeSyntax, detail: fmt.Sprintf("This is not text: byte %d is %#02x. A document must be UTF-8 text, in CUE, JSON or YAML.", at, s.Data[at])}
	}
	return nil
}

// nothing returns the fault of an empty source. The apiVersion that it names is written as in the language of the source.
func nothing(apiVersion string) *fault {
	return &fault{code: codeSyntax, detail: fmt.Sprintf("The source is empty. A document needs at least apiVersion: %s and site.", apiVersion)}
}

// snippets adds the source lines, which an evaluator need not send back.
func (o *origin) snippets(ds Diagnostics) Diagnostics {
	for i, d := range ds {
		if d.Range != nil && d.Snippet == "" {
			ds[i].Snippet = snippet(o.text(d.Range.Filename).line(d.Range.Start.Line), d.Range.Start.Column)
		}
	}
	return ds
}

// evaluateHere evaluates in this process. It cannot be interrupted.
func evaluateHere(_ context.Context, sources []Source) (*Evaluated, Diagnostics) {
	e := evaluation{cue: cuecontext.New(), names: make(map[string]string)}
	value, ds := e.build(sources)
	if len(ds) > 0 {
		return nil, arrange(ds, "")
	}
	if err := value.Validate(); err != nil {
		return nil, e.refuse(codeEvaluation, err)
	}
	if err := value.Validate(cue.Concrete(true), cue.Final()); err != nil {
		return nil, e.refuse(codeIncomplete, err)
	}
	w := writer{evaluation: &e, files: make(map[string]int32)}
	if err := w.value(value); err != nil {
		return nil, e.refuse(codeEvaluation, err)
	}
	return &w.out, nil
}

type evaluation struct {
	cue   *cue.Context
	names map[string]string // of files: the name that the user gave, by the absolute path that the CUE library uses
}

// build unifies all sources into one value.
func (e *evaluation) build(sources []Source) (cue.Value, Diagnostics) {
	var ds Diagnostics
	var values []cue.Value
	add := func(v cue.Value, err error) {
		if err == nil {
			err = v.Err()
		}
		if err != nil {
			ds = append(ds, e.refuse(codeEvaluation, err)...)
			return
		}
		values = append(values, v)
	}
	var files []Source
	for _, s := range sources {
		if len(s.Data) > maxSize {
			ds = append(ds, (&origin{sources: []Source{s}}).fault(tooLarge(len(s.Data), maxSize))...)
			continue
		}
		switch {
		case s.Dir:
			v, err := e.directory(s.Name)
			if err == nil {
				values = append(values, v)
				continue
			}
			for _, d := range e.refuse(codeEvaluation, err) {
				if d.Range == nil {
					d.Detail = fmt.Sprintf("In %s, %s", s.Name, d.Detail)
				}
				ds = append(ds, d)
			}
		case s.language() == langCUE:
			files = append(files, s)
		case s.language() == langYAML:
			if fault := checkYAML(s); fault != nil {
				ds = append(ds, (&origin{sources: []Source{s}, json: s.Data}).fault(fault)...)
				continue
			}
			file, err := cueyaml.Extract(s.Name, s.Data)
			if err != nil {
				add(cue.Value{}, err)
				continue
			}
			add(e.cue.BuildFile(file), nil)
		default:
			// The strict decoder refuses what the CUE library would accept, such as a duplicate name.
			if _, fault := decodeJSON(s.Data); fault != nil {
				ds = append(ds, (&origin{sources: []Source{s}, json: s.Data}).fault(fault)...)
				continue
			}
			var expr ast.Expr
			expr, err := cuejson.Extract(s.Name, s.Data)
			if err != nil {
				add(cue.Value{}, err)
				continue
			}
			add(e.cue.BuildExpr(expr), nil)
		}
	}
	if len(files) > 0 {
		add(e.files(files))
	}
	if len(ds) > 0 {
		return cue.Value{}, ds
	}
	all := values[0]
	for _, v := range values[1:] {
		all = all.Unify(v)
	}
	if all.IncompleteKind() != cue.StructKind && all.Err() == nil {
		pos := e.pos(all.Pos())
		return cue.Value{}, Diagnostics{{Severity: Error, Code: codeSyntax, Summary: summaries[codeSyntax], Range: pos,
			Detail: fmt.Sprintf("A document must be an object with apiVersion and site; this is a %s.", all.IncompleteKind())}}
	}
	return all, nil
}

// directory loads the CUE files of a directory: one package, or files that belong to none.
func (e *evaluation) directory(dir string) (cue.Value, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return cue.Value{}, err
	}
	f, err := openFolder(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return cue.Value{}, fmt.Errorf("cannot find package %q", abs)
	}
	if err != nil {
		return cue.Value{}, err
	}
	defer f.tree.close()
	e.names[f.abs+string(filepath.Separator)] = dir + string(filepath.Separator)
	args := make([]string, len(f.cue))
	for i, name := range f.cue {
		args[i] = filepath.Join(f.abs, name)
	}
	return e.load(args, f.abs, f.tree)
}

// files loads CUE files, which see each other's fields and definitions like files of one package.
func (e *evaluation) files(sources []Source) (cue.Value, error) {
	wd, err := os.Getwd()
	if err != nil {
		return cue.Value{}, err
	}
	given := make(map[string][]byte)
	var args []string
	for _, s := range sources {
		abs := s.Name
		if !filepath.IsAbs(abs) {
			abs = filepath.Join(wd, abs)
		}
		if real, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil { // the form that the tree uses
			abs = filepath.Join(real, filepath.Base(abs))
		}
		if filepath.Ext(abs) != ".cue" {
			abs += ".cue"
		}
		abs = strings.ReplaceAll(abs, ":", "_") // a prefix up to a colon would be taken for the type of the file
		e.names[abs] = s.Name
		given[abs] = s.Data
		args = append(args, abs)
	}
	dir := filepath.Dir(args[0])
	t, _, err := openTree(dir)
	if errors.Is(err, fs.ErrNotExist) { // of a source that has only the name
		dir = wd
		t, _, err = openTree(dir)
	}
	if err != nil {
		return cue.Value{}, err
	}
	defer t.close()
	t.given = given
	return e.load(args, dir, t)
}

func (e *evaluation) load(args []string, dir string, from *tree) (cue.Value, error) {
	instances := cueload.Instances(args, &cueload.Config{
		Dir: dir,
		FS:  from,
		Env: []string{"CUE_REGISTRY=none"}, // nothing is fetched: a document has everything it needs beside it
	})
	if len(instances) != 1 {
		return cue.Value{}, fmt.Errorf("%s contains %d CUE packages, want one", dir, len(instances))
	}
	if err := instances[0].Err; err != nil {
		return cue.Value{}, err
	}
	v := e.cue.BuildInstance(instances[0])
	return v, v.Err()
}

// name returns the name by which the user knows a file.
func (e *evaluation) name(file string) string {
	if n, ok := e.names[file]; ok {
		return n
	}
	for abs, n := range e.names {
		if rest, ok := strings.CutPrefix(file, abs); ok && strings.HasSuffix(abs, string(filepath.Separator)) {
			return filepath.Join(n, rest)
		}
	}
	return file
}

func (e *evaluation) pos(p token.Pos) *Range {
	if !p.IsValid() || p.Filename() == "" {
		return nil
	}
	at := Pos{Line: p.Line(), Column: p.Column(), Byte: p.Offset()}
	return &Range{Filename: e.name(p.Filename()), Start: at, End: at}
}

// refuse turns errors of the CUE library into diagnostics.
func (e *evaluation) refuse(code string, err error) Diagnostics {
	var ds Diagnostics
	for _, ce := range errors.Errors(err) {
		if len(ds) == enough {
			return arrange(ds, Error)
		}
		detail := said(ce)
		if len(detail) > 400 {
			detail = detail[:400] + message.Cut
		}
		d := Diagnostic{Severity: Error, Code: code, Summary: summaries[code], Path: documentPath(ce.Path()), Range: e.pos(ce.Position())}
		var others []string
		for _, p := range ce.InputPositions() {
			r := e.pos(p)
			switch {
			case r == nil:
			case d.Range == nil:
				d.Range = r
			case compareRange(d.Range, r) != 0:
				others = append(others, fmt.Sprintf("%s:%d:%d", r.Filename, r.Start.Line, r.Start.Column))
			}
		}
		d.Detail = fmt.Sprintf("CUE says: %s.", strings.TrimSuffix(message.Printable(detail), "."))
		if code == codeIncomplete {
			d.Detail += " A document must contain values, not constraints: give this field one value, or a default with *."
		}
		if others = slices.Compact(others); len(others) > 0 {
			d.Detail += fmt.Sprintf(" See also %s.", strings.Join(others[:min(len(others), 4)], ", "))
		}
		ds = append(ds, d)
	}
	return arrange(ds, "")
}

// said returns the text of an error of the CUE library, with its cause and without positions.
func said(ce errors.Error) string {
	format, args := ce.Msg()
	text := fmt.Sprintf(format, args...)
	if text == "" { // an error from below the library
		return ce.Error()
	}
	for _, cause := range errors.Errors(stderrors.Unwrap(ce)) {
		if m := said(cause); !strings.Contains(text, m) {
			text += ": " + m
		}
	}
	return text
}
