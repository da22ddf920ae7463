package trust_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/trust"
)

// Certificates that are refused at the first call, all of them by the handshake.
func TestMutualTLSRefused(t *testing.T) {
	uri := func(texts ...string) (urls []*url.URL) {
		for _, text := range texts {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			urls = append(urls, u)
		}
		return urls
	}
	// forge shows what the site's CA would never issue.
	forge := func(spoil func(c *x509.Certificate)) func(b *bed, id *trust.Identity) *tls.Config {
		return func(b *bed, id *trust.Identity) *tls.Config {
			ca, key := b.ca()
			c := template("gpu-01", id.Certificate().SerialNumber)
			if spoil != nil {
				spoil(c)
			}
			return showing(b.clock, issue(b.t, c, ca, key))
		}
	}
	// why says what each is refused for; what is not listed is refused for its URI.
	why := map[string]string{
		"another authority of this name": "unknown authority", "signed by itself": "unknown authority", "issued by a node": "unknown authority",
		"expired": "expired at", "not yet valid": "valid only from", "expired for too long, by the other door": "expired at",
		"another site": "for another site", "no usage": "another use", "any usage": "another use", "both usages": "another use", "an authority": "another use",
		"a node that is not known": "does not know this node", "an older number": "newer certificate", "the same number, forged": "newer certificate",
		"superseded": "newer certificate", "superseded by a new token": "newer certificate", "banned": "stolen", "banned, by the other door": "stolen",
	}
	for name, config := range map[string]func(b *bed, id *trust.Identity) *tls.Config{
		"another authority of this name": func(b *bed, _ *trust.Identity) *tls.Config {
			return bedOf(b.t, siteID, b.clock).node("gpu-01").TLS().Clone()
		},
		"signed by itself": func(b *bed, id *trust.Identity) *tls.Config {
			return showing(b.clock, issue(b.t, template("gpu-01", id.Certificate().SerialNumber), nil, nil))
		},
		"issued by a node": func(b *bed, id *trust.Identity) *tls.Config {
			c := issue(b.t, template("gpu-01", id.Certificate().SerialNumber), id.Certificate(), id.NodeKey())
			c.Certificate = append(c.Certificate, id.Certificate().Raw)
			return showing(b.clock, c)
		},
		"expired": func(b *bed, id *trust.Identity) *tls.Config {
			b.clock.set(id.Certificate().NotAfter)
			return showing(b.clock, shown(id))
		},
		"not yet valid": forge(func(c *x509.Certificate) { c.NotBefore = start.Add(time.Second) }),
		"the server's certificate": func(b *bed, _ *trust.Identity) *tls.Config {
			c, err := b.ServerCertificate("localhost")(nil)
			if err != nil {
				b.t.Fatal(err)
			}
			return showing(b.clock, *c)
		},
		"the CA's own": func(b *bed, _ *trust.Identity) *tls.Config {
			ca, key := b.ca()
			return showing(b.clock, tls.Certificate{Certificate: [][]byte{ca.Raw}, PrivateKey: key})
		},
		"another site":             forge(func(c *x509.Certificate) { c.URIs = uri("spiffe://" + otherID + "/node/gpu-01") }),
		"no URI":                   forge(func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"gpu-01"} }),
		"two URIs":                 forge(func(c *x509.Certificate) { c.URIs = append(c.URIs, uri("spiffe://"+siteID+"/node/gpu-02")...) }),
		"a longer path":            forge(func(c *x509.Certificate) { c.URIs = uri("spiffe://" + siteID + "/node/gpu-01/x") }),
		"a query":                  forge(func(c *x509.Certificate) { c.URIs = uri("spiffe://" + siteID + "/node/gpu-01?a") }),
		"a fragment":               forge(func(c *x509.Certificate) { c.URIs = uri("spiffe://" + siteID + "/node/gpu-01#a") }),
		"an escaped name":          forge(func(c *x509.Certificate) { c.URIs = uri("spiffe://" + siteID + "/node/gpu%2D01") }),
		"a user":                   forge(func(c *x509.Certificate) { c.URIs = uri("spiffe://a@" + siteID + "/node/gpu-01") }),
		"another scheme":           forge(func(c *x509.Certificate) { c.URIs = uri("https://" + siteID + "/node/gpu-01") }),
		"the site's URI":           forge(func(c *x509.Certificate) { c.URIs = uri("spiffe://" + siteID + "/site") }),
		"no usage":                 forge(func(c *x509.Certificate) { c.ExtKeyUsage = nil }),
		"any usage":                forge(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} }),
		"both usages":              forge(func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) }),
		"an authority":             forge(func(c *x509.Certificate) { c.IsCA = true }),
		"a node that is not known": forge(func(c *x509.Certificate) { c.URIs = uri("spiffe://" + siteID + "/node/gpu-02") }),
		"an older number":          forge(func(c *x509.Certificate) { c.SerialNumber = big.NewInt(7) }),
		"the same number, forged":  forge(func(c *x509.Certificate) { c.SerialNumber = new(big.Int).Xor(c.SerialNumber, big.NewInt(1)) }),
		"superseded": func(b *bed, id *trust.Identity) *tls.Config {
			old := shown(id)
			if err := id.Renew(b.t.Context(), dial(b.t, b.address, id.RenewTLS())); err != nil {
				b.t.Fatal(err)
			}
			return showing(b.clock, old)
		},
		"superseded by a new token": func(b *bed, id *trust.Identity) *tls.Config {
			b.node("gpu-01")
			return id.TLS()
		},
		"banned": func(b *bed, id *trust.Identity) *tls.Config {
			if err := trust.Ban(b.t.Context(), b.store, "gpu-01", "stolen", "ann@host"); err != nil {
				b.t.Fatal(err)
			}
			return id.TLS()
		},
		"banned, by the other door": func(b *bed, id *trust.Identity) *tls.Config {
			if err := trust.Ban(b.t.Context(), b.store, "gpu-01", "stolen", "ann@host"); err != nil {
				b.t.Fatal(err)
			}
			return id.RenewTLS()
		},
		"expired for too long, by the other door": func(b *bed, id *trust.Identity) *tls.Config {
			b.clock.set(id.Certificate().NotAfter.Add(trust.RenewLate))
			c := showing(b.clock, shown(id))
			c.ServerName = trust.RenewName
			return c
		},
		"TLS 1.2": func(b *bed, id *trust.Identity) *tls.Config {
			c := showing(b.clock, shown(id))
			c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			id := b.node("gpu-01")
			if node, err := who(t, b.address, showing(b.clock, shown(id))); err != nil || node != "gpu-01" {
				t.Fatalf("before: %q, %v", node, err) // so that nothing else is what refuses
			}
			c := config(b, id)
			c.VerifyConnection = nil // it is the server that refuses
			if node, err := who(t, b.address, c); status.Code(err) != codes.Unavailable {
				t.Errorf("%q, %v", node, err)
			}
			if name == "TLS 1.2" {
				return // refused before there is a certificate
			}
			if err := b.refusal(); err == nil || !strings.Contains(err.Error(), cmp.Or(why[name], "URI")) {
				t.Errorf("it is refused for %v", err)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		b := newBed(t)
		if node, err := who(t, b.address, showing(b.clock)); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%q, %v", node, err)
		}
	})
}

// shown returns a node's certificate as it is now.
func shown(id *trust.Identity) tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{id.Certificate().Raw}, PrivateKey: id.NodeKey()}
}

// A TLS 1.3 dial succeeds before the server has seen the certificate; the first byte says no.
func TestDialSucceedsAndReadFails(t *testing.T) {
	b := newBed(t)
	id := b.node("gpu-01")
	if err := trust.Ban(t.Context(), b.store, "gpu-01", "stolen", "ann@host"); err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", b.address, id.TLS())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the server has answered")
	}
	var banned *trust.BannedError
	if err := b.refusal(); !errors.As(err, &banned) {
		t.Error(err)
	}
}

// Nothing is resumed: each connection is verified.
func TestNoResumption(t *testing.T) {
	b := newBed(t)
	id := b.node("gpu-01")
	config := id.TLS()
	config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	config.NextProtos = []string{"h2"}
	for range 3 {
		conn, err := tls.Dial("tcp", b.address, config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil { // the server's HTTP/2 settings come after its tickets
			t.Fatal(err)
		}
		if conn.ConnectionState().DidResume {
			t.Error("a session was resumed")
		}
		conn.Close()
	}
}

// A node does not talk to somebody else.
func TestServerRefused(t *testing.T) {
	for name, c := range map[string]struct {
		config func(b *bed) *tls.Config
		want   string
	}{
		"another authority": {func(b *bed) *tls.Config { return bedOf(b.t, siteID, b.clock).config }, "unknown authority"},
		"another site":      {func(b *bed) *tls.Config { return forged(b, true) }, "not that of site"},
		"a node":            {func(b *bed) *tls.Config { return forged(b, false) }, "not that of site"},
		"expired":           {func(b *bed) *tls.Config { return &tls.Config{Certificates: []tls.Certificate{expired(b)}} }, "expired"},
		"for clients": {func(b *bed) *tls.Config {
			ca, key := b.ca()
			s := serverTemplate(siteID)
			s.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			return &tls.Config{Certificates: []tls.Certificate{issue(b.t, s, ca, key)}}
		}, "another use"},
		"TLS 1.2": {func(b *bed) *tls.Config {
			c := b.config.Clone()
			c.MinVersion, c.MaxVersion = 0, tls.VersionTLS12
			return c
		}, "version"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			id := b.node("gpu-01")
			if _, err := who(t, b.serve(c.config(b)), id.TLS()); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
		})
	}
}

// Renewal is hot: the same configuration shows the new certificate, and the directory has it.
func TestRenewIdentity(t *testing.T) {
	b := newBed(t)
	dir := filepath.Join(t.TempDir(), "node")
	id, err := b.bootstrap(dir, b.token("gpu-01"))
	if err != nil {
		t.Fatal(err)
	}
	config, first, key := id.TLS(), id.Certificate(), id.NodeKey()
	life := first.NotAfter.Sub(first.NotBefore)
	if at := id.RenewAt().Sub(first.NotBefore); at < life*45/100 || at > life*55/100 {
		t.Errorf("renewal after %s", at)
	}
	b.clock.set(id.RenewAt())
	if err := id.Renew(t.Context(), dial(t, b.address, id.RenewTLS())); err != nil {
		t.Fatal(err)
	}
	if id.Certificate().Equal(first) || id.NodeKey().Equal(key) {
		t.Error("nothing is new")
	}
	if node, err := who(t, b.address, config); err != nil || node != "gpu-01" {
		t.Errorf("%q, %v", node, err)
	}
	again, err := trust.OpenIdentity(dir, trust.IdentityOptions{Now: b.clock.now})
	if err != nil || !again.Certificate().Equal(id.Certificate()) {
		t.Fatal(err)
	}
	if paths, _ := filepath.Glob(filepath.Join(dir, "*")); len(paths) != 2 {
		t.Errorf("%v", paths)
	}
}

// The door for renewals lets in what has expired, or missed a reply, and nothing but the renewal works there.
func TestRenewDoor(t *testing.T) {
	b := newBed(t)
	id := b.node("gpu-01")
	if _, err := who(t, b.address, id.RenewTLS()); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "door for renewals") {
		t.Errorf("another call by the door: %v", err)
	}
	b.clock.set(id.Certificate().NotAfter.Add(trust.RenewLate - time.Second))
	if _, err := who(t, b.address, id.TLS()); status.Code(err) != codes.Unavailable {
		t.Errorf("expired: %v", err)
	}
	if err := id.Renew(t.Context(), dial(t, b.address, id.RenewTLS())); err != nil {
		t.Fatalf("expired, by the door: %v", err)
	}
	if node, err := who(t, b.address, id.TLS()); err != nil || node != "gpu-01" {
		t.Errorf("%q, %v", node, err)
	}
}

// Who has not got the reply to a renewal before the certificate ended, or gets one that is not valid because a clock was wrong, gets another.
func TestRenewAgainLater(t *testing.T) {
	for name, c := range map[string]struct{ at, then time.Duration }{
		"off for a day":         {0, 25 * time.Hour},
		"a clock in the future": {3 * 24 * time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			id, err := b.bootstrap(filepath.Join(t.TempDir(), "node"), b.token("gpu-01"))
			if err != nil {
				t.Fatal(err)
			}
			b.clock.set(id.RenewAt())
			key := newKey()
			b.clock.add(c.at)
			if _, err = b.Renew(t.Context(), b.store, id.Certificate(), request(t, key, "")); err != nil {
				t.Fatal(err)
			}
			b.clock.add(c.then - c.at)
			chain, err := b.Renew(t.Context(), b.store, id.Certificate(), request(t, key, ""))
			if err != nil {
				t.Fatal(err)
			}
			cert := parse(t, chain)
			if now := b.clock.now(); now.Before(cert.NotBefore) || !now.Before(cert.NotAfter) {
				t.Errorf("from %v to %v, and it is %v", cert.NotBefore, cert.NotAfter, now)
			}
			if err := b.admission.Check("gpu-01", cert.SerialNumber); err != nil {
				t.Error(err)
			}
		})
	}
}

// A node whose renewal was carried out, and which crashed before it stored the reply, has the key on its disk, and gets the certificate.
func TestRenewAfterLostReply(t *testing.T) {
	b := newBed(t)
	dir := filepath.Join(t.TempDir(), "node")
	id, err := b.bootstrap(dir, b.token("gpu-01"))
	if err != nil {
		t.Fatal(err)
	}
	conn := &forgetful{dial(t, b.address, id.RenewTLS())}
	if err := id.Renew(t.Context(), conn); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	if n := b.stored("gpu-01"); n.Count != n.Token.Count+1 {
		t.Fatal("the site has not renewed it")
	}
	id, err = trust.OpenIdentity(dir, trust.IdentityOptions{Now: b.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := who(t, b.address, id.TLS()); status.Code(err) != codes.Unavailable {
		t.Errorf("the old certificate: %v", err)
	}
	if err := id.Renew(t.Context(), dial(t, b.address, id.RenewTLS())); err != nil {
		t.Fatal(err)
	}
	if n := b.stored("gpu-01"); n.Count != n.Token.Count+1 {
		t.Error("another certificate was issued")
	}
	if node, err := who(t, b.address, id.TLS()); err != nil || node != "gpu-01" {
		t.Errorf("%q, %v", node, err)
	}
}

// A node that crashed after it stored a certificate, and before it removed the other file with the key, takes a new key next time.
func TestRenewAfterLeftKey(t *testing.T) {
	b := newBed(t)
	dir := filepath.Join(t.TempDir(), "node")
	id, err := b.bootstrap(dir, b.token("gpu-01"))
	if err != nil {
		t.Fatal(err)
	}
	key := id.NodeKey()
	if err := os.WriteFile(filepath.Join(dir, "next.key"), trust.MarshalKey(key), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := id.Renew(t.Context(), dial(t, b.address, id.RenewTLS())); err != nil || id.NodeKey().Equal(key) {
		t.Error(err)
	}
}

// forgetful loses the reply to a renewal.
type forgetful struct{ *grpc.ClientConn }

func (f *forgetful) Invoke(ctx context.Context, method string, in, out any, o ...grpc.CallOption) error {
	if err := f.ClientConn.Invoke(ctx, method, in, out, o...); err != nil {
		return err
	}
	return status.Error(codes.Unavailable, "the reply is lost")
}

// A directory of one node is not taken over by another; one without an identity says so.
func TestIdentityDirectory(t *testing.T) {
	b := newBed(t)
	dir := filepath.Join(t.TempDir(), "node")
	if _, err := trust.OpenIdentity(dir, trust.IdentityOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := b.bootstrap(dir, b.token("gpu-01")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.bootstrap(dir, b.token("gpu-02")); err == nil || !strings.Contains(err.Error(), "node gpu-01") {
		t.Errorf("%v", err)
	}
	other := bedOf(t, otherID, b.clock)
	if _, err := other.bootstrap(dir, other.token("gpu-01")); !errors.Is(err, trust.ErrSite) {
		t.Errorf("%v", err)
	}
	// A new token for the same node is fine.
	if _, err := b.bootstrap(dir, b.token("gpu-01")); err != nil {
		t.Error(err)
	}
}
