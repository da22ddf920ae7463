package command

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/state"
)

// load reads and validates the document that files make together. What is wrong with it is shown.
func (a *app) load(ctx context.Context, paths []string) (*schema.Document, error) {
	sources, err := load.ReadSources(paths, a.sys.Stdin)
	if err != nil {
		return nil, err
	}
	doc, err := a.loadSources(ctx, sources...)
	if doc != nil {
		doc.Author = schema.Author{Own: true} // whoever runs this command says so by naming it
	}
	return doc, err
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
func (a *app) desired(ctx context.Context, paths []string, m missing) (*session, *schema.Document, error) {
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
	if err := s.takeInbox(ctx); err != nil {
		return nil, nil, err
	}
	doc, err := s.stored(ctx, 0)
	if err != nil {
		return nil, nil, err
	}
	s.headline(fmt.Sprintf("document in the store, serial %d", doc.Site.Serial))
	return s, doc, s.warnNewer(ctx)
}

// stored loads a revision of the document from the store, the newest for serial 0.
func (s *session) stored(ctx context.Context, serial int64) (*schema.Document, error) {
	head, t, err := s.document(ctx, serial)
	if errors.Is(err, state.ErrNotFound) {
		if serial != 0 {
			return nil, &view.Problem{What: fmt.Sprintf("the store has no document with serial %d", serial), Fix: "See: converge history", Err: err}
		}
		return nil, s.noDocument(err)
	}
	if err != nil {
		return nil, err
	}
	doc, err := s.loadSources(ctx, load.Source{Name: fmt.Sprintf("serial-%d.json", head.Serial), Data: t.body})
	if err != nil {
		return nil, err
	}
	if t.sig != nil {
		if doc.Site.Serial != head.Serial {
			return nil, refusal{&view.Problem{
				What:  "the document is refused: it was not signed with this serial",
				Where: fmt.Sprintf("the store has it as serial %d, and it says %d", head.Serial, doc.Site.Serial), Fix: "Have a new one signed, with a higher serial.",
			}}
		}
		doc.JSON, doc.Digest = t.body, head.Digest // the very bytes that were signed
	}
	doc.Site.Serial, doc.Author = head.Serial, t.author
	return doc, nil
}

// noDocument says that nothing is known of what the site should be.
func (s *session) noDocument(err error) error {
	return &view.Problem{
		What: "site " + s.site + " has no document yet", Err: err,
		Fix: "Name one: converge plan site.cue. Or write one to the store: converge put site.cue",
	}
}

// identity gives the site without loading its whole document.
func (s *session) identity(ctx context.Context) (schema.Site, error) {
	head, t, err := s.document(ctx, 0)
	if errors.Is(err, state.ErrNotFound) {
		return schema.Site{Name: s.site}, nil
	}
	if err != nil {
		return schema.Site{}, err
	}
	return siteOf(head, t.body)
}

// siteOf gives the site of a stored document.
func siteOf(head state.Head, body []byte) (schema.Site, error) {
	var doc struct {
		Site schema.Site `json:"site"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return schema.Site{}, err
	}
	doc.Site.Serial = head.Serial
	return doc.Site, nil
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
	inbox := s.store.Path() + "/inbox"
	t, doc, err := s.readInbox(ctx, body, inbox)
	var refused *engine.RefusedError
	if said(err) || errors.As(err, &refused) || errors.As(err, new(refusal)) {
		s.view.Note("It stays in " + inbox + ". Have it corrected there, or delete that key to go on with the newest valid document.")
	}
	if err != nil {
		return err
	}
	if missing := s.unreadable(doc); missing != "" {
		return refusal{&view.Problem{
			What: "the document in the inbox names secrets that cannot be read", Where: missing,
			Fix: "Provide them here, or have the document corrected in " + inbox + ", or delete that key.",
		}}
	}
	head, err := s.store.PutSigned(ctx, doc.JSON, doc.Digest, t.sig, doc.Site.Serial, "inbox", state.AnyRevision)
	var conflict *state.ConflictError
	if errors.As(err, &conflict) {
		return refusal{&view.Problem{
			What: "the document in the inbox is not newer than the site's", Where: conflict.Error(),
			Fix: "Have its serial raised in " + inbox + ", or delete that key.", Err: err,
		}}
	}
	if err != nil {
		return err
	}
	if err := s.store.ClearInbox(ctx, revision); err != nil && !errors.Is(err, state.ErrGuard) { // something newer came: next time
		return err
	}
	s.view.Note(fmt.Sprintf("Took serial %d from the inbox, %s.", head.Serial, view.Authorship(t.author)))
	return nil
}

// readInbox reads what lies in the inbox, a plain document or one in an envelope, and refuses what the site does not take.
// The signature is checked before anything of the document is looked at.
func (s *session) readInbox(ctx context.Context, body []byte, inbox string) (taken, *schema.Document, error) {
	payload, sig, err := signed.Open(body)
	if err != nil {
		return taken{}, nil, refusal{&view.Problem{What: "the document is refused: its envelope is not good", Where: inbox + ": " + err.Error(), Err: err}}
	}
	t, err := s.take(payload, sig, "inbox", inbox)
	if err != nil {
		return taken{}, nil, err
	}
	doc, err := s.loadBounded(ctx, load.InboxBounds, load.Source{Name: "inbox.json", Data: payload})
	if err != nil {
		return taken{}, nil, err
	}
	switch {
	case doc.Site.Name != s.site:
		return taken{}, nil, refusal{&view.Problem{What: "the document in the inbox is for another site", Where: inbox + " says " + doc.Site.Name}}
	case t.sig != nil && doc.Site.Serial == 0:
		return taken{}, nil, refusal{unnumbered("the signed document in the inbox")}
	case t.sig != nil:
		sum := sha256.Sum256(payload)
		doc.JSON, doc.Digest = payload, hex.EncodeToString(sum[:]) // the very bytes that were signed
	}
	if err := s.sameSite(ctx, doc, inbox); err != nil {
		return taken{}, nil, err
	}
	sch, err := s.schema()
	if err != nil {
		return taken{}, nil, err
	}
	return t, doc, engine.Foreign(sch.Kinds(), s.secrets(), doc)
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
