package command

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"slices"
	"sync"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/providers/carbide/enrol"
	"converge.dev/converge/site/api"
	"converge.dev/converge/trust"
	"converge.dev/converge/trust/certs"
)

// certificates are those that a site agent has for itself.
type certificates struct {
	https   *certs.Source   // nil: HTTP is served without TLS
	carbide *enrol.Enroller // nil: somebody else renews the site's credentials
}

// openCertificates opens what converge.yaml says of them.
func (s *session) openCertificates(ctx context.Context, f serving, keys *trust.Authority) (c certificates, err error) {
	path := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(s.conf.Dir(), path)
	}
	if s.conf.HTTPS != nil && f.http != "" && f.http != noAddress {
		all := slices.Clone(f.hosts)
		if host, _, err := net.SplitHostPort(f.http); err == nil && host != "" && !net.ParseIP(host).IsUnspecified() && !slices.Contains(all, host) {
			all = append(all, host)
		}
		c.https, err = certs.Open(certs.Options{
			Config: *s.conf.HTTPS, Path: path, Hosts: f.hosts, Builtin: keys.ServerCertificate(all...), Logger: s.log,
		})
		if err != nil {
			return c, &view.Problem{What: "the certificate of the HTTP server cannot be used", Where: err.Error(), Fix: "Correct https in " + s.conf.Path + ", or serve nothing with -http=none.", Err: err}
		}
	}
	if far := s.conf.Carbide; far != nil && far.Enrol != nil {
		c.carbide, err = enrol.Open(ctx, enrol.Options{Config: *far.Enrol, Site: keys.Site().ID, Path: path, Logger: s.log})
		if err != nil {
			return c, &view.Problem{What: "the site cannot enrol with Carbide", Where: err.Error(), Fix: "Correct carbide.enrol in " + s.conf.Path + ".", Err: err}
		}
	}
	return c, nil
}

// tls returns how HTTP is served, and keeps the certificate fresh until ctx is done; nil when it is served without TLS.
func (c certificates) tls(ctx context.Context, running *sync.WaitGroup) *tls.Config {
	if c.https == nil {
		return nil
	}
	running.Go(func() { c.https.Run(ctx) })
	return c.https.TLS()
}

// list returns them for those who look at the site.
func (c certificates) list() (list []api.Certificate) {
	if c.https != nil {
		leaf, err := c.https.State()
		cert := api.Certificate{Name: "https", Err: err}
		if leaf != nil {
			cert.NotBefore, cert.NotAfter = leaf.NotBefore, leaf.NotAfter
		}
		list = append(list, cert)
	}
	if c.carbide != nil {
		held, err := c.carbide.State()
		cert := api.Certificate{Name: "carbide", Err: err}
		if held.Certificate != nil {
			cert.NotBefore, cert.NotAfter = held.Certificate.NotBefore, held.Certificate.NotAfter
		}
		list = append(list, cert)
		if held.Authority != nil {
			list = append(list, api.Certificate{Name: "carbide_ca", NotBefore: held.Authority.NotBefore, NotAfter: held.Authority.NotAfter})
		}
	}
	return list
}

// enrolments returns what counts them; nil when this replica never enrols.
func (c certificates) enrolments() func() (attempted, succeeded int64) {
	if c.carbide == nil {
		return nil
	}
	return c.carbide.Counts
}
