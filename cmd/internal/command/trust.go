package command

import (
	"context"
	"errors"
	"fmt"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/state"
)

// A refusal is a problem that ends a command with the status for refusals.
type refusal struct{ *view.Problem }

// Unwrap returns the problem, in the form in which it is shown.
func (r refusal) Unwrap() error { return r.Problem }

// A taken document is a document of the store or the inbox after its signature was checked.
type taken struct {
	body   []byte
	sig    *signed.Signature // with the key that it matches; nil: it is not signed
	author schema.Author
}

// numbered refuses a document that was signed with a serial other than the one under which it is stored.
func (t taken) numbered(stored, says int64) error {
	if t.sig == nil || stored == says {
		return nil
	}
	return refusal{&view.Problem{
		What:  "the document is refused: it was signed with another serial",
		Where: fmt.Sprintf("the store has it as serial %d, but it says %d", stored, says), Fix: "Sign a new one with a higher serial.",
	}}
}

// take checks the signature of a document that others may have written, and whether the site takes it. Where names its
// location. Nothing of the document was read before, and nothing of it is repeated.
func (s *session) take(body []byte, sig *signed.Signature, by, where string) (taken, error) {
	t := taken{body: body, author: schema.Author{By: by}}
	if sig != nil {
		signers, err := s.conf.Signers()
		if err != nil {
			return taken{}, unusable(err)
		}
		signer, key, err := signers.Check(*sig, body)
		if err != nil {
			return taken{}, refusal{&view.Problem{
				What: "the document is refused: its signature is invalid", Where: where + ": " + err.Error(),
				Fix: "It was changed after signing, or signed with a key that is not in trust.documents of " + config.Name + ". Sign it again.", Err: err,
			}}
		}
		t.sig = &signed.Signature{Key: key, Sig: sig.Sig}
		t.author.Signer, t.author.Key = signer, key
	}
	if s.conf.Trust.Require && t.author.Signer == "" {
		why, fix := "it is not signed", "Sign it: converge put -sign=KEYFILE site.cue. Trusted keys are listed in trust.documents of "+s.conf.Path+"."
		if t.author.Key != "" {
			why = "it is signed with key " + t.author.Key + ", which is not in trust.documents"
			fix = "Sign it with a key that is, and a higher serial: converge put -sign=KEYFILE site.cue. Or, if this key can be trusted, add it to trust.documents of " + s.conf.Path + "."
		}
		return taken{}, refusal{&view.Problem{
			What: "the document is refused: the site accepts only documents with a trusted signature", Where: where + ": " + why,
			Fix: fix,
		}}
	}
	return t, nil
}

// document reads a revision of the document, the newest for serial 0, and checks its signature.
func (s *session) document(ctx context.Context, serial int64) (state.Head, taken, error) {
	head, body, err := s.store.Document(ctx, serial)
	if err != nil {
		return head, taken{}, err
	}
	t, err := s.take(body, head.Signature, head.By, fmt.Sprintf("serial %d in the store, put by %s", head.Serial, head.By))
	return head, t, err
}

// sign signs a document with the key in a file. A signed document states its own serial, so that an older one cannot be replayed.
func (s *session) sign(doc *schema.Document, file string) (*signed.Signature, error) {
	key, err := signed.ReadPrivateKey(file)
	if err != nil {
		return nil, &view.Problem{What: "the document cannot be signed", Where: err.Error(), Err: err}
	}
	if doc.Site.Serial == 0 {
		return nil, unnumbered("the document to be signed")
	}
	sig := signed.Sign(key, doc.JSON)
	return &sig, nil
}

func unnumbered(what string) *view.Problem {
	return &view.Problem{
		What: what + " has no serial", Where: "without one, an older signed document could be replayed",
		Fix: "Set site.serial in the document; converge history shows the last one.",
	}
}

// sameSite refuses a document with another site.id than the newest one of the site: the ids of everything that was made
// derive from it, so nothing of the site would be recognized as its own.
func (s *session) sameSite(ctx context.Context, doc *schema.Document, where string) error {
	head, err := s.store.Head(ctx)
	if errors.Is(err, state.ErrNotFound) || err == nil && head.Digest == doc.Digest {
		return nil
	}
	if err != nil {
		return err
	}
	head, body, err := s.store.Document(ctx, 0) // whoever wrote it: it is unsigned where signatures are newly required
	var newest load.Head
	if err == nil {
		newest, err = headOf(head.Serial, body)
	}
	if err != nil { // a damaged document must not keep the next one out
		s.view.Warn("the site id was not compared, because the newest document cannot be read: " + err.Error())
		return nil
	}
	if newest.Site.ID == "" || newest.Site.ID == doc.Site.ID {
		return nil
	}
	return refusal{&view.Problem{
		What:  "the document is for another site of the same name",
		Where: fmt.Sprintf("%s has site.id %s, but serial %d of site %s has %s", where, doc.Site.ID, head.Serial, s.site, newest.Site.ID),
		Fix:   "The id of a site never changes: use the existing one, or give the other site another name.",
	}}
}

// vouched refuses a file as the document of a plan that only removes, where the site takes only signed documents and this is
// not the newest of them: the plan contains no document that could be checked later, but applies its policy.
func (s *session) vouched(ctx context.Context, doc *schema.Document) error {
	if !s.conf.Trust.Require || !doc.Author.Own {
		return nil
	}
	head, _, err := s.document(ctx, 0)
	if err == nil && head.Digest == doc.Digest || err != nil && !errors.Is(err, state.ErrNotFound) {
		return err
	}
	return refusal{&view.Problem{
		What: "the plan is refused: the site accepts only documents with a trusted signature", Where: "the given document is not the signed one in the store",
		Fix: "Omit the file: the plan removes what is recorded.",
	}}
}

// admit refuses to carry out a plan whose document the site no longer takes, or whose revision in the store is no
// longer what was signed. A plan that destroys or sweeps follows no document; see [session.vouched].
func (s *session) admit(ctx context.Context, p *plan.Plan) error {
	if p.Destroy || p.Sweep || !s.conf.Trust.Require && p.Author.Key == "" {
		return nil
	}
	head, t, err := s.document(ctx, 0)
	switch {
	case errors.Is(err, state.ErrNotFound):
	case err != nil:
		return err
	case head.Digest != p.Digest && p.Author.Key != "" && head.Revision != p.Revision:
		return nil // it was replaced: the plan is stale, and the engine reports by whom
	case head.Digest == p.Digest && t.author.Signer == p.Author.Signer || head.Digest == p.Digest && p.Author.Own:
		return nil
	}
	return refusal{&view.Problem{
		What: "the plan is refused: the site accepts only documents with a trusted signature", Where: "the document of the plan is not the signed one in the store",
		Fix: "Write it to the store: converge put -sign=KEYFILE site.cue. Then plan without naming a file.",
	}}
}
