package kinds

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/parser"

	"converge.dev/converge/schema"
)

// A module is a schema in the CUE library: it is compiled to checks, and decides where these cannot.
type module struct {
	files     []*ast.File
	kinds     []described          // as in the package
	providers map[string]bool      // those that have kinds
	values    map[string]cue.Value // the definitions of the kinds, by name

	mu  sync.Mutex // guards the following: a cue.Context is for one goroutine at a time
	ctx *cue.Context
	cue cue.Value // the whole package
}

// A described is a place where the package declares a kind: [NAME]: DEFINITION.
type described struct {
	name     string
	node     bool
	names    cue.Selector
	resource cue.Value
	external bool // may also be external: [NAME]: *DEFINITION | #External; or is nothing else, because DEFINITION embeds that
}

// A source is a CUE file of the schema.
type source struct {
	name string
	data []byte
}

// readFiles reads the files */*.cue in the order of their names. Equal files have equal digests.
func readFiles(fsys fs.FS) (files []source, digests map[string]string, err error) {
	names, err := fs.Glob(fsys, "*/*.cue")
	digests = make(map[string]string, len(names))
	for _, name := range names {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, source{name, text})
		sum := sha256.Sum256(text)
		digests[name] = hex.EncodeToString(sum[:])
	}
	return files, digests, err
}

// newModule makes one CUE instance from files and finds the kinds in it.
func newModule(files []source) (*module, error) {
	m := &module{ctx: cuecontext.New(), providers: make(map[string]bool), values: make(map[string]cue.Value)}
	inst := build.NewContext().NewInstance("", nil)
	for _, file := range files {
		f, err := parser.ParseFile(file.name, file.data, parser.ParseComments)
		if err != nil {
			return nil, explainCUE(err)
		}
		if err := inst.AddSyntax(f); err != nil {
			return nil, explainCUE(err)
		}
	}
	if err := inst.Complete(); err != nil {
		return nil, explainCUE(err)
	}
	m.files = inst.Files
	m.cue = m.ctx.BuildInstance(inst)
	if err := m.cue.Err(); err != nil {
		return nil, explainCUE(err)
	}
	return m, m.find()
}

// externalDefinition is the definition of what may be in place of a resource.
const externalDefinition = "#External"

// find checks that the definitions #Document, #Resource, #Site and #Node exist, and lists the kinds in the last two:
// PROVIDER?: NOUN?: [NAME]: DEFINITION.
func (m *module) find() error {
	var errs []error
	for _, name := range []string{"#Document", "#Resource", "#Site", "#Node"} {
		if v := m.definition(name); v.Err() != nil {
			errs = append(errs, explainCUE(v.Err()))
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	for _, label := range []string{"#Site", "#Node"} {
		for provider, v := range fieldsOf(m.definition(label)) {
			m.providers[provider.Unquoted()] = true
			for noun, v := range fieldsOf(v) {
				d := described{name: provider.Unquoted() + "." + noun.Unquoted(), node: label == "#Node"}
				errs = append(errs, m.add(d, v))
			}
		}
	}
	slices.SortFunc(m.kinds, func(a, b described) int { return strings.Compare(a.name, b.name) })
	return errors.Join(errs...)
}

// add adds a kind; v is the map of its resources.
func (m *module) add(d described, v cue.Value) error {
	if _, ok := m.values[d.name]; ok {
		return fmt.Errorf("%s: kind %s is both on the site and on nodes", file(v), d.name)
	}
	members, err := v.Fields(cue.Optional(true), cue.Patterns(true))
	if err != nil || !members.Next() || members.Selector().ConstraintType() != cue.PatternConstraint {
		return fmt.Errorf("%s: kind %s: want [NAME]: DEFINITION", file(v), d.name)
	}
	d.names, d.resource = members.Selector(), members.Value()
	if members.Next() {
		return fmt.Errorf("%s: kind %s: more than one grammar of names", file(v), d.name)
	}
	v = d.resource
	if op, args := v.Expr(); op == cue.OrOp && len(args) == 2 {
		if name, _ := m.named(args[1]); name == externalDefinition {
			v, d.external = args[0], true
		}
	}
	m.kinds = append(m.kinds, d)
	m.values[d.name] = m.dereference(v)
	return nil
}

// compile compiles the kinds, and what is above them in a document.
func (m *module) compile() (*compiled, error) {
	c := newCompiler(m)
	document := m.definition("#Document")
	all := &compiled{doc: doc(document)}
	var errs []error
	for _, d := range m.kinds {
		k, err := m.read(c, d)
		all.kinds = append(all.kinds, k)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c.unknown = nil
	all.head = c.object(document, func(name string) bool { return name == "nodes" || m.providers[name] })
	nodes, err := document.LookupPath(cue.MakePath(cue.Str("nodes").Optional())).Fields(cue.Optional(true), cue.Patterns(true))
	if err != nil || !nodes.Next() || nodes.Selector().ConstraintType() != cue.PatternConstraint {
		return nil, errors.New("#Document: want nodes?: [NAME]: #Node")
	}
	all.nodeName = c.names(nodes.Selector(), nodes.Value())
	if c.unknown != nil {
		return nil, fmt.Errorf("#Document: only CUE can check %s", strings.Join(c.unknown, ", "))
	}
	return all, m.checkRefs(all.kinds)
}

// names returns the names of the fields of a definition, sorted.
func (m *module) names(definition string) (names []string) {
	for sel := range fieldsOf(m.definition(definition)) {
		names = append(names, sel.Unquoted())
	}
	return names
}

// read compiles one kind.
func (m *module) read(c *compiler, d described) (*kind, error) {
	v := m.values[d.name]
	k := &kind{Kind: schema.Kind{Name: d.name, Node: d.node, Doc: doc(v)}}
	c.unknown = nil
	k.name = c.names(d.names, d.resource)
	if c.unknown != nil {
		return nil, fmt.Errorf("%s: kind %s: in names, only CUE can check %s", file(d.resource), k.Name, strings.Join(c.unknown, ", "))
	}
	c.kind(k, v)
	embedded, common := "#Resource", m.names("#Resource") // what its documents may say of every resource
	if k.isReference() {
		embedded, common, d.external = externalDefinition, m.names(externalDefinition), true
	}
	if d.external {
		c.unknown = nil
		if k.external = c.definition(externalDefinition); c.unknown != nil {
			return nil, fmt.Errorf("%s: only CUE can check %s", externalDefinition, strings.Join(c.unknown, ", "))
		}
	}
	for _, name := range common {
		if o := k.body.object(); o == nil || o.field(name) == nil {
			return nil, fmt.Errorf("%s: kind %s does not embed #Resource", file(v), k.Name)
		}
	}
	var err error
	k.Fields, err = m.fields(v, k.Name, common)
	for i := range k.Fields {
		if embedded == externalDefinition && !k.Fields[i].Computed {
			return nil, errors.Join(err, fmt.Errorf("%s: kind %s embeds %s, so a document cannot set %s: want @computed()", file(v), k.Name, externalDefinition, k.Fields[i].Name))
		}
	}
	return k, err
}

// checkRefs checks that every kind that a field refers to exists.
func (m *module) checkRefs(kinds []*kind) error {
	var errs []error
	for _, k := range kinds {
		k.Spec().Walk([]string{k.Name}, func(path []string, f *schema.Field) bool {
			if _, ok := m.values[f.Ref]; f.Ref != "" && !ok {
				at, names := strings.ReplaceAll(strings.Join(path, "."), ".[]", "[]"), slices.Sorted(maps.Keys(m.values))
				errs = append(errs, fmt.Errorf("%s: %s: @ref(%s): unknown kind %s%s", file(m.values[k.Name]), at, f.Ref, f.Ref, didYouMean(f.Ref, names)))
			}
			return true
		})
	}
	return errors.Join(errs...)
}
