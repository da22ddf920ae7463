package certs

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"converge.dev/converge/internal/nearest"
)

// A Role is what a client may change.
type Role string

// The roles of clients.
const (
	WriteDocument Role = "document" // write the site's document
	Approve       Role = "approve"  // approve the plan that waits
	Cancel        Role = "cancel"   // end a run before it is done
	Hold          Role = "hold"     // hold and freeze, and end that
	Operate       Role = "operate"  // whatever a command beside the site agent may do: use the store of the site, and its nodes
)

// AllRoles are all roles.
var AllRoles = []Role{WriteDocument, Approve, Cancel, Hold, Operate}

// A ForbiddenError says why a client may not act in a role.
type ForbiddenError struct {
	Role  Role
	Why   string
	Names []string // of the client's certificate when that is good, and has not the role
}

// Error implements error.
func (e *ForbiddenError) Error() string { return fmt.Sprintf("role %s is required: %s", e.Role, e.Why) }

// checkRoles returns everything about the roles that cannot work.
func (c *Clients) checkRoles(wrong func(format string, args ...any)) {
	sorts := map[string]string{} // by the names without them
	for _, role := range slices.Sorted(maps.Keys(c.Roles)) {
		names := c.Roles[role]
		if !slices.Contains(AllRoles, role) {
			var all []string
			for _, r := range AllRoles {
				all = append(all, string(r))
			}
			wrong(": there is no role %q: want %s.%s", role, strings.Join(all, ", "), nearest.DidYouMean(string(role), all))
			continue
		}
		if len(names) == 0 {
			wrong(".%s names nobody: remove it, or list names such as cn:ada, dns:ci.example or uri:spiffe://cloud/writer", role)
		}
		for i, name := range names {
			if err := checkName(name); err != nil {
				wrong(".%s: %q: %v", role, name, err)
			}
			if slices.Contains(names[:i], name) {
				wrong(".%s: %q is listed twice", role, name)
			}
			sort, bare, _ := strings.Cut(name, ":")
			if other, ok := sorts[bare]; ok && other != sort {
				wrong(".%s: %s and %s:%s would be one name in approvals and in the log", role, name, other, bare)
			}
			sorts[bare] = sort
		}
	}
}

// checkName refuses what can be no name of a certificate, or could be taken for somebody else's.
func checkName(text string) error {
	sort, name, ok := strings.Cut(text, ":")
	switch {
	case !ok || !slices.Contains([]string{"cn", "dns", "uri"}, sort):
		return errors.New("want cn:COMMON-NAME, dns:NAME or uri:URI")
	case name == "" || name != strings.TrimSpace(name) || strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("the name is empty, begins or ends with a space, or has control characters")
	case strings.Contains(name, "@"):
		return errors.New("a name has no @, which stands between a person and a machine")
	case sort == "dns" && (name != strings.ToLower(name) || strings.Contains(name, "*")):
		return errors.New("want a DNS name in lower case, without wildcards")
	}
	return nil
}

// commonName is the type of a common name, RFC 5280 appendix A.
var commonName = asn1.ObjectIdentifier{2, 5, 4, 3}

// namesOf returns the names of a certificate in the form in which roles list them.
func namesOf(leaf *x509.Certificate) (names []string) {
	for _, part := range leaf.Subject.Names { // there may be several common names
		if name, ok := part.Value.(string); ok && part.Type.Equal(commonName) {
			names = append(names, "cn:"+name)
		}
	}
	for _, name := range leaf.DNSNames {
		names = append(names, "dns:"+strings.ToLower(name))
	}
	for _, u := range leaf.URIs {
		names = append(names, "uri:"+u.String())
	}
	return names
}

// Allowed returns the name, without its prefix, by which a client may act in a role. It fails with a *[ForbiddenError] unless the client
// has shown a certificate that the authorities which count now have signed, that is valid now, and exactly one of whose names has the
// role: with two it could be two people. State is that of the client's connection; nil: it has no TLS.
func (s *Source) Allowed(role Role, state *tls.ConnectionState) (string, error) {
	no := func(format string, args ...any) (string, error) {
		return "", &ForbiddenError{Role: role, Why: fmt.Sprintf(format, args...)}
	}
	switch {
	case s.clients == nil || len(s.roles[role]) == 0:
		return no("nobody has it; https.clients.roles of converge.yaml says who does, read when the site agent starts")
	case state == nil || len(state.PeerCertificates) == 0:
		return no("show a client certificate that has it")
	}
	leaf := state.PeerCertificates[0]
	others := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		others.AddCert(c)
	}
	// Again, because a connection may outlive the certificate, and its authority.
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: s.clients.pool(), Intermediates: others, CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return no("the client certificate is not valid: %v", err)
	}
	var had []string
	for _, name := range namesOf(leaf) {
		if slices.Contains(s.roles[role], name) && !slices.Contains(had, name) {
			had = append(had, name)
		}
	}
	switch len(had) {
	case 0:
		names := namesOf(leaf)
		return "", &ForbiddenError{role, "no name of the client certificate has it: " + cmp.Or(strings.Join(names, ", "), "it has none"), names}
	case 1:
		_, name, _ := strings.Cut(had[0], ":")
		return name, nil
	}
	return no("several names of the client certificate have it, and it is unclear who acts: %s", strings.Join(had, ", "))
}
