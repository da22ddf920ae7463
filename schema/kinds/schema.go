package kinds

import (
	"fmt"
	"io/fs"
	"maps"
	"sync"

	"converge.dev/converge/schema"
)

// A Schema is the compiled CUE module: all kinds, and the checks that documents must pass. It may be used by several
// goroutines.
type Schema struct {
	*compiled
	kinds  map[string]*kind
	public schema.Kinds
	module func() (*module, error) // made when CUE is first asked
}

// A compiled is what CUE files say, as plain data. That of the embedded files is in compiled*.go, so that a process starts
// without CUE; `go generate ./schema/kinds` writes it anew, and a test says when that was forgotten. Nothing changes it.
type compiled struct {
	digests  map[string]string // by file
	doc      string            // of #Document
	head     *object           // of a document, without nodes and providers
	nodeName *check            // what a node may be called
	kinds    []*kind           // sorted by name
}

// add adds a kind and the digest of its file. What each file compiles to is in a file of its own, so that two people who add a
// kind each do not meet in one.
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
	external *check   // what may stand in the place of a resource; nil: nothing
	opaque   []string // what in the definition only CUE can judge; empty: body judges alone
	dynamic  bool     // some of that depends on the values of fields
}

//go:generate go test -tags uncompiled -run ^TestCompiledIsOfTheFiles$ . -update

// New returns the schema of the embedded CUE module. An error names the file and the field that are wrong.
func New() (*Schema, error) { return open(&compiledFiles, schema.Files) }

// NewFrom compiles the CUE files */*.cue of a file system, which are one package.
func NewFrom(fsys fs.FS) (*Schema, error) { return open(&compiled{}, fsys) }

// open returns the schema of files: what they were compiled to, unless that was others.
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

// Kinds returns all kinds by name. They are shared: change nothing in them.
func (s *Schema) Kinds() schema.Kinds { return s.public }
