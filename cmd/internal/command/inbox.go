package command

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/state"
)

// An offer is a document in the inbox that the site would accept.
type offer struct {
	taken
	doc      *schema.Document
	stated   int64 // the serial that it states; 0: none
	warnings load.Diagnostics
	answer   state.InboxResult // without its verdict
}

// A sender says where an offer comes from, in the words of what is refused.
type sender struct {
	by       string // who puts it into the store
	what     string // the document in the inbox
	where    string // the key of the inbox
	instead  string // put a corrected one there
	withdraw string // or delete that key
	file     string // what it is called in diagnostics
}

// inboxOf is the inbox as a sender.
func (s *session) inboxOf() sender {
	key := s.store.Path() + "/inbox"
	return sender{by: "inbox", what: "the document in the inbox", where: key, instead: "put a corrected one in " + key, withdraw: ", or delete that key", file: "inbox.json"}
}

// offered returns the document in the inbox; nil when there is none. One that the site does not accept is an error and
// stays there, and the reason is reported to the cloud. Nothing else is written.
func (s *session) offered(ctx context.Context) (*offer, error) {
	body, revision, err := s.store.Inbox(ctx)
	if err != nil || revision == 0 {
		return nil, err
	}
	from := s.inboxOf()
	o := &offer{answer: state.InboxResult{Revision: revision, Digest: hexDigest(body), Command: s.name, By: who(), At: time.Now().UTC()}}
	ds, err := s.intake(ctx, o, body, from)
	if len(ds) > 0 {
		s.view.Diagnostics(ds)
	}
	if said(err) {
		s.view.Note("\nThe document is not valid: " + view.DiagnosticsSummary(ds) + ".")
	}
	if refuses(err) {
		o.answer.Verdict = state.Refused
		s.answer(ctx, o, ds, err)
		s.view.Note("The document stays in the inbox. Put a corrected one in " + from.where + ", or delete that key to continue with the newest valid document.")
	}
	if err != nil {
		return nil, err
	}
	o.warnings = ds
	return o, nil
}

// refuses reports whether an error of [session.intake] says that the site does not accept the document. Others say nothing about it.
func refuses(err error) bool {
	return said(err) || errors.As(err, new(*engine.RefusedError)) || errors.As(err, new(refusal))
}

// intake reads a document that others sent, plain or in an envelope, into an offer, and refuses what the site does not
// accept. The signature is checked before anything of the document is read. It returns the diagnostics of the
// document, also when they are why it is refused. Nothing is written.
func (s *session) intake(ctx context.Context, o *offer, body []byte, from sender) (load.Diagnostics, error) {
	payload, sig, err := signed.Open(body)
	if err != nil {
		return nil, refusal{&view.Problem{What: "the document is refused: its envelope is invalid", Where: from.where + ": " + err.Error(), Err: err}}
	}
	if o.taken, err = s.take(payload, sig, from.by, from.where); err != nil {
		return nil, err
	}
	doc, ds, err := s.check(ctx, load.InboxBounds, load.Source{Name: from.file, Data: payload})
	if err != nil {
		return nil, err
	}
	if doc == nil {
		return ds, outcome(exitError)
	}
	switch {
	case doc.Site.Name != s.site:
		return ds, refusal{&view.Problem{What: from.what + " is for another site", Where: from.where + " names site " + doc.Site.Name}}
	case s.id != "" && doc.Site.ID != s.id:
		return ds, refusal{&view.Problem{
			What: from.what + " is for another site of the same name", Where: fmt.Sprintf("%s has site.id %s, and the keys of the nodes are for %s", from.where, doc.Site.ID, s.id),
			Fix: "The id of a site never changes: use the existing one, or give the other site another name.",
		}}
	case o.sig != nil && doc.Site.Serial == 0:
		return ds, refusal{unnumbered("the signed " + strings.TrimPrefix(from.what, "the "))}
	case o.sig != nil:
		if _, err := plan.HeadOf(payload); err != nil { // a valid document may be written in a way that not every reader accepts, such as 1.0 for 1
			return ds, refusal{&view.Problem{
				What: "the signed " + strings.TrimPrefix(from.what, "the ") + " cannot be stored as it is", Where: from.where + ": " + err.Error(),
				Fix: "Write site and policy plainly, with the serial in digits only, and sign it again.", Err: err,
			}}
		}
		doc.JSON, doc.Digest = payload, hexDigest(payload) // the very bytes that were signed
	}
	if err := s.sameSite(ctx, doc, from.where); err != nil {
		return ds, err
	}
	sch, err := s.schema()
	if err != nil {
		return ds, err
	}
	if err := engine.CheckSecrets(sch.Kinds(), s.secrets(), doc); err != nil {
		return ds, err
	}
	if missing := s.unreadable(doc); missing != "" {
		return ds, refusal{&view.Problem{
			What: from.what + " names secrets that cannot be read", Where: missing,
			Fix: "Provide them here, or " + from.instead + from.withdraw + ".",
		}}
	}
	serial, err := s.store.NextSerial(ctx, doc.Digest, doc.Site.Serial)
	if err != nil {
		return ds, notNewer(err, from)
	}
	o.stated, doc.Site.Serial, doc.Author = doc.Site.Serial, serial, o.author
	o.doc, o.answer.Serial, o.answer.Signer = doc, serial, o.author.Signer
	return ds, nil
}

// notNewer explains why a document that others sent cannot follow the one that the site has.
func notNewer(err error, from sender) error {
	var conflict *state.ConflictError
	if !errors.As(err, &conflict) && !errors.Is(err, state.ErrLastSerial) {
		return err
	}
	return refusal{&view.Problem{
		What: from.what + " is not newer than the site's", Where: err.Error(),
		Fix: "Raise its serial: " + from.instead + from.withdraw + ".", Err: err,
	}}
}

// pending reports that the site has not yet accepted the planned document.
func (s *session) pending(ctx context.Context, o *offer) {
	s.headline(fmt.Sprintf("document in the inbox, serial %d, not yet accepted", o.doc.Site.Serial))
	s.view.Note(fmt.Sprintf("The document in the inbox, %s, is planned but stays there: converge apply accepts it.", view.Authorship(o.author)))
	o.answer.Verdict = state.Pending
	s.answer(ctx, o, o.warnings, nil)
}

// takeInbox accepts the document that a cloud left in the inbox, if the site takes it.
func (s *session) takeInbox(ctx context.Context) error {
	o, err := s.offered(ctx)
	if err != nil || o == nil {
		return err
	}
	return s.accept(ctx, o, state.AnyRevision)
}

// accept makes an offer the newest revision of the site's document, on top of ifRevision.
func (s *session) accept(ctx context.Context, o *offer, ifRevision int64) error {
	head, err := s.store.PutSigned(ctx, o.doc.JSON, o.doc.Digest, o.sig, o.stated, "inbox", ifRevision)
	if err != nil {
		return notNewer(err, s.inboxOf())
	}
	s.acted = true
	o.answer.Verdict, o.answer.Serial = state.Accepted, head.Serial
	s.answer(ctx, o, o.warnings, nil)
	s.view.Note(fmt.Sprintf("Accepted serial %d from the inbox, %s.", head.Serial, view.Authorship(o.author)))
	return nil
}

// takePlanned accepts the document of a saved plan that was made from the inbox, if it is still there. If it is not, the cloud
// has withdrawn it, and the plan is stale.
func (s *session) takePlanned(ctx context.Context, p *plan.Plan) error {
	if p.Author.By != "inbox" || p.Destroy || p.Sweep {
		return nil
	}
	head, err := s.store.Head(ctx)
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		return err
	}
	if head.Digest == p.Digest || head.Revision != p.Revision { // it was accepted; or another one was, which the engine reports
		return nil
	}
	o, err := s.offered(ctx)
	if err != nil {
		return err
	}
	if o == nil || o.doc.Digest != p.Digest {
		return &engine.StaleError{Reasons: []event.Difference{{Detail: "its document is no longer in the inbox"}}}
	}
	return s.accept(ctx, o, p.Revision)
}

// answer reports to the cloud what becomes of its document. A failure to do so stops nothing.
func (s *session) answer(ctx context.Context, o *offer, ds load.Diagnostics, err error) {
	o.answer.Problems, o.answer.More = problems(ds, err)
	if err := s.store.Answer(ctx, o.answer); err != nil && !errors.Is(err, state.ErrGuard) { // a newer document came: it is answered next time
		s.view.Warn("could not report the outcome of the document in the inbox to the cloud: " + err.Error())
	}
}

// answerRun reports to the cloud the state of the run for its document.
func (s *session) answerRun(run state.Run) {
	a := state.InboxApplied{Status: string(run.Status), Problem: run.Message}
	if len(run.Body) > 0 { // otherwise there was nothing to do, and no run is kept
		a.Run = run.ID
	}
	s.answerApplied(run.Serial, a)
}

// answerRefused reports to the cloud why its document is not applied. Reasons unrelated to the document, such as a lock
// that another process holds, are not reported.
func (s *session) answerRefused(serial int64, err error) {
	if code := s.status(err); code != exitRefused && code != exitUnknown || said(err) {
		return
	}
	p := view.Explain(err)
	s.answerApplied(serial, state.InboxApplied{Status: "refused", Problem: strings.TrimSuffix(p.What+"\n"+p.Where, "\n")})
}

func (s *session) answerApplied(serial int64, a state.InboxApplied) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // even when the command was interrupted
	defer cancel()
	a.Problem, a.At = bounded(a.Problem), time.Now().UTC()
	if err := s.store.AnswerApplied(ctx, serial, a); err != nil {
		s.view.Warn(fmt.Sprintf("could not report the outcome of serial %d to the cloud: %v", serial, err))
	}
}

// problems lists for the cloud the problems of its document: those that are shown here, without the source lines.
func problems(ds load.Diagnostics, err error) (list []state.InboxProblem, more int) {
	const most = 100
	for i := range ds[:min(len(ds), most)] {
		d := &ds[i]
		p := state.InboxProblem{Severity: string(d.Severity), Code: d.Code, Summary: bounded(d.Summary), Detail: bounded(d.Detail), Path: bounded(d.Path)}
		if d.Range != nil {
			p.Line, p.Column = d.Range.Start.Line, d.Range.Start.Column
		}
		list = append(list, p)
	}
	if err != nil && !said(err) {
		p := view.Explain(err)
		list = append(list, state.InboxProblem{Severity: string(load.Error), Summary: bounded(p.What), Detail: bounded(p.Where)})
	}
	return list, max(0, len(ds)-most)
}

// bounded cuts a text that could be as long as a document.
func bounded(text string) string {
	const most = 2 << 10
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

func hexDigest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
