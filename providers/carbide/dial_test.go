package carbide_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidesim/devcert"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema"
)

func TestOpenRefused(t *testing.T) {
	server, client := mutual(t)
	other, err := devcert.Ensure(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	named, err := devcert.Ensure(t.TempDir(), "elsewhere.example")
	if err != nil {
		t.Fatal(err)
	}
	made := func(at time.Time) devcert.Files {
		f, err := devcert.Made(t.TempDir(), at)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	old, early := made(time.Now().AddDate(0, 0, -60)), made(time.Now().AddDate(0, 0, 2))
	only := func(f devcert.Files) carbidesim.ServerOptions {
		return carbidesim.ServerOptions{CertFile: f.ServerCert, KeyFile: f.ServerKey}
	}
	show := func(f devcert.Files) carbide.TLS {
		return carbide.TLS{CA: client.CA, Cert: f.ClientCert, Key: f.ClientKey}
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	open, pipe := filepath.Join(t.TempDir(), "open.key"), filepath.Join(t.TempDir(), "pipe")
	key, err := os.ReadFile(client.Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(open, key, 0o600), os.Chmod(open, 0o644), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	plain := carbidesim.ServerOptions{}
	lenient := server
	lenient.Mutual = false
	for name, c := range map[string]struct {
		server  carbidesim.ServerOptions
		address string // empty: the server's
		tls     carbide.TLS
		class   providers.Class
		says    string
	}{
		"server's expired":      {server: only(old), tls: carbide.TLS{Mode: carbide.Server, CA: old.CA}, class: denied, says: "the server's certificate (CN=converge development server, serial"},
		"server's expired then": {server: only(old), tls: carbide.TLS{Mode: carbide.Server, CA: old.CA}, class: denied, says: "expired at 2"},
		"server's too new":      {server: only(early), tls: carbide.TLS{Mode: carbide.Server, CA: early.CA}, class: denied, says: "is not valid before 2"},
		"ours expired":          {server: server, tls: show(old), class: denied, says: "the client certificate " + old.ClientCert + " (CN=converge development client"},
		"ours expired then":     {server: server, tls: show(old), class: denied, says: "expired at 2"},
		"ours too new":          {server: server, tls: show(early), class: denied, says: "is not valid before 2"},
		"wrong authority":       {server: server, tls: carbide.TLS{CA: other.CA, Cert: client.Cert, Key: client.Key}, class: denied, says: "is not signed by a CA in " + other.CA},
		"wrong name":            {server: carbidesim.ServerOptions{CertFile: named.ServerCert, KeyFile: named.ServerKey}, tls: carbide.TLS{Mode: carbide.Server, CA: named.CA}, class: denied, says: `is not valid for "127.0.0.1"`},
		"no certificate":        {server: server, tls: carbide.TLS{Mode: carbide.Server, CA: client.CA}, class: denied, says: `requires a client certificate, but the TLS mode is "server"`},
		"unknown certificate":   {server: server, tls: carbide.TLS{CA: client.CA, Cert: other.ClientCert, Key: other.ClientKey}, class: denied, says: "the server rejects the client certificate " + other.ClientCert},
		"plain server":          {server: plain, tls: client, class: transient},
		"plain client":          {server: server, tls: carbide.TLS{Mode: carbide.Off}, class: transient},
		"nobody there":          {server: server, address: "127.0.0.1:1", tls: client, class: transient},
		"plain to far":          {server: plain, address: "192.0.2.1:1079", tls: carbide.TLS{Mode: carbide.Off}, class: invalid, says: "another machine"},
		"no address":            {server: plain, address: " ", tls: carbide.TLS{Mode: carbide.Off}, class: invalid},
		"unknown mode":          {server: server, tls: carbide.TLS{Mode: "some"}, class: invalid, says: `unknown TLS mode "some"`},
		"no key":                {server: server, tls: carbide.TLS{CA: client.CA, Cert: client.Cert}, class: invalid, says: "needs a certificate and its key"},
		"missing CA file":       {server: server, tls: carbide.TLS{CA: text + "-not", Cert: client.Cert, Key: client.Key}, class: invalid, says: "read the certificates"},
		"CA without any":        {server: server, tls: carbide.TLS{CA: text, Cert: client.Cert, Key: client.Key}, class: invalid, says: "contains no certificate"},
		"key of another":        {server: server, tls: carbide.TLS{CA: client.CA, Cert: client.Cert, Key: other.ClientKey}, class: invalid, says: "read the client certificate"},
		"key for everybody":     {server: server, tls: carbide.TLS{CA: client.CA, Cert: client.Cert, Key: open}, class: invalid, says: "anyone on this machine can read or write " + open + " (mode 0644): run chmod o-rw on it"},
		"key is a pipe":         {server: server, tls: carbide.TLS{CA: client.CA, Cert: client.Cert, Key: pipe}, class: invalid, says: "it is a named pipe"},
		"CA is a device":        {server: server, tls: carbide.TLS{CA: "/dev/zero", Cert: client.Cert, Key: client.Key}, class: invalid, says: "it is a device"},
		"certificate optional":  {server: lenient, tls: carbide.TLS{Mode: carbide.Server, CA: client.CA}, class: ""},
	} {
		t.Run(name, func(t *testing.T) {
			address := listen(t, newWorld(t, carbidesim.Options{}), c.server)
			if c.address != "" {
				address = strings.TrimSpace(c.address)
			}
			p, err := carbide.Open(t.Context(), carbide.Options{Address: address, TLS: c.tls})
			switch {
			case c.class == "" && err != nil:
				t.Fatalf("open failed: %v", err)
			case c.class == "":
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			case err == nil:
				p.Close()
				t.Fatal("open succeeded")
			case providers.ClassOf(err) != c.class || !strings.Contains(err.Error(), c.says):
				t.Errorf("class %s: %v\nwant class %s and %q in it", providers.ClassOf(err), err, c.class, c.says)
			}
		})
	}
}

// TestNotPermitted: a site tells unknown clients only its version, and the refusal says which client it saw.
func TestNotPermitted(t *testing.T) {
	server, client := mutual(t)
	optional, other := server, server
	optional.Mutual = false
	other.Roles = carbidesim.Roles{"spiffe://nico.local/nico-system/sa/somebody-else": carbidesim.SiteAgent}
	for name, c := range map[string]struct {
		server carbidesim.ServerOptions
		tls    carbide.TLS
		says   string
	}{
		"no certificate": {optional, carbide.TLS{Mode: carbide.Server, CA: client.CA}, `a client without a certificate (TLS mode "server" presents none)`},
		"another's name": {other, client, devcert.ClientURI + ", as named in the client certificate " + client.Cert + " (CN=converge development client"},
	} {
		w := newWorld(t, carbidesim.Options{})
		p, err := carbide.Open(t.Context(), carbide.Options{Address: listen(t, w, c.server), TLS: c.tls})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		s := &site{t, w, p}
		_, err = providers.Collect(s.kind("vpc").List(t.Context()))
		s.class("observe", err, denied)
		if err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v\nwant %q in it", name, err, c.says)
		}
	}
}

// TestDial goes through a dialer and a unix socket, as plain text.
func TestDial(t *testing.T) {
	w := newWorld(t, carbidesim.Options{})
	server, err := carbidesim.NewServer(w, carbidesim.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "c") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- server.Serve(l) }()
	defer func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		if address != "somewhere:1" {
			t.Errorf("dialled %s", address)
		}
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	for _, o := range []carbide.Options{
		{Address: "unix:" + socket, TLS: carbide.TLS{Mode: carbide.Off}},
		{Address: "somewhere:1", TLS: carbide.TLS{Mode: carbide.Off}, AllowInsecure: true, Dial: dial},
	} {
		p, err := carbide.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDeadline: a call has to end before its caller's deadline, so that the caller can observe the result.
func TestDeadline(t *testing.T) {
	w := newWorld(t, carbidesim.Options{})
	server, client := mutual(t)
	limits := make(chan time.Time, 1)
	server.Arrived = func(ctx context.Context, method string) {
		if limit, ok := ctx.Deadline(); ok && method == "CreateVpc" {
			limits <- limit
		}
	}
	p, err := carbide.Open(t.Context(), carbide.Options{Address: listen(t, w, server), TLS: client})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := &site{t, w, p}
	if err := w.Inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Hang}); err != nil {
		t.Fatal(err)
	}
	const whole = 2 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), whole)
	defer cancel()
	outer, _ := ctx.Deadline()
	c := call("vpc", "prod")
	c.Want = schema.Object{"tenant": "acme"}
	s.class("a create that is never answered", s.kind("vpc").Create(ctx, c), unknown)
	if inner := <-limits; outer.Sub(inner) < whole/5 {
		t.Errorf("the call may take until %s before its caller's end", outer.Sub(inner))
	}
	if err := ctx.Err(); err != nil {
		t.Fatalf("nothing is left to look: %v", err)
	}
	if things, err := s.kind("vpc").Get(ctx, []string{c.ID}); err != nil || len(things) != 0 {
		t.Errorf("looking afterwards: %d things, %v", len(things), err)
	}
}

// TestTrace: the trace of the run is sent with every call, unless the caller has its own.
func TestTrace(t *testing.T) {
	const whole, own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	for _, c := range []struct{ option, caller, want string }{
		{whole, "", "[" + whole + "]"}, {whole, own, "[" + own + "]"}, {"", own, "[" + own + "]"}, {"", "", "[]"}, {"nonsense\n", "", "[]"},
	} {
		w := newWorld(t, carbidesim.Options{})
		var got []string // calls here are sequential
		address := listen(t, w, carbidesim.ServerOptions{Arrived: func(ctx context.Context, method string) {
			if method != "Version" {
				md, _ := metadata.FromIncomingContext(ctx)
				got = md.Get("traceparent")
			}
		}})
		p, err := carbide.Open(t.Context(), carbide.Options{Address: address, TLS: carbide.TLS{Mode: carbide.Off}, Trace: c.option})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		ctx := t.Context()
		if c.caller != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", c.caller)
		}
		if _, err := providers.Collect((&site{t, w, p}).kind("vpc").List(ctx)); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("option %q, caller %q: %v was sent", c.option, c.caller, got)
		}
	}
}

// The service reports its identity, which the engine remembers, and its version.
func TestIdentity(t *testing.T) {
	p := connect(t, newWorld(t, carbidesim.Options{Generation: carbidesim.August, Rules: carbidesim.Rules{SiteName: "fra1"}}))
	if build, err := p.Build(t.Context()); err != nil || build != "v0.0.0-simulator-august" {
		t.Errorf("it runs %q (%v)", build, err)
	}
	if id, err := p.Identity(t.Context()); err != nil || id != "fra1" {
		t.Errorf("it calls itself %q (%v), want fra1", id, err)
	}
}
