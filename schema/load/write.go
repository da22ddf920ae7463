package load

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/token"
	"cuelang.org/go/encoding/json"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
)

// A Written is a resource to be written into a document.
type Written struct {
	schema.Resource
	Depends []schema.Ref  // those of After that the spec does not refer to
	Comment string        // is written above it; may have several lines
	Aside   schema.Object // fields beyond the spec, written as a comment within it, for authors to enable
}

// A Head is what a document has above its resources. The serial of the site is never written.
type Head struct {
	Site   schema.Site   `json:"site"`
	Policy schema.Object `json:"policy"` // as in the document; nil: none
}

// noPolicy is written in place of the policy where none was stated.
var noPolicy = []string{
	"// The policy says what a plan may do. It cannot be observed and must be stated. For example:",
	"//",
	"// policy: {",
	"// \tmax_destroy: \"10%\" // of the recorded resources, per plan",
	"// \tmanagement: ssh: {src_prefix: \"10.0.0.0/8\", port: 22} // must be permitted by every security group",
	"// }",
}

// Write returns resources as a document in CUE, or as a part of one. A head that is not nil is written with the version of
// the schema; pack, when not empty, is the name in the package clause.
func Write(pack string, head *Head, resources []Written) ([]byte, error) {
	file := &ast.File{}
	if pack != "" {
		file.Decls = append(file.Decls, &ast.Package{Name: ast.NewIdent(pack)})
	}
	if head != nil {
		decls, err := head.fields()
		if err != nil {
			return nil, err
		}
		file.Decls = append(file.Decls, decls...)
	}
	written := slices.Clone(resources)
	slices.SortFunc(written, func(a, b Written) int { return a.Ref.Compare(b.Ref) })
	for i := 0; i < len(written); {
		group := i
		for i < len(written) && written[i].Ref.Scope == written[group].Ref.Scope && written[i].Ref.Kind == written[group].Ref.Kind {
			i++
		}
		field, err := kindField(written[group:i])
		if err != nil {
			return nil, err
		}
		file.Decls = append(file.Decls, field)
	}
	text, err := format.Node(file, format.Simplify())
	if err != nil {
		return nil, err
	}
	return format.Source(text, format.Simplify()) // an AST that was never text is laid out a little differently
}

// fields returns the fields of the head in CUE.
func (h *Head) fields() ([]ast.Decl, error) {
	decls := []ast.Decl{
		&ast.Field{Label: ast.NewIdent("apiVersion"), Value: ast.NewString(schema.APIVersion)},
		&ast.Field{Label: ast.NewIdent("site"), Value: ast.NewStruct("name", ast.NewString(h.Site.Name), "id", ast.NewString(h.Site.ID))},
	}
	if len(h.Policy) > 0 {
		policy, err := structOf(h.Policy)
		return append(decls, &ast.Field{Label: ast.NewIdent("policy"), Value: policy}), err
	}
	group := &ast.CommentGroup{}
	for i, line := range noPolicy {
		c := &ast.Comment{Text: line}
		if i == 0 {
			c.Slash = token.NewSection.Pos()
		}
		group.List = append(group.List, c)
	}
	return append(decls, group), nil
}

// kindField returns the map of all resources of one kind in one scope, below its path.
func kindField(resources []Written) (*ast.Field, error) {
	entries := &ast.StructLit{Lbrace: token.Blank.Pos(), Rbrace: token.Newline.Pos()}
	for _, r := range resources {
		x, err := structOf(r.object())
		if err == nil && len(r.Aside) > 0 {
			err = putAside(x, r.Aside)
		}
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", r.Ref, err)
		}
		f := &ast.Field{Label: ast.NewString(r.Ref.Name), Value: x}
		if r.Comment != "" {
			group := &ast.CommentGroup{Doc: true}
			for line := range strings.Lines(r.Comment) {
				group.List = append(group.List, &ast.Comment{Text: "// " + strings.TrimSpace(line)})
			}
			ast.AddComment(f, group)
		}
		entries.Elts = append(entries.Elts, f)
	}
	first := resources[0].Ref
	provider, noun, _ := strings.Cut(first.Kind, ".")
	labels := []string{provider, noun}
	if first.Scope != schema.ScopeSite {
		labels = append([]string{"nodes", first.Scope}, labels...)
	}
	var value ast.Expr = entries
	for _, label := range slices.Backward(labels[1:]) {
		inner := &ast.StructLit{Elts: []ast.Decl{&ast.Field{Label: ast.NewString(label), Value: value}}}
		value = inner
	}
	return &ast.Field{Label: ast.NewString(labels[0]), Value: value}, nil
}

// structOf returns an object as a struct; several fields have a line each.
func structOf(o schema.Object) (*ast.StructLit, error) {
	x, err := json.Extract("", canonical.Append(nil, map[string]any(o)))
	if err != nil {
		return nil, err
	}
	ast.Walk(x, func(n ast.Node) bool {
		if s, ok := n.(*ast.StructLit); ok && len(s.Elts) > 1 {
			for _, e := range s.Elts {
				ast.SetRelPos(e, token.Newline)
			}
			s.Rbrace = token.Newline.Pos()
		}
		return true
	}, nil)
	return x.(*ast.StructLit), nil
}

// putAside adds fields to a struct as a comment.
func putAside(s *ast.StructLit, fields schema.Object) error {
	o, err := structOf(fields)
	if err != nil {
		return err
	}
	text, err := format.Node(&ast.File{Decls: o.Elts}, format.Simplify())
	if err != nil {
		return err
	}
	group := &ast.CommentGroup{Position: 1} // after the brace
	for line := range strings.Lines(string(text)) {
		group.List = append(group.List, &ast.Comment{Slash: token.Newline.Pos(), Text: "// " + strings.TrimRight(line, "\n")})
	}
	s.Lbrace, s.Rbrace = token.Blank.Pos(), token.Newline.Pos()
	for _, e := range s.Elts {
		ast.SetRelPos(e, token.Newline)
	}
	ast.AddComment(s, group)
	return nil
}

// object returns the resource as an author would have written it.
func (r Written) object() schema.Object {
	switch x := r.External; {
	case x != nil && x.ID != "":
		return schema.Object{"external": map[string]any{"id": x.ID}}
	case x != nil:
		return schema.Object{"external": true}
	}
	o := maps.Clone(r.Spec)
	if o == nil {
		o = schema.Object{}
	}
	l := map[string]any{}
	if r.Lifecycle.Protect {
		l["protect"] = true
	}
	for name, value := range map[string]string{"on_remove": string(r.Lifecycle.OnRemove), "adopt": string(r.Lifecycle.Adopt), "id": r.Lifecycle.ID} {
		if value != "" {
			l[name] = value
		}
	}
	if len(r.Lifecycle.Ignore) > 0 {
		l["ignore"] = anyList(r.Lifecycle.Ignore)
	}
	if len(l) > 0 {
		o["lifecycle"] = l
	}
	if len(r.Depends) > 0 {
		refs := make([]string, len(r.Depends))
		for i := range refs {
			refs[i] = r.Depends[i].String()
		}
		o["depends_on"] = anyList(refs)
	}
	return o
}

func anyList(texts []string) []any {
	out := make([]any, len(texts))
	for i := range texts {
		out[i] = texts[i]
	}
	return out
}

// WriteJSON returns resources as a document in JSON.
func WriteJSON(head Head, resources []Written) []byte {
	doc := map[string]any{"apiVersion": schema.APIVersion, "site": map[string]any{"name": head.Site.Name, "id": head.Site.ID}}
	if len(head.Policy) > 0 {
		doc["policy"] = map[string]any(head.Policy)
	}
	below := func(m map[string]any, name string) map[string]any {
		child, ok := m[name].(map[string]any)
		if !ok {
			child = map[string]any{}
			m[name] = child
		}
		return child
	}
	for _, r := range resources {
		at := doc
		if r.Ref.Scope != schema.ScopeSite {
			at = below(below(at, "nodes"), r.Ref.Scope)
		}
		provider, noun, _ := strings.Cut(r.Ref.Kind, ".")
		below(below(at, provider), noun)[r.Ref.Name] = map[string]any(r.object())
	}
	return canonical.Append(nil, doc)
}
