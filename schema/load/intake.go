package load

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"converge.dev/converge/schema/internal/canonical"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/rules"
)

// An intake takes the resources of a document as they are read, and checks each of them alone while the next are being read, on the
// processors that the reader does not need.
type intake struct {
	ctx     context.Context
	cancel  context.CancelFunc
	schema  *kinds.Schema
	last    []taken      // what is still to be passed on
	chunks  [][]taken    // what was passed on
	passed  chan []taken // has room for all chunks, so that the reader never waits
	workers sync.WaitGroup
	total   atomic.Int64 // problems so far
}

// A taken is a resource with what was found in it.
type taken struct {
	*rules.Resource
	spec     canonical.Raw // as in the document
	checked  bool
	conforms bool // the spec does, whatever the name is
	problems []kinds.Problem
}

// newIntake returns an intake, which has to be stopped. It checks no more when ctx ends.
func newIntake(ctx context.Context, s *kinds.Schema) *intake {
	ctx, cancel := context.WithCancel(ctx)
	return &intake{ctx: ctx, cancel: cancel, schema: s, passed: make(chan []taken, maxResources/chunkSize+1)}
}

// take takes what is at a path of the document, unless no resource can be there.
func (in *intake) take(path []string, v any) {
	r := rules.NewResource(in.schema.Kinds(), path, v)
	if r == nil {
		return
	}
	if len(in.last) == chunkSize {
		if in.chunks == nil {
			for range runtime.GOMAXPROCS(0) - 1 {
				in.workers.Go(in.work)
			}
		}
		in.pass()
	}
	in.last = append(in.last, taken{Resource: r})
}

// pass passes on what was taken last.
func (in *intake) pass() {
	in.chunks = append(in.chunks, in.last)
	in.passed <- in.last
	in.last = nil
}

// site returns the site of a document all of whose resources were taken, and these by number. They have been checked, unless more
// is wrong than anyone will read. Nothing more can be taken.
func (in *intake) site(doc map[string]any) (*rules.Site, []*taken) {
	in.pass()
	close(in.passed)
	var resources []*rules.Resource
	for _, chunk := range in.chunks {
		for i := range chunk {
			resources = append(resources, chunk[i].Resource)
		}
	}
	st := rules.NewSite(in.schema.Kinds(), doc, resources)
	in.work()
	in.workers.Wait()
	all := make([]*taken, len(resources))
	for _, chunk := range in.chunks {
		for i := range chunk {
			all[chunk[i].Number] = &chunk[i]
		}
	}
	return st, all
}

// stop ends all work.
func (in *intake) stop() {
	in.cancel()
	in.workers.Wait()
}

// work checks what is passed on.
func (in *intake) work() {
	var text []byte // of a chunk
	for {
		select {
		case <-in.ctx.Done():
			return
		case chunk, ok := <-in.passed:
			if !ok {
				return
			}
			text = in.write(text[:0], chunk)
			for i := range chunk {
				if t := &chunk[i]; in.total.Load() < enough {
					t.check(in.schema)
					in.total.Add(int64(len(t.problems)))
				}
			}
		}
	}
}

// write fills in the specs of a chunk. It uses text for them together, and returns it.
func (in *intake) write(text []byte, chunk []taken) []byte {
	for i := range chunk {
		start := len(text)
		text = canonical.Append(text, map[string]any(chunk[i].Spec))
		chunk[i].spec = text[start:]
	}
	rest := bytes.Clone(text) // not longer than needed
	for i := range chunk {
		n := len(chunk[i].spec)
		chunk[i].spec, rest = rest[:n:n], rest[n:]
	}
	return text
}

// check checks name and spec of a resource, once. If the spec conforms, its defaults are filled in.
func (t *taken) check(s *kinds.Schema) {
	if t.checked {
		return
	}
	t.checked = true
	if p := s.CheckName(t.Kind, t.Ref.Name); p != nil {
		t.problems = append(t.problems, *p)
	}
	problems := s.CheckSpec(t.Kind, t.Spec)
	t.conforms = len(problems) == 0
	t.problems = append(t.problems, problems...)
}
