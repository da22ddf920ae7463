package carbide_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema"
)

// TestHealth: only a service that cannot be reached, or does not know us, makes the health bad, and any answer makes it
// good.
func TestHealth(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			s := newSite(t, carbidesim.Options{})
			look := func() error {
				_, err := providers.Collect(s.kind("vpc").List(t.Context()))
				return err
			}
			if down := s.Health(t.Context()); down != nil {
				t.Fatalf("at first: %v", down)
			}
			for _, f := range []carbidesim.Fault{
				{Method: "FindVpcIds", Effect: carbidesim.Before, Code: code},
				{Method: "Version", Effect: carbidesim.Before, Code: code, Times: -1},
			} {
				if err := s.Inject(f); err != nil {
					t.Fatal(err)
				}
			}
			if look() == nil {
				t.Fatal("the fault did not strike")
			}
			down := s.Health(t.Context())
			bad := code == codes.Unavailable || code == codes.Unauthenticated
			if (down != nil) != bad {
				t.Errorf("after %s it is down: %v", code, down)
			}
			if bad && !strings.Contains(down.Error(), "injected fault") {
				t.Errorf("why it is down: %v", down)
			}
			if code == codes.Canceled { // usually by the caller
				return
			}
			if err := look(); err != nil { // the calls of steps that have begun are permitted
				t.Fatal(err)
			}
			if down := s.Health(t.Context()); down != nil {
				t.Errorf("after a success: %v", down)
			}
		})
	}
}

// TestHealthIsAsked: while it is bad the service is probed, by one caller at a time, until it is good again.
func TestHealthIsAsked(t *testing.T) {
	w := newWorld(t, carbidesim.Options{})
	server, client := mutual(t)
	var hold atomic.Bool
	asked, answer := make(chan struct{}), make(chan struct{})
	server.Arrived = func(_ context.Context, method string) {
		if method == "Version" && hold.Load() {
			asked <- struct{}{}
			<-answer
		}
	}
	p, err := carbide.Open(t.Context(), carbide.Options{Address: listen(t, w, server), TLS: client})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := &site{t, w, p}
	if err := w.Inject(carbidesim.Fault{Method: "FindVpcIds", Effect: carbidesim.Before}); err != nil {
		t.Fatal(err)
	}
	_, err = providers.Collect(s.kind("vpc").List(t.Context()))
	s.class("observe", err, transient)
	hold.Store(true)
	first := make(chan error)
	go func() { first <- p.Health(t.Context()) }()
	<-asked
	for range 3 { // would hang if it probed as well
		if p.Health(t.Context()) == nil {
			t.Error("it is good before anybody has answered")
		}
	}
	close(answer)
	if err := <-first; err != nil {
		t.Errorf("it is bad although the service answers: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Health(ctx); err != nil {
		t.Errorf("it is bad again: %v", err)
	}
}

// TestHealthSaysWhy: which certificate is refused, by which side, and what to do.
func TestHealthSaysWhy(t *testing.T) {
	r := newRenewed(t)
	other, _ := r.certificates()
	// The server trusts another authority from now on. It checks at the next connection.
	r.place(other.CA, r.live.CA)
	if err := r.Inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Cut}); err != nil {
		t.Fatal(err)
	}
	c := call("vpc", "prod")
	c.Want = schema.Object{"tenant": "acme"}
	r.class("a create whose connection breaks", r.kind("vpc").Create(t.Context(), c), unknown)
	for {
		down := r.Health(t.Context())
		if down == nil {
			t.Fatal("it is good without a connection")
		}
		if strings.Contains(down.Error(), "the server rejects the client certificate "+r.live.ClientCert) {
			return
		}
		if err := t.Context().Err(); err != nil {
			t.Fatalf("%v: %v", err, down)
		}
	}
}
