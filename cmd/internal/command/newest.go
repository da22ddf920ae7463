package command

import (
	"context"
	"errors"
	"fmt"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
)

// A newest is the newest revision of a site's document, in memory, so that the next one costs what it changes.
type newest struct {
	s       *session
	head    state.Head
	current *load.Current // of that text; nil when it could not be used
	doc     *schema.Document
}

// read returns the newest revision; state.ErrNotFound when there is none. It is the same as long as there is no newer one.
func (n *newest) read(ctx context.Context) (*schema.Document, error) {
	head, err := n.s.store.Head(ctx)
	if err != nil {
		return nil, err
	}
	if n.doc != nil && head.Revision == n.head.Revision && head.Digest == n.head.Digest {
		return n.doc, nil
	}
	head, t, err := n.s.put(ctx, 0)
	if err != nil {
		return nil, err
	}
	doc, err := n.become(ctx, head, t)
	if err != nil {
		n.doc = nil
		return nil, err
	}
	doc.JSON, doc.Digest = t.body, head.Digest // of a signed one, the exact bytes
	doc.Site.Serial, doc.Author = head.Serial, t.author
	n.head, n.doc = head, doc
	return doc, nil
}

// become takes over the text of a revision.
func (n *newest) become(ctx context.Context, head state.Head, t taken) (*schema.Document, error) {
	sch, err := n.s.schema()
	if err != nil {
		return nil, err
	}
	var ds load.Diagnostics
	if n.current == nil {
		n.current, ds = load.NewCurrent(ctx, sch, load.Source{Name: fmt.Sprintf("serial-%d.json", head.Serial), Data: t.body})
	} else if rev, found := n.current.Become(ctx, t.body); rev == nil {
		n.current, ds = nil, found
	} else {
		ds = found
	}
	var doc *schema.Document
	if n.current != nil {
		doc = n.current.Document()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := n.s.report(doc, ds); err != nil {
		return nil, errors.Join(fmt.Errorf("the document with serial %d is not valid", head.Serial), ds.Err())
	}
	return doc, t.numbered(head.Serial, doc.Site.Serial)
}
