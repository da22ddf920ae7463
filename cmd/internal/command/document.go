package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
)

// load reads and validates the document that files make together. What is wrong with it is shown.
func (a *app) load(ctx context.Context, paths []string) (*schema.Document, error) {
	sources, err := load.ReadSources(paths, a.sys.Stdin)
	if err != nil {
		return nil, err
	}
	return a.loadSources(ctx, sources...)
}

func (a *app) loadSources(ctx context.Context, sources ...load.Source) (*schema.Document, error) {
	return a.loadBounded(ctx, load.Bounds{}, sources...)
}

func (a *app) loadBounded(ctx context.Context, bounds load.Bounds, sources ...load.Source) (*schema.Document, error) {
	doc, ds, err := a.check(ctx, bounds, sources...)
	if err != nil {
		return nil, err
	}
	if len(ds) > 0 {
		a.view.Diagnostics(ds)
	}
	if doc == nil {
		a.view.Note("\nThe document is not valid: " + view.DiagnosticsSummary(ds) + ".")
		return nil, outcome(exitError)
	}
	return doc, nil
}

// check validates a document without showing anything.
func (a *app) check(ctx context.Context, bounds load.Bounds, sources ...load.Source) (*schema.Document, load.Diagnostics, error) {
	s, err := a.schema()
	if err != nil {
		return nil, nil, err
	}
	limits := load.Limits{Time: a.flags.evalTimeout, Memory: a.flags.evalMemory << 20}
	doc, ds := s.Load(ctx, load.Options{Bounds: bounds, Evaluator: load.ChildEvaluator([]string{a.sys.Executable, evalName}, limits)}, sources...)
	if doc == nil && ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	return doc, ds, nil
}

// desired gives the document that a command is about and connects to its site. Without paths it is the newest revision in
// the store, and what lies in the inbox is taken up first.
func (a *app) desired(ctx context.Context, paths []string) (*session, *schema.Document, error) {
	if len(paths) > 0 {
		doc, err := a.load(ctx, paths)
		if err != nil {
			return nil, nil, err
		}
		s, err := a.open(ctx, doc, paths)
		if err == nil {
			err = s.sameSite(ctx, doc)
		}
		return s, doc, err
	}
	s, err := a.open(ctx, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	if err := s.takeInbox(ctx); err != nil {
		return nil, nil, err
	}
	doc, err := s.stored(ctx, 0)
	return s, doc, err
}

// stored loads a revision of the document from the store, the newest for serial 0.
func (s *session) stored(ctx context.Context, serial int64) (*schema.Document, error) {
	head, body, err := s.store.Document(ctx, serial)
	if errors.Is(err, state.ErrNotFound) {
		if serial != 0 {
			return nil, &view.Problem{What: fmt.Sprintf("the store has no document with serial %d", serial), Fix: "See: converge history", Err: err}
		}
		return nil, &view.Problem{
			What: "site " + s.site + " has no document yet", Err: err,
			Fix: "Name one: converge plan site.cue. Or write one to the store: converge put site.cue",
		}
	}
	if err != nil {
		return nil, err
	}
	doc, err := s.loadSources(ctx, load.Source{Name: fmt.Sprintf("serial-%d.json", head.Serial), Data: body})
	if err != nil {
		return nil, err
	}
	doc.Site.Serial = head.Serial
	return doc, nil
}

// identity gives the site without loading its whole document.
func (s *session) identity(ctx context.Context) (schema.Site, error) {
	head, body, err := s.store.Document(ctx, 0)
	if errors.Is(err, state.ErrNotFound) {
		return schema.Site{Name: s.site}, nil
	}
	if err != nil {
		return schema.Site{}, err
	}
	var doc struct {
		Site schema.Site `json:"site"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return schema.Site{}, err
	}
	doc.Site.Serial = head.Serial
	return doc.Site, nil
}

// sameSite refuses a document with another id than the site has: the ids of all that was made derive from it, so nothing
// of the site would be known to it as its own.
func (s *session) sameSite(ctx context.Context, doc *schema.Document) error {
	head, err := s.store.Head(ctx)
	if errors.Is(err, state.ErrNotFound) || err == nil && head.Digest == doc.Digest {
		return nil
	}
	if err != nil {
		return err
	}
	site, err := s.identity(ctx)
	if err != nil { // a document that is damaged must not keep the next one out
		s.view.Warn("the id of the site was not compared, as its newest document cannot be read: " + err.Error())
		return nil
	}
	if site.ID == doc.Site.ID {
		return nil
	}
	return &view.Problem{
		What:  "the document is for another site, of the same name",
		Where: fmt.Sprintf("its site.id is %s, and serial %d of site %s has %s", doc.Site.ID, head.Serial, s.site, site.ID),
		Fix:   "The id of a site never changes: write that one, or give the other site another name.",
	}
}

// unreadable lists the secrets of a document that this process cannot read, one on a line, with the reasons.
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

// takeInbox puts the document that a cloud left in the inbox, when it is valid and newer. One that is not stays there.
func (s *session) takeInbox(ctx context.Context) error {
	body, revision, err := s.store.Inbox(ctx)
	if err != nil || body == nil {
		return err
	}
	doc, err := s.loadBounded(ctx, load.InboxBounds, load.Source{Name: "inbox.json", Data: body})
	if err != nil {
		if said(err) {
			s.view.Note("It stays in " + s.store.Path() + "/inbox. Have it corrected there, or delete that key to go on with the newest valid document.")
		}
		return err
	}
	if doc.Site.Name != s.site {
		return &view.Problem{
			What: "the document in the inbox is for another site", Where: s.store.Path() + "/inbox says " + doc.Site.Name,
			Fix: "Have it corrected there, or delete that key.",
		}
	}
	if err := s.sameSite(ctx, doc); err != nil {
		s.view.Note("It lies in " + s.store.Path() + "/inbox.")
		return err
	}
	if missing := s.unreadable(doc); missing != "" {
		return &view.Problem{
			What: "the document in the inbox names secrets that cannot be read", Where: missing,
			Fix: "Provide them here, or have the document corrected in " + s.store.Path() + "/inbox, or delete that key.",
		}
	}
	head, err := s.store.PutDocument(ctx, doc.JSON, doc.Digest, doc.Site.Serial, "inbox", state.AnyRevision)
	var conflict *state.ConflictError
	if errors.As(err, &conflict) {
		return &view.Problem{
			What: "the document in the inbox is not newer than the site's", Where: conflict.Error(),
			Fix: "Have its serial raised in " + s.store.Path() + "/inbox, or delete that key.", Err: err,
		}
	}
	if err != nil {
		return err
	}
	if err := s.store.ClearInbox(ctx, revision); err != nil && !errors.Is(err, state.ErrGuard) { // something newer came: next time
		return err
	}
	s.view.Note(fmt.Sprintf("Took serial %d from the inbox.", head.Serial))
	return nil
}

// revision gives the document that REV names: a serial, head, or a file.
func (a *app) revision(ctx context.Context, rev string, s func() (*session, error)) (*schema.Document, string, error) {
	serial, err := strconv.ParseInt(rev, 10, 64)
	if rev != "head" && err != nil {
		doc, err := a.load(ctx, []string{rev})
		return doc, rev, err
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
