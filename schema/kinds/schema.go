package kinds

import (
	"fmt"
	"io/fs"
	"maps"
	"sync"

	"converge.dev/converge/schema"
)

// A Schema is the compiled CUE module: all kinds, and the checks that documents must pass. It is safe for concurrent use.
type Schema struct {
	*compiled
	kinds  map[string]*kind
	public schema.Kinds
	module func() (*module, error) // made when CUE is first needed
}

// A compiled is the content of CUE files as plain data. That of the embedded files is in compiled*.go, so that a process
// starts without CUE; `go generate ./schema/kinds` writes it anew, and a test fails when that was forgotten. It is never modified.
type compiled struct {
	digests  map[string]string // by file
	doc      string            // of #Document
	head     *object           // of a document, without nodes and providers
	nodeName *check            // the grammar of names of nodes
	kinds    []*kind           // sorted by name
}

// add adds a kind and the digest of its file. Each file compiles to a file of its own, so that two people who each add a kind
// do not edit the same one.
func (c *compiled) add(k *kind, file, digest string) {
	c.kinds = append(c.kinds, k)
	if c.digests == nil {
		c.digests = make(map[string]string)
	}
	c.digests[file] = digest
}

// A kind is a schema.Kind with its checks.
type kind struct {
	schema.Kind
	name     *check   // the grammar of names
	body     *check   // what a resource must be
	external *check   // what may be in place of a resource; nil: nothing
	opaque   []string // what in the definition only CUE can check; empty: body is enough
	dynamic  bool     // some of that depends on the values of fields
}

// isReference reports whether a document can only refer to things of the kind: what it says is all that #External has.
func (k *kind) isReference() bool {
	o := k.body.object()
	return o != nil && o.field("external") != nil
}

//go:generate go test -tags uncompiled -run ^TestCompiledIsOfTheFiles$ . -update

// New returns the schema of the embedded CUE module. An error names the file and the field that are wrong.
func New() (*Schema, error) { return open(&compiledFiles, schema.Files) }

// NewFrom compiles the CUE files */*.cue of a file system, which form one package.
func NewFrom(fsys fs.FS) (*Schema, error) { return open(&compiled{}, fsys) }

// open returns the schema of files: from c, unless that was compiled from other files.
func open(c *compiled, fsys fs.FS) (*Schema, error) {
	files, digests, err := readFiles(fsys)
	if err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	s := &Schema{compiled: c, kinds: make(map[string]*kind), public: make(schema.Kinds)}
	s.module = sync.OnceValues(func() (*module, error) { return newModule(files) })
	if c.digests == nil || !maps.Equal(c.digests, digests) {
		m, err := s.module()
		if err == nil {
			s.compiled, err = m.compile()
		}
		if err != nil {
			return nil, fmt.Errorf("compile the schema: %w", err)
		}
		s.compiled.digests = digests
	}
	for _, k := range s.compiled.kinds {
		s.kinds[k.Name], s.public[k.Name] = k, &k.Kind
	}
	return s, nil
}

// Kinds returns all kinds by name. They are shared, and must not be modified.
func (s *Schema) Kinds() schema.Kinds { return s.public }
