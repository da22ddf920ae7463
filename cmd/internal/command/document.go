package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
)

// load reads and validates the document that files form together, and shows its problems.
func (a *app) load(ctx context.Context, paths []string) (*schema.Document, error) {
	sources, err := load.ReadSources(paths, a.sys.Stdin)
	if err != nil {
		return nil, err
	}
	doc, err := a.loadSources(ctx, sources...)
	if doc != nil {
		doc.Author = schema.Author{Own: true} // naming it on the command line makes it the user's own
	}
	return doc, err
}

func (a *app) loadSources(ctx context.Context, sources ...load.Source) (*schema.Document, error) {
	doc, ds, err := a.check(ctx, load.Bounds{}, sources...)
	if err == nil {
		err = a.report(doc, ds)
	}
	if err != nil {
		return nil, err
	}
	return doc, nil
}

// report shows the problems of a document. An invalid one is nil, which results in an outcome.
func (a *app) report(doc *schema.Document, ds load.Diagnostics) error {
	if len(ds) > 0 {
		a.view.Diagnostics(ds)
	}
	if doc == nil {
		a.view.Note("\nThe document is not valid: " + view.DiagnosticsSummary(ds) + ".")
		return outcome(exitError)
	}
	return nil
}

// check validates a document without showing anything.
func (a *app) check(ctx context.Context, bounds load.Bounds, sources ...load.Source) (*schema.Document, load.Diagnostics, error) {
	s, err := a.schema()
	if err != nil {
		return nil, nil, err
	}
	limits := load.Limits{Time: a.flags.evalTimeout, Memory: a.flags.evalMemory << 20}
	doc, ds := load.Document(ctx, s, load.Options{Bounds: bounds, Evaluator: load.ChildEvaluator([]string{a.sys.Executable, evalName}, limits)}, sources...)
	if doc == nil && ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	return doc, ds, nil
}

// desired returns the document that a command is about and connects to its site. Without paths that is the document in the
// inbox, or else the newest revision in the store, whose resources are not read when unread is set. The document in the inbox
// becomes that revision only when accept is set.
func (a *app) desired(ctx context.Context, paths []string, m missing, accept, unread bool) (*session, *schema.Document, error) {
	if len(paths) > 0 {
		doc, err := a.load(ctx, paths)
		if err != nil {
			return nil, nil, err
		}
		s, err := a.openOr(ctx, doc, paths, m)
		if err == nil {
			err = s.sameSite(ctx, doc, "the document")
		}
		if err != nil {
			return nil, nil, err
		}
		s.headline(named(paths))
		return s, doc, nil
	}
	s, err := a.open(ctx, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	if accept {
		err = s.takeInbox(ctx)
	} else if offer, oerr := s.offered(ctx); oerr != nil || offer != nil {
		if oerr == nil {
			s.pending(ctx, offer)
			return s, offer.doc, nil
		}
		err = oerr
	}
	if err != nil {
		return nil, nil, err
	}
	read := s.stored
	if unread {
		read = s.unread
	}
	doc, err := read(ctx, 0)
	if err != nil {
		return nil, nil, err
	}
	s.headline(inStore(doc.Site.Serial))
	return s, doc, s.warnNewer(ctx)
}

// stored loads a revision of the document from the store, the newest for serial 0.
func (s *session) stored(ctx context.Context, serial int64) (*schema.Document, error) {
	head, t, err := s.put(ctx, serial)
	if err != nil {
		return nil, err
	}
	doc, err := s.loadSources(ctx, load.Source{Name: fmt.Sprintf("serial-%d.json", head.Serial), Data: t.body})
	if err == nil {
		err = t.numbered(head.Serial, doc.Site.Serial)
	}
	if err != nil {
		return nil, err
	}
	if t.sig != nil {
		doc.JSON, doc.Digest = t.body, head.Digest // the exact bytes that were signed
	}
	doc.Site.Serial, doc.Author = head.Serial, t.author
	return doc, nil
}

// unread returns a revision of the document from the store, the newest for serial 0, without its resources.
func (s *session) unread(ctx context.Context, serial int64) (*schema.Document, error) {
	head, t, err := s.put(ctx, serial)
	if err != nil {
		return nil, err
	}
	said, err := plan.HeadOf(t.body)
	if err == nil {
		err = t.numbered(head.Serial, said.Site.Serial)
	}
	if err != nil {
		return nil, err
	}
	said.Site.Serial = head.Serial
	return &schema.Document{Site: said.Site, Policy: said.Policy, Author: t.author, JSON: t.body, Digest: head.Digest}, nil
}

// put reads a revision of the document from the store, and explains it when there is none.
func (s *session) put(ctx context.Context, serial int64) (state.Head, taken, error) {
	head, t, err := s.document(ctx, serial)
	switch {
	case !errors.Is(err, state.ErrNotFound):
	case serial != 0:
		err = &view.Problem{What: fmt.Sprintf("the store has no document with serial %d", serial), Fix: "See: converge history", Err: err}
	default:
		err = s.noDocument(err)
	}
	return head, t, err
}

// noDocument returns the error that the desired state of the site is unknown.
func (s *session) noDocument(err error) error {
	return &view.Problem{
		What: "site " + s.site + " has no document yet", Err: err,
		Fix: "Give one: converge plan site.cue. Or write one to the store: converge put site.cue",
	}
}

// head returns the head of the newest document without loading all of it; for a site without one, only its name.
func (s *session) head(ctx context.Context) (load.Head, error) {
	head, t, err := s.document(ctx, 0)
	if errors.Is(err, state.ErrNotFound) {
		if r, err := s.store.Rebuilt(ctx); !errors.Is(err, state.ErrNotFound) {
			return load.Head{Site: r.Site}, err
		}
		return load.Head{Site: schema.Site{Name: s.site}}, nil
	}
	if err != nil {
		return load.Head{}, err
	}
	return headOf(head.Serial, t.body)
}

// external lists what the newest document only refers to.
func (s *session) external(ctx context.Context) ([]schema.Resource, error) {
	_, t, err := s.document(ctx, 0)
	if errors.Is(err, state.ErrNotFound) || err == nil && !bytes.Contains(t.body, []byte(`"external"`)) { // loading is only for documents that need it
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rs, err := s.resources(ctx)
	return slices.DeleteFunc(rs, func(r schema.Resource) bool { return r.External == nil }), err
}

// resources returns what the newest document declares, external or not; none when there is no document.
func (s *session) resources(ctx context.Context) ([]schema.Resource, error) {
	if _, err := s.store.Head(ctx); err != nil {
		if errors.Is(err, state.ErrNotFound) {
			err = nil
		}
		return nil, err
	}
	doc, err := s.stored(ctx, 0)
	if err != nil {
		return nil, err
	}
	return doc.Resources, nil
}

// headOf returns the head of a document that has a serial.
func headOf(serial int64, body []byte) (head load.Head, err error) {
	err = json.Unmarshal(body, &head)
	head.Site.Serial = serial
	return head, err
}

// unreadable lists the secrets of a document that this process cannot read, one per line, with the reasons.
func (s *session) unreadable(doc *schema.Document) string {
	const shown = 20
	var lines []string
	for _, r := range doc.Resources {
		for _, why := range s.secrets().Unreadable(s.kinds[r.Ref.Kind], r.Spec) {
			lines = append(lines, r.Ref.String()+": "+why.Error())
		}
	}
	if more := len(lines) - shown; more > 0 {
		lines = append(lines[:shown], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// revision returns the document that REV names: a serial, head, or a file.
func (a *app) revision(ctx context.Context, rev string, s func() (*session, error)) (*schema.Document, string, error) {
	serial, err := strconv.ParseInt(rev, 10, 64)
	if rev != "head" && err != nil {
		doc, err := a.load(ctx, []string{rev})
		return doc, rev, err
	}
	if rev != "head" && serial < 1 {
		return nil, "", &view.Problem{What: fmt.Sprintf("no revision has serial %d", serial), Fix: "The first is 1, the newest is head. See: converge history"}
	}
	at, err := s()
	if err != nil {
		return nil, "", err
	}
	doc, err := at.stored(ctx, serial)
	if err != nil {
		return nil, "", err
	}
	return doc, fmt.Sprintf("serial %d", doc.Site.Serial), nil
}
