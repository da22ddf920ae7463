package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/trust/certs"
)

// client returns the state of a connection on which somebody shows a certificate.
func (a *authority) client(t *testing.T, c x509.Certificate) *tls.ConnectionState {
	t.Helper()
	key := newKey(t)
	if c.NotAfter.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	if c.ExtKeyUsage == nil {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	cert, _ := sign(t, &c, a.cert, key.Public(), a.key)
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
}

func address(t *testing.T, text string) []*url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return []*url.URL{u}
}

// A client may act in a role by exactly one name of a certificate that is good at that moment, whatever it was when the client connected.
func TestAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, ca, other := newFolder(t), newAuthority(t), newAuthority(t)
		cert, key := ca.issue(t, "site.example", 24*time.Hour)
		f.write("crt", cert)
		f.write("key", key)
		f.write("ca", ca.text)
		open := func(roles map[certs.Role][]string) *certs.Source {
			t.Helper()
			s, err := certs.Open(certs.Options{
				Config: certs.Config{Files: &certs.Files{Cert: "crt", Key: "key"}, Clients: &certs.Clients{CA: "ca", Roles: roles}}, Path: f.path,
			})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open(map[certs.Role][]string{
			certs.WriteDocument: {"uri:spiffe://cloud/writer", "dns:ci.example", "cn:ops"},
			certs.Approve:       {"cn:ada", "cn:grace", "dns:grace.example"},
		})
		named := func(cn string, dns ...string) x509.Certificate {
			return x509.Certificate{Subject: pkix.Name{CommonName: cn}, DNSNames: dns}
		}
		with := func(c x509.Certificate, change func(*x509.Certificate)) x509.Certificate { change(&c); return c }
		ada := ca.client(t, named("ada"))
		for name, c := range map[string]struct {
			role certs.Role
			*tls.ConnectionState
			who, says string
		}{
			"by its common name":       {certs.Approve, ada, "ada", ""},
			"by its URI":               {certs.WriteDocument, ca.client(t, with(named("x"), func(c *x509.Certificate) { c.URIs = address(t, "spiffe://cloud/writer") })), "spiffe://cloud/writer", ""},
			"by its DNS name":          {certs.WriteDocument, ca.client(t, named("", "CI.example")), "ci.example", ""},
			"by one of its names":      {certs.Approve, ca.client(t, named("ada", "ci.example")), "ada", ""},
			"no TLS":                   {certs.Approve, nil, "", "show a client certificate"},
			"no certificate":           {certs.Approve, &tls.ConnectionState{}, "", "show a client certificate"},
			"a role of nobody":         {certs.Cancel, ada, "", "nobody has it"},
			"a role of others":         {certs.WriteDocument, ada, "", "no name of the client certificate has it: cn:ada"},
			"a common name like a DNS": {certs.WriteDocument, ca.client(t, named("ci.example")), "", "no name"},
			"a DNS name like a common": {certs.WriteDocument, ca.client(t, named("", "ops")), "", "no name"},
			"a longer URI":             {certs.WriteDocument, ca.client(t, with(named("x"), func(c *x509.Certificate) { c.URIs = address(t, "spiffe://cloud/writer/2") })), "", "no name"},
			"an organisation":          {certs.Approve, ca.client(t, x509.Certificate{Subject: pkix.Name{Organization: []string{"ada"}}}), "", "no name"},
			"two common names": {certs.Approve, ca.client(t, x509.Certificate{Subject: pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{
				{Type: []int{2, 5, 4, 3}, Value: "ada"}, {Type: []int{2, 5, 4, 3}, Value: "grace"}}}}), "", "several names"},
			"no name at all":       {certs.Approve, ca.client(t, x509.Certificate{}), "", "it has none"},
			"two people":           {certs.Approve, ca.client(t, named("ada", "grace.example")), "", "several names"},
			"of another authority": {certs.Approve, other.client(t, named("ada")), "", "not valid"},
			"of a server":          {certs.Approve, ca.client(t, with(named("ada"), func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })), "", "not valid"},
			"that has ended": {certs.Approve, ca.client(t, with(named("ada"), func(c *x509.Certificate) {
				c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
			})), "", "not valid"},
			"that has not begun": {certs.Approve, ca.client(t, with(named("ada"), func(c *x509.Certificate) {
				c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
			})), "", "not valid"},
			"of another behind a good one": {certs.Approve, &tls.ConnectionState{PeerCertificates: append(other.client(t, named("ada")).PeerCertificates, ada.PeerCertificates...)}, "", "not valid"},
		} {
			who, err := s.Allowed(c.role, c.ConnectionState)
			var no *certs.ForbiddenError
			switch {
			case c.says == "" && (err != nil || who != c.who):
				t.Errorf("%s: %q, %v", name, who, err)
			case c.says != "" && (who != "" || !errors.As(err, &no) || no.Role != c.role || !strings.Contains(err.Error(), c.says)):
				t.Errorf("%s: %q, %v", name, who, err)
			}
		}
		if _, err := open(nil).Allowed(certs.Approve, ada); err == nil {
			t.Error("without roles somebody has one")
		}
		run(t, s)
		time.Sleep(2 * time.Hour)
		if _, err := s.Allowed(certs.Approve, ada); err == nil {
			t.Error("a certificate that has ended on an open connection is good")
		}
		ada = ca.client(t, named("ada"))
		if _, err := s.Allowed(certs.Approve, ada); err != nil {
			t.Error(err)
		}
		f.write("ca", other.text)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if _, err := s.Allowed(certs.Approve, ada); err == nil {
			t.Error("a certificate of an authority that no longer counts is good")
		}
	})
}

// Roles that cannot be what somebody meant are refused at the start.
func TestRolesThatCannotBe(t *testing.T) {
	f, ca := newFolder(t), newAuthority(t)
	f.write("ca", ca.text)
	for name, c := range map[string]struct {
		role  string
		names []string
		says  string
	}{
		"no such role":        {"aprove", []string{"cn:ada"}, "Did you mean approve?"},
		"nobody":              {"approve", nil, "names nobody"},
		"no sort":             {"approve", []string{"ada"}, "want cn:"},
		"another sort":        {"approve", []string{"ou:ada"}, "want cn:"},
		"no name":             {"approve", []string{"cn:"}, "is empty"},
		"a space":             {"approve", []string{"cn: ada"}, "space"},
		"with a machine":      {"approve", []string{"cn:ada@lab"}, "no @"},
		"an uppercase domain": {"document", []string{"dns:CI.example"}, "lower case"},
		"any of a domain":     {"document", []string{"dns:*.example"}, "wildcards"},
		"one name for two":    {"approve", []string{"cn:ada", "dns:ada"}, "would be one name"},
		"twice":               {"document", []string{"cn:ci", "cn:ci"}, "twice"},
	} {
		_, err := certs.Open(certs.Options{
			Config: certs.Config{Builtin: true, Clients: &certs.Clients{CA: "ca", Roles: map[certs.Role][]string{certs.Role(c.role): c.names}}}, Path: f.path,
		})
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "https.clients.roles") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
