package carbide_test

import (
	"errors"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidesim/devcert"
	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema"
)

// newWorld returns a simulated site.
func newWorld(t testing.TB, o carbidesim.Options) *carbidesim.World {
	t.Helper()
	w, err := carbidesim.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// certificates are the same for all tests: creating keys takes longer than most of them.
var certificates = sync.OnceValues(func() (devcert.Files, error) { return devcert.Ensure(certificateDir) })

// certificateDir is removed by TestMain.
var certificateDir string

func certs(t testing.TB) devcert.Files {
	t.Helper()
	f, err := certificates()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// listen puts a world on the wire and returns its address.
func listen(t testing.TB, w *carbidesim.World, o carbidesim.ServerOptions) string {
	t.Helper()
	_, address := serve(t, w, o)
	return address
}

func serve(t testing.TB, w *carbidesim.World, o carbidesim.ServerOptions) (*carbidesim.Server, string) {
	t.Helper()
	s, err := carbidesim.NewServer(w, o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // before it began
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

// mutual returns options of a server and its client with which both present certificates, and only a site agent may do
// anything.
func mutual(t testing.TB) (carbidesim.ServerOptions, carbide.TLS) {
	f := certs(t)
	return carbidesim.ServerOptions{
			CertFile: f.ServerCert, KeyFile: f.ServerKey, ClientCA: f.CA, Mutual: true, Roles: carbidesim.DefaultRoles,
		}, carbide.TLS{
			Mode: carbide.Mutual, CA: f.CA, Cert: f.ClientCert, Key: f.ClientKey,
		}
}

// connect opens the provider on a world, over mutual TLS, in the role of a site agent. The caller closes it.
func connect(t testing.TB, w *carbidesim.World) *providers.Provider {
	t.Helper()
	return connectAs(t, w, carbidesim.DefaultRoles)
}

// connectAs is connect with other roles; nil permits everything, which no single role does.
func connectAs(t testing.TB, w *carbidesim.World, roles carbidesim.Roles) *providers.Provider {
	t.Helper()
	server, client := mutual(t)
	server.Roles = roles
	p, err := carbide.Open(t.Context(), carbide.Options{Address: listen(t, w, server), TLS: client})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A site is a world and an open provider.
type site struct {
	testing.TB
	*carbidesim.World
	*providers.Provider
}

func newSite(t testing.TB, o carbidesim.Options) *site {
	w := newWorld(t, o)
	p := connect(t, w)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return &site{t, w, p}
}

func (s *site) kind(noun string) providers.Kind {
	s.Helper()
	for _, k := range s.Kinds {
		if k.Name == "carbide."+noun {
			return k.Kind
		}
	}
	s.Fatalf("no kind %s", noun)
	return nil
}

// call returns a call that changes the thing of that name.
func call(noun, name string) providers.Call {
	ref := schema.Ref{Scope: schema.ScopeSite, Kind: "carbide." + noun, Name: name}
	return providers.Call{Ref: ref, ID: id(noun, name), Mark: providers.Mark{Site: "6f1c3c5e-4a4e-4f0e-9d53-0f1d3c6f7a10", Ref: ref, Incarnation: 1}}
}

// make creates a thing, which must succeed.
func (s *site) make(noun, name string, want schema.Object) providers.Call {
	s.Helper()
	c := call(noun, name)
	c.Want = want
	switch noun {
	case "tenant", "machine", "sku":
		c.ID = name
	case "tenant_keyset":
		c.ID = want["tenant"].(string) + "/" + name
	}
	if err := s.kind(noun).Create(s.Context(), c); err != nil {
		s.Fatal(err)
	}
	return c
}

// see observes a thing that must exist.
func (s *site) see(noun, id string) providers.Thing {
	s.Helper()
	things, err := s.kind(noun).Get(s.Context(), []string{id})
	if err != nil {
		s.Fatal(err)
	}
	if len(things) != 1 {
		s.Fatalf("%d %ss have id %s", len(things), noun, id)
	}
	return things[0]
}

// change returns an update of a thing as it is now: changes is overlaid, nil removes.
func (s *site) change(noun, name, id string, changes schema.Object) providers.Call {
	s.Helper()
	now := s.see(noun, id)
	c := call(noun, name)
	c.ID, c.Have, c.Want, c.Version = id, now.Spec, now.Spec.Clone(), now.Version
	for field, v := range changes {
		if v == nil {
			delete(c.Want, field)
			continue
		}
		c.Want[field] = v
	}
	return c
}

func (s *site) class(what string, err error, want providers.Class) {
	s.Helper()
	switch {
	case err == nil:
		s.Errorf("%s succeeded, want %s", what, want)
	case providers.ClassOf(err) != want:
		s.Errorf("%s failed with class %s, want %s: %v", what, providers.ClassOf(err), want, err)
	}
}

func id(noun, name string) string { return carbidetest.ID(noun, name) }
