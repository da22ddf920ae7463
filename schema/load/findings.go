package load

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"converge.dev/converge/schema/internal/message"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/rules"
)

const (
	maxDiagnostics = 100  // maximum returned by one load, besides the one that counts the rest
	enough         = 1000 // problems after which the search stops
)

// A problem is a diagnostic whose position in the source is not known yet.
type problem struct {
	path      []string // in the document
	elsewhere bool     // it is in a part of the document that is not in the source
	severity  Severity // empty: error
	code      string
	summary   string // empty: from summaries
	detail    string
}

// Findings collect problems.
type findings struct {
	problems []problem
	more     Severity // the worst severity that was not collected; empty: all were
}

func (f *findings) add(p problem) {
	if len(f.problems) >= enough {
		f.drop(cmp.Or(p.severity, Error))
		return
	}
	f.problems = append(f.problems, p)
}

// drop records that something was found that is not reported.
func (f *findings) drop(severity Severity) {
	if f.more != Error {
		f.more = severity
	}
}

// refused adds a problem that the schema refuses at path.
func (f *findings) refused(path []string, p kinds.Problem) {
	f.add(problem{path: slices.Concat(path, p.Path), code: p.Code, summary: p.Summary, detail: p.Detail})
}

// broken adds the findings of rules. Spec returns that of a resource as in the document, and whether it is not in the source.
func (f *findings) broken(by rules.Findings, spec func(*rules.Resource) (text []byte, elsewhere bool)) {
	for _, p := range by.Problems {
		out := problem{path: p.Path, code: p.Rule.Code, summary: p.Rule.Summary, detail: p.Detail}
		if p.Warning {
			out.severity = Warning
		}
		if r := p.Of; r != nil {
			var text []byte
			text, out.elsewhere = spec(r)
			out.path = slices.Concat(r.Path, written(r, text, p.Path))
		}
		f.add(out)
	}
	if by.Errors > 0 {
		f.drop(Error)
	}
	if by.Warnings > 0 {
		f.drop(Warning)
	}
}

// An origin knows where the values of a document came from.
type origin struct {
	sources   []Source
	json      []byte     // what was decoded: the only source, or the result of evaluation
	evaluated *Evaluated // nil when the source is JSON
	texts     map[string]*sourceText
	warnings  Diagnostics // of the sources themselves
}

// fault returns the diagnostic of a source that cannot be read.
func (o *origin) fault(f *fault) Diagnostics {
	d := Diagnostic{Severity: Error, Code: f.code, Summary: summaries[f.code], Detail: f.detail, Path: documentPath(f.path)}
	if o.evaluated != nil {
		d.Range, d.Snippet = o.mark(locate(o.json, [][]string{f.path})[0])
		return Diagnostics{d}
	}
	t := newText(o.sources[0].Name, o.json)
	if f.code == codeDuplicateName && f.path != nil { // the fault is at the second, the path leads to the first
		first := locate(o.json, [][]string{f.path})[0]
		d.Detail += fmt.Sprintf(" The first is at %s:%d.", t.name, t.pos(first.start).Line)
	}
	d.Range, d.Snippet = t.mark(f.offset, f.offset)
	return Diagnostics{d}
}

// diagnostics finds the position of every problem and sorts them in the order of the source.
func (o *origin) diagnostics(found *findings, secret func(path []string) bool) Diagnostics {
	if len(found.problems) == 0 {
		return nil
	}
	paths := make([][]string, len(found.problems))
	for i, p := range found.problems {
		paths[i] = p.path
	}
	ds := make(Diagnostics, len(paths))
	type line struct {
		file   string
		number int
	}
	hidden := map[line]bool{} // lines with a secret: no other problem of such a line may show it
	for i, pl := range locate(o.json, paths) {
		p := found.problems[i]
		ds[i] = Diagnostic{
			Severity: cmp.Or(p.severity, Error),
			Code:     p.code,
			Summary:  cmp.Or(p.summary, summaries[p.code]),
			Detail:   p.detail,
			Path:     documentPath(p.path),
		}
		if p.elsewhere {
			continue
		}
		ds[i].Range, ds[i].Snippet = o.mark(pl)
		if r := ds[i].Range; r != nil && secret(p.path) {
			hidden[line{r.Filename, r.Start.Line}] = true
		}
	}
	for i := range ds {
		if r := ds[i].Range; r != nil && hidden[line{r.Filename, r.Start.Line}] {
			ds[i].Snippet = ""
		}
	}
	return arrange(ds, found.more)
}

// arrange sorts diagnostics by position, and drops repetitions and those beyond the maximum. If there were more, more is
// the worst severity of them: what is dropped still counts.
func arrange(ds Diagnostics, more Severity) Diagnostics {
	slices.SortFunc(ds, func(a, b Diagnostic) int {
		return cmp.Or(compareRange(a.Range, b.Range), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Detail, b.Detail))
	})
	ds = slices.CompactFunc(ds, func(a, b Diagnostic) bool {
		return a.Code == b.Code && a.Path == b.Path && a.Detail == b.Detail && compareRange(a.Range, b.Range) == 0
	})
	rest := len(ds) - maxDiagnostics
	if rest <= 0 && more == "" {
		return ds
	}
	atLeast := ""
	if more != "" {
		atLeast = "at least "
	}
	severity := Warning
	if ds.HasErrors() || more == Error {
		severity = Error
	}
	return append(ds[:min(len(ds), maxDiagnostics)], Diagnostic{Severity: severity, Code: codeTooMany, Summary: summaries[codeTooMany],
		Detail: fmt.Sprintf("And %s%d more. Fix these first, then load again.", atLeast, max(rest, 1))})
}

func compareRange(a, b *Range) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Or(cmp.Compare(a.Filename, b.Filename), cmp.Compare(a.Start.Line, b.Start.Line), cmp.Compare(a.Start.Column, b.Start.Column))
}

// mark returns the range of a place and the line on which it starts; nil when the place is in no source.
func (o *origin) mark(p place) (*Range, string) {
	if o.evaluated == nil {
		return o.text(o.sources[0].Name).mark(p.start, p.end)
	}
	name, at := o.evaluated.at(p.nth)
	if name == "" {
		return nil, ""
	}
	return &Range{Filename: name, Start: at, End: at}, snippet(o.text(name).line(at.Line), at.Column)
}

// text returns the text of a source. A file of a package is read again, from where the package may be read; one that no
// longer exists is empty.
func (o *origin) text(name string) *sourceText {
	if t := o.texts[name]; t != nil {
		return t
	}
	var data []byte
	if i := slices.IndexFunc(o.sources, func(s Source) bool { return s.Name == name }); i >= 0 {
		data = o.sources[i].Data
	} else {
		data = o.reread(name)
	}
	t := newText(name, data)
	if o.texts == nil {
		o.texts = make(map[string]*sourceText)
	}
	o.texts[name] = t
	return t
}

// reread reads a file that evaluation took from the folder of a source, or from its module.
func (o *origin) reread(name string) []byte {
	dir, err := filepath.EvalSymlinks(filepath.Dir(name))
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return nil
	}
	for _, s := range o.sources {
		folder := s.Name
		if !s.Dir {
			folder = filepath.Dir(s.Name)
		}
		t, _, err := openTree(folder)
		if err != nil {
			continue
		}
		data, err := t.read(filepath.Join(dir, filepath.Base(name)))
		t.close()
		if err == nil {
			return data
		}
	}
	return nil
}

// documentPath returns a path as it is shown; the part up to a resource is as returned by [schema.Ref.Path].
func documentPath(path []string) string {
	shown := slices.Clone(path)
	for i, name := range shown {
		if len(name) > maxName {
			shown[i] = name[:maxName] + message.Cut
		}
	}
	return message.Printable(strings.Join(shown, "."))
}
