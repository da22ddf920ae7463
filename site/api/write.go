package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
	"converge.dev/converge/trust/certs"
)

// Limits of what is sent.
const (
	MaxWrites    = 8       // requests that write and are answered at a time, besides [MaxRequests]; a document does not count
	MaxDocuments = 4       // documents at a time
	MaxDocument  = 2 << 20 // bytes of a document; what the site accepts of one is less
	maxNote      = 8 << 10 // bytes of any other body
	maxReason    = 1000    // characters

	writing = 30 * time.Second // until what a request writes has been written, or is given up
)

// Writes are what clients with a role may change; see [certs.Role]. All fields are required.
type Writes struct {
	// Allowed returns the name by which a client may act in a role; otherwise it fails with a *[certs.ForbiddenError]. State is nil for a
	// connection without TLS.
	Allowed func(role certs.Role, state *tls.ConnectionState) (who string, err error)
	// Put makes a document, plain or in an envelope, the newest revision of the site on top of the one with a serial; 0: of none. It fails
	// with a *[Problem] when that is not so, or when the site does not accept the document.
	Put func(ctx context.Context, body []byte, by string, after int64) (PutView, error)
	// Known reports whether a scope names something of the site, and otherwise what may have been meant, in a sentence.
	Known func(ctx context.Context, scope string) (known bool, instead string, err error)
}

// A PutView is the revision of the document that a request has written.
type PutView struct {
	Serial    int64                `json:"serial"`
	Digest    string               `json:"digest"`
	Revision  int64                `json:"revision"`            // of the store
	Signer    string               `json:"signer,omitempty"`    // whose trusted signature it has
	Unchanged bool                 `json:"unchanged,omitempty"` // it was the newest already
	Problems  []state.InboxProblem `json:"problems,omitempty"`  // warnings
}

// ReplacedView says what a hold or a freeze has taken the place of.
type ReplacedView struct {
	Held     string       `json:"held"` // the scope; of a freeze [state.FrozenScope]
	Replaced []state.Hold `json:"replaced"`
}

// A ReleasedView says what was released.
type ReleasedView struct {
	Released []state.Hold `json:"released"`
}

// A CancelView says which run was asked to end.
type CancelView struct {
	Run string `json:"run"`
	Who string `json:"who"` // carries it out
}

// An ApprovedView says who has approved the plan that waits.
type ApprovedView struct {
	Approval  string           `json:"approval"` // the digest of the plan
	By        string           `json:"by"`
	Approvals []state.Approval `json:"approvals"` // that count, with this one
	Needs     int              `json:"needs"`     // approvals of different people
}

// An UnapprovedView says whether an approval was taken back.
type UnapprovedView struct {
	Approval string `json:"approval"` // the digest of the plan
	Revoked  bool   `json:"revoked"`  // false: there was none by this client
}

// A writer is one way to change something.
type writer struct {
	role  certs.Role
	most  int64    // bytes of the body; 0: it has none
	query []string // the parameters that it may have
	do    func(s sent) (view any, status int, err error)
}

// sent is what a client has sent.
type sent struct {
	*http.Request
	by    string // as whom the client writes
	body  []byte
	query map[string]string
}

// writers returns what can be changed, by path and method.
func (a *API) writers() map[string]map[string]writer {
	return map[string]map[string]writer{
		"/v1/document":                {http.MethodPut: {certs.WriteDocument, MaxDocument, nil, a.putDocument}},
		"/v1/plans/{digest}/approval": {http.MethodPut: {certs.Approve, 0, nil, a.approve}, http.MethodDelete: {certs.Approve, 0, nil, a.unapprove}},
		"/v1/runs/{id}/cancel":        {http.MethodPost: {certs.Cancel, 0, nil, a.cancel}},
		"/v1/holds/{scope...}": {
			http.MethodPut: {certs.Hold, maxNote, []string{"force", "instead_of"}, a.hold}, http.MethodDelete: {certs.Hold, 0, []string{"reason", "of"}, a.release},
		},
		"/v1/freeze": {http.MethodPut: {certs.Hold, maxNote, []string{"instead_of"}, a.freeze}, http.MethodDelete: {certs.Hold, 0, []string{"reason", "of"}, a.thaw}},
	}
}

// author is how the store names a client of this interface: as a person at it.
func author(who string) string { return who + "@https" }

// write answers a request that writes: who sends it is asked before anything that it has sent is read. What comes of it is logged.
func (a *API) write(w writer, slots chan struct{}) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		who, view, status, err := a.written(w, slots, out, r)
		var p *Problem
		switch {
		case err == nil:
		case errors.As(err, &p):
		case errors.Is(err, state.ErrGuard):
			p = problem(http.StatusConflict, "it has changed in the meantime, and nothing was written: read it again")
		case errors.Is(err, state.ErrUnknown):
			p = problem(http.StatusServiceUnavailable, "%s; it may have been written nevertheless", a.text(err.Error()))
		default:
			p = problem(http.StatusServiceUnavailable, "%s; nothing was written", a.text(err.Error()))
		}
		if p != nil {
			level := slog.LevelWarn
			if who == "" { // a stranger, who shall not fill the log
				level = slog.LevelDebug
			}
			a.o.Logger.Log(r.Context(), level, "a request that writes was refused", "who", who, "method", r.Method, "path", r.URL.Path, "status", p.Status, "error", p.Detail)
			if r.ContentLength != 0 { // what is left of it is not waited for
				out.Header().Set("Connection", "close")
			}
			a.refuse(out, p)
			return
		}
		a.facts.drop() // whoever reads next sees it
		a.runs.drop()
		a.o.Logger.Info("a request has written", "who", who, "method", r.Method, "path", r.URL.Path, "status", max(status, http.StatusOK))
		headers(out, "application/json")
		out.WriteHeader(max(status, http.StatusOK))
		_ = json.NewEncoder(out).Encode(view) // who has gone does not need it
	})
}

// written does what a request asks for.
func (a *API) written(w writer, slots chan struct{}, out http.ResponseWriter, r *http.Request) (who string, view any, status int, err error) {
	if a.o.Writes == nil {
		return "", nil, 0, problem(http.StatusForbidden, "this server only reads; https.clients.roles of converge.yaml says who may write")
	}
	if err := crossOrigin.Check(r); err != nil { // a browser would show its user's certificate for any page
		return "", nil, 0, problem(http.StatusForbidden, "%v", err)
	}
	who, err = a.o.Writes.Allowed(w.role, r.TLS)
	if err != nil {
		var no *certs.ForbiddenError
		if errors.As(err, &no) {
			who = strings.Join(no.Names, ", ")
		}
		return who, nil, 0, problem(http.StatusForbidden, "%v", err)
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		return who, nil, 0, problem(http.StatusServiceUnavailable, "%d requests like this are in progress already", cap(slots))
	}
	s := sent{by: author(who)}
	if s.query, err = queried(r, w.query...); err == nil {
		s.body, err = bodyOf(w, out, r)
	}
	if err != nil {
		return who, nil, 0, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), writing)
	defer cancel()
	s.Request = r.WithContext(ctx)
	view, status, err = w.do(s)
	return who, view, status, err
}

var crossOrigin = http.NewCrossOriginProtection()

// bodyOf reads the body of a request, which has the kind and at most the size that is expected.
func bodyOf(w writer, out http.ResponseWriter, r *http.Request) ([]byte, error) {
	kind, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case w.most == 0 && r.ContentLength != 0:
		return nil, problem(http.StatusBadRequest, "this request takes no body")
	case w.most == 0:
		return nil, nil
	case err != nil || kind != "application/json" || r.Header.Get("Content-Encoding") != "" || !strings.EqualFold(cmp.Or(parameters["charset"], "utf-8"), "utf-8"):
		return nil, problem(http.StatusUnsupportedMediaType, "want a body of the type application/json, as it is")
	}
	body, err := io.ReadAll(http.MaxBytesReader(out, r.Body, w.most))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, problem(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", w.most)
	case err != nil:
		return nil, problem(http.StatusBadRequest, "the body could not be read")
	}
	return body, nil
}

// queried returns the parameters of a request; it may have those, once each and not empty, and no others. Only after and since may be
// empty: a client begins without.
func queried(r *http.Request, names ...string) (map[string]string, error) {
	all, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, problem(http.StatusBadRequest, "the query cannot be understood")
	}
	got := map[string]string{}
	for name, values := range all {
		if !slices.Contains(names, name) {
			return nil, problem(http.StatusBadRequest, "the query: this request takes %s", cmp.Or(strings.Join(names, ", "), "none"))
		}
		if len(values) != 1 || values[0] == "" && name != "after" && name != "since" {
			return nil, problem(http.StatusBadRequest, "%s: want one value", name)
		}
		got[name] = values[0]
	}
	if force, ok := got["force"]; ok && force != "true" && force != "false" {
		return nil, problem(http.StatusBadRequest, "force: want true or false")
	}
	return got, plain(got["reason"])
}

// putDocument writes the document on top of the revision that the client has seen.
func (a *API) putDocument(s sent) (any, int, error) {
	after, err := precondition(s.Request)
	if err != nil {
		return nil, 0, err
	}
	v, err := a.o.Writes.Put(s.Context(), s.body, s.by, after)
	if err != nil {
		return nil, 0, err
	}
	if v.Unchanged {
		return v, http.StatusOK, nil
	}
	return v, http.StatusCreated, nil
}

// precondition returns the serial of the document on which a request builds; 0 for none.
func precondition(r *http.Request) (after int64, err error) {
	match, none := r.Header.Values("If-Match"), r.Header.Values("If-None-Match")
	switch {
	case len(match) == 0 && len(none) == 0:
		return 0, problem(http.StatusPreconditionRequired, `say what the document replaces: If-Match: "SERIAL" with the serial of the newest revision (document.serial of /v1/site), or If-None-Match: * for the first one`)
	case len(match)+len(none) > 1:
		return 0, problem(http.StatusBadRequest, "want one of If-Match and If-None-Match, once")
	case len(none) == 1 && none[0] == "*":
		return 0, nil
	case len(none) == 1:
		return 0, problem(http.StatusBadRequest, "If-None-Match: want *")
	}
	text, err := strconv.Unquote(match[0])
	if err == nil {
		after, err = strconv.ParseInt(text, 10, 64)
	}
	if err != nil || after < 1 || strconv.Quote(strconv.FormatInt(after, 10)) != match[0] {
		return 0, problem(http.StatusBadRequest, `If-Match: want a serial in quotation marks, such as "41"`)
	}
	return after, nil
}

// planThatWaits returns the plan of a request when it waits.
func (a *API) planThatWaits(r *http.Request) (*state.Waiting, error) {
	w, _, err := site.Waits(r.Context(), a.o.Store)
	if err != nil {
		return nil, away(err)
	}
	digest := r.PathValue("digest")
	switch {
	case w == nil:
		return nil, problem(http.StatusNotFound, "no plan waits for approval: it may have been applied, or the site may have changed")
	case !plan.Approves(digest, w.Approval):
		return nil, problem(http.StatusNotFound, "no plan with this digest waits; what waits is at /v1/plans, and the first %d digits are enough", plan.ShortApproval)
	}
	return w, nil
}

func (a *API) approve(s sent) (any, int, error) {
	w, err := a.planThatWaits(s.Request)
	if err != nil {
		return nil, 0, err
	}
	given, err := site.ApprovePlan(s.Context(), a.o.Store, w, s.by)
	if no := (*site.NotCountedError)(nil); errors.As(err, &no) {
		return nil, 0, problem(http.StatusForbidden, "%v", no)
	}
	return ApprovedView{w.Approval, s.by, given, w.Needs}, 0, tooLate(err)
}

func (a *API) unapprove(s sent) (any, int, error) {
	w, err := a.planThatWaits(s.Request)
	if err != nil {
		return nil, 0, err
	}
	had, err := site.UnapprovePlan(s.Context(), a.o.Store, w, s.by)
	return UnapprovedView{w.Approval, had}, 0, tooLate(err)
}

// tooLate says that a plan no longer waits.
func tooLate(err error) error {
	if errors.Is(err, state.ErrGuard) {
		return problem(http.StatusConflict, "the plan no longer waits as it was read, or is being applied: see /v1/plans and /v1/runs")
	}
	return err
}

// cancel asks whoever carries out a run to end it. That it has ended is seen at the run.
func (a *API) cancel(s sent) (any, int, error) {
	id := s.PathValue("id")
	run, err := a.o.Store.Run(s.Context(), id)
	if errors.Is(err, state.ErrNotFound) {
		return nil, 0, problem(http.StatusNotFound, "there is no run %s", id)
	}
	if err != nil {
		return nil, 0, away(err)
	}
	holder, err := a.o.Store.LockInfo(s.Context())
	switch {
	case err != nil:
		return nil, 0, away(err)
	case run.Status != state.RunOpen:
		return nil, 0, problem(http.StatusConflict, "run %s has ended: %s", id, run.Status)
	case holder == nil || holder.Run != id:
		return nil, 0, problem(http.StatusConflict, "no process is executing run %s: converge resume continues it, converge rollback takes it back", id)
	}
	if err := a.o.Store.Ask(s.Context(), state.ToCancel, *holder, s.by); err != nil {
		return nil, 0, err
	}
	return CancelView{id, holder.Who}, http.StatusAccepted, nil
}

// reasonOf returns why a request wants something stopped: {"reason": "..."}.
func reasonOf(body []byte) (string, error) {
	var note struct {
		Reason string `json:"reason"`
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(&note)
	if err == nil {
		_, err = d.Token()
	}
	if !errors.Is(err, io.EOF) {
		return "", problem(http.StatusBadRequest, `want {"reason": "..."} and nothing else`)
	}
	if strings.TrimSpace(note.Reason) == "" {
		return "", problem(http.StatusBadRequest, "reason is missing: it is shown to anyone who is stopped")
	}
	return note.Reason, plain(note.Reason)
}

// plain refuses a reason that cannot be shown.
func plain(reason string) error {
	if utf8.RuneCountInString(reason) > maxReason || !utf8.ValidString(reason) || strings.ContainsFunc(reason, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return problem(http.StatusBadRequest, "reason: want one line of at most %d characters", maxReason)
	}
	return nil
}

func (a *API) hold(s sent) (any, int, error) {
	scope := s.PathValue("scope")
	reason, err := reasonOf(s.body)
	if err != nil {
		return nil, 0, err
	}
	if err := state.CheckScope(scope); err != nil {
		return nil, 0, problem(http.StatusBadRequest, "want site, the name of a node, or a ref, SCOPE/KIND/NAME: %v", err)
	}
	if s.query["force"] != "true" {
		known, instead, err := a.o.Writes.Known(s.Context(), scope)
		if err != nil {
			return nil, 0, problem(http.StatusServiceUnavailable, "whether the site has %s is not known, and nothing was written; ?force=true sets the hold all the same: %s", scope, a.text(err.Error()))
		}
		if !known {
			return nil, 0, problem(http.StatusNotFound, "%s", strings.TrimSpace(fmt.Sprintf("%s is neither declared, recorded nor a node: a hold would stop nothing; ?force=true sets it all the same. %s", scope, instead)))
		}
	}
	stops, err := a.o.Store.Stops(s.Context())
	if err != nil {
		return nil, 0, away(err)
	}
	v := ReplacedView{Held: scope, Replaced: []state.Hold{}}
	for _, h := range stops.Holds {
		if h.Scope == scope && h.ByHand() {
			if v.Replaced, err = s.replaces(h); err != nil {
				return nil, 0, err
			}
		}
	}
	return v, 0, stops.SetHold(s.Context(), scope, s.by, reason)
}

// own reports whether a hold is the client's own, wherever that person has set it.
func (s *sent) own(h state.Hold) bool {
	return h.ByHand() && schema.Person(h.By) == schema.Person(s.by)
}

// replaces returns a hold or a freeze that a request replaces: the client's own, or that of whom it names. The reason of another one is
// not lost because somebody has not seen it.
func (s *sent) replaces(h state.Hold) ([]state.Hold, error) {
	if !s.own(h) && h.By != s.query["instead_of"] {
		return nil, problem(http.StatusConflict, "%s; ?instead_of=%s replaces that", h.Text(), url.QueryEscape(h.By))
	}
	return []state.Hold{h}, nil
}

// release ends one hold: the client's own or, when the request says whose, that of somebody else, or of a run.
func (a *API) release(s sent) (any, int, error) {
	scope := s.PathValue("scope")
	stops, err := a.o.Store.Stops(s.Context())
	if err != nil {
		return nil, 0, away(err)
	}
	var others []string
	for _, h := range stops.Holds {
		whose := cmp.Or(h.By, h.Run)
		switch of := s.query["of"]; {
		case h.Scope != scope:
		case of == "" && s.own(h), of != "" && of == whose:
			return ReleasedView{[]state.Hold{h}}, 0, stops.ReleaseHeld(s.Context(), h, s.by, s.query["reason"])
		default:
			others = append(others, h.Text()+": ?of="+url.QueryEscape(whose)+" releases that")
		}
	}
	if len(others) > 0 {
		return nil, 0, problem(http.StatusConflict, "%s", strings.Join(others, "; "))
	}
	return nil, 0, problem(http.StatusNotFound, "%s is not on hold", scope)
}

func (a *API) freeze(s sent) (any, int, error) {
	reason, err := reasonOf(s.body)
	if err != nil {
		return nil, 0, err
	}
	stops, err := a.o.Store.Stops(s.Context())
	if err != nil {
		return nil, 0, away(err)
	}
	v := ReplacedView{Held: state.FrozenScope, Replaced: []state.Hold{}}
	if stops.Freeze != nil {
		if v.Replaced, err = s.replaces(*stops.Freeze); err != nil {
			return nil, 0, err
		}
	}
	return v, 0, stops.SetFreeze(s.Context(), true, s.by, reason)
}

func (a *API) thaw(s sent) (any, int, error) {
	stops, err := a.o.Store.Stops(s.Context())
	if err != nil {
		return nil, 0, away(err)
	}
	h := stops.Freeze
	if h == nil {
		return nil, 0, problem(http.StatusNotFound, "the site is not frozen")
	}
	if of := s.query["of"]; of == "" && !s.own(*h) || of != "" && of != h.By {
		return nil, 0, problem(http.StatusConflict, "%s; ?of=%s ends that", h.Text(), url.QueryEscape(h.By))
	}
	return ReleasedView{[]state.Hold{*h}}, 0, stops.SetFreeze(s.Context(), false, s.by, s.query["reason"])
}
