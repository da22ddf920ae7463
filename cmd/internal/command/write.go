package command

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"google.golang.org/grpc"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/site"
	"converge.dev/converge/site/api"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// writes are what clients of the site agent with a role may change; nil when nobody has one.
func (s *session) writes() *api.Writes {
	if s.certs.https == nil || s.conf.HTTPS.Clients == nil || len(s.conf.HTTPS.Clients.Roles) == 0 {
		return nil
	}
	puts, knows := make(chan struct{}, 1), make(chan struct{}, 1) // a document takes memory and time
	return &api.Writes{
		Allowed: s.certs.https.Allowed,
		Put: func(ctx context.Context, body []byte, by string, after int64) (v api.PutView, err error) {
			err = oneByOne(ctx, puts, func() error { v, err = s.putSent(ctx, body, by, after); return err })
			return v, err
		},
		Known: func(ctx context.Context, scope string) (known bool, instead string, err error) {
			err = oneByOne(ctx, knows, func() error { known, instead, err = s.knows(ctx, scope); return err })
			return known, instead, err
		},
	}
}

// operate offers what a command beside the site agent uses.
func (s *session) operate(r grpc.ServiceRegistrar, nodes *site.Nodes) {
	site.Relay(r, nodes, s.log)
	if err := etcd.Gateway(r, s.kv, s.store.Path()+"/"); err != nil {
		s.log.Error("the store is not offered to operators", "error", err)
	}
}

// oneByOne does something while nobody else does.
func oneByOne(ctx context.Context, place chan struct{}, do func() error) error {
	select {
	case place <- struct{}{}:
		defer func() { <-place }()
		return do()
	case <-ctx.Done():
		return fmt.Errorf("others were not done in time: %w", context.Cause(ctx))
	}
}

// putSent makes a document that a client has sent the newest revision, on top of the one with a serial; 0: of none.
func (s *session) putSent(ctx context.Context, body []byte, by string, after int64) (v api.PutView, err error) {
	from := sender{by: by, what: "the document", where: "the request", instead: "send another one", file: "document.json"}
	o := &offer{answer: state.InboxResult{At: time.Now().UTC()}}
	ds, err := s.intake(ctx, o, body, from)
	list, more := problems(ds, err)
	var conflict *state.ConflictError
	switch {
	case errors.As(err, &conflict) && conflict.Head.Serial != after:
		return v, moved(conflict.Head)
	case refuses(err):
		p := view.Explain(err)
		if said(err) {
			p = &view.Problem{What: "the document is not valid", Where: view.DiagnosticsSummary(ds)}
		}
		return v, &api.Problem{Title: http.StatusText(http.StatusUnprocessableEntity), Status: http.StatusUnprocessableEntity, Detail: bounded(p.Error()), Fix: p.Fix, Problems: list, More: more}
	case err != nil:
		return v, err
	}
	head, err := s.store.Head(ctx)
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		return v, err
	}
	same := head.Serial > 0 && head.Digest == o.doc.Digest && (o.sig == nil || reflect.DeepEqual(o.sig, head.Signature)) // a repeated request
	if head.Serial != after && !same {
		return v, moved(head)
	}
	now, err := s.store.PutSigned(ctx, o.doc.JSON, o.doc.Digest, o.sig, o.stated, by, head.Revision)
	if errors.As(err, &conflict) {
		return v, moved(conflict.Head)
	}
	if err != nil {
		return v, err
	}
	return api.PutView{
		Serial: now.Serial, Digest: now.Digest, Revision: now.Revision, Signer: o.author.Signer, Unchanged: now.Revision == head.Revision, Problems: list,
	}, nil
}

// moved says that the document is not the one on which a client has built.
func moved(head state.Head) *api.Problem {
	p := &api.Problem{Title: http.StatusText(http.StatusPreconditionFailed), Status: http.StatusPreconditionFailed, Detail: "the site has no document yet", Fix: "Send If-None-Match: * to write the first one."}
	if head.Serial > 0 {
		p.Detail = (&state.ConflictError{Head: head, Wanted: "it is not the revision that the request names"}).Error()
		p.Fix = "Look at the newest revision, and send the document again on top of it."
	}
	return p
}
