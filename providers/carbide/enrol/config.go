package enrol

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"time"

	"github.com/google/uuid"
)

// Config says how the site gets its credentials, as carbide.enrol of converge.yaml.
type Config struct {
	URL      string `json:"url" yaml:"url"`                                 // where they are asked for, https://HOST/v1/sitecreds
	SiteUUID string `json:"site_uuid,omitempty" yaml:"site_uuid,omitempty"` // under which the far side knows the site; its id when empty
	OTPFile  string `json:"otp_file" yaml:"otp_file"`                       // file of the one-time password; another content enrols again
	CA       string `json:"ca" yaml:"ca"`                                   // file of the authorities that may sign the certificate of the URL's server, and no others
	Key      Key    `json:"key,omitempty" yaml:"key,omitempty"`
	Renew    string `json:"renew,omitempty" yaml:"renew,omitempty"`       // optional: URL where a certificate request is signed for whoever shows the current certificate
	Attempts int    `json:"attempts,omitempty" yaml:"attempts,omitempty"` // for one password; 10 when zero
	Within   string `json:"within,omitempty" yaml:"within,omitempty"`     // duration of all of them; 10m when empty
	Store    Store  `json:"store" yaml:"store"`

	SkipVerify bool `json:"skip_verify,omitempty" yaml:"skip_verify,omitempty"` // do not check the server's certificate; on this machine only, for tests
}

// Key says who makes the private key.
type Key string

// The makers of keys. The zero value is Local.
const (
	Local    Key = "local"    // this side, which sends a certificate request
	Download Key = "download" // the far side, as the service of 2026 does; for migration
)

// Store says where the credentials are kept: in one of the two.
type Store struct {
	Files      *FileStore   `json:"files,omitempty" yaml:"files,omitempty"`
	Kubernetes *SecretStore `json:"kubernetes,omitempty" yaml:"kubernetes,omitempty"`
}

// A FileStore is a directory, mode 0700; replicas share it. In it are ca.pem and identity.pem, the key with its certificate, mode 0600.
type FileStore struct {
	Dir string `json:"dir" yaml:"dir"`
}

// Paths returns the files, relative to where the directory is: of the authorities, and of the key with its certificate.
func (f FileStore) Paths() (ca, identity string) {
	return filepath.Join(f.Dir, caFile), filepath.Join(f.Dir, identityFile)
}

// A SecretStore is a secret of the Kubernetes cluster in which the program runs, with ca.crt, tls.crt and tls.key.
type SecretStore struct {
	Secret    string `json:"secret" yaml:"secret"`
	Namespace string `json:"namespace,omitempty" yaml:"namespace,omitempty"` // that of the pod when empty
}

const (
	defaultAttempts = 10
	mostAttempts    = 100
	defaultWithin   = 10 * time.Minute
)

// names of objects of Kubernetes
var dnsName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// Check returns everything that cannot work, whatever the far side says; setting is where it is in converge.yaml.
func (c *Config) Check(setting string) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(setting+format, args...)) }
	for _, u := range []struct{ name, text string }{{"url", c.URL}, {"renew", c.Renew}} {
		if u.text == "" {
			continue
		}
		switch host, err := target(u.text); {
		case err != nil:
			wrong(".%s %v", u.name, err)
		case c.SkipVerify && !loopback(host):
			wrong(".skip_verify is for this machine only, and %s names another one: remove it, and set ca", u.name)
		}
	}
	for name, text := range map[string]string{"url": c.URL, "otp_file": c.OTPFile, "ca": c.CA} {
		if text == "" && !(name == "ca" && c.SkipVerify) {
			wrong(".%s is missing: enrolment needs url, otp_file and ca", name)
		}
	}
	if _, err := uuid.Parse(c.SiteUUID); c.SiteUUID != "" && err != nil {
		wrong(".site_uuid is %q: want a UUID, or omit it for the id of the site", c.SiteUUID)
	}
	if c.Key != "" && c.Key != Local && c.Key != Download {
		wrong(".key is %q: want %s or %s", c.Key, Local, Download)
	}
	if c.Attempts < 0 || c.Attempts > mostAttempts {
		wrong(".attempts is %d: want 1 to %d, or omit it", c.Attempts, mostAttempts)
	}
	if d, err := time.ParseDuration(c.Within); c.Within != "" && (err != nil || d <= 0) {
		wrong(".within is %q: want a duration such as 10m, or omit it", c.Within)
	}
	switch f, k := c.Store.Files, c.Store.Kubernetes; {
	case (f == nil) == (k == nil):
		wrong(".store: want either files or kubernetes")
	case f != nil && f.Dir == "":
		wrong(".store.files.dir is missing")
	case k != nil && !dnsName.MatchString(k.Secret):
		wrong(".store.kubernetes.secret is %q: want the name of a secret", k.Secret)
	case k != nil && k.Namespace != "" && !dnsName.MatchString(k.Namespace):
		wrong(".store.kubernetes.namespace is %q: want the name of a namespace, or omit it", k.Namespace)
	}
	return errors.Join(errs...)
}

// target returns the host of a URL to which a password may be sent.
func target(text string) (host string, err error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "":
		return "", errors.New("is no URL: want https://HOST/PATH")
	case u.User != nil:
		return "", errors.New("contains a user or a password: remove it from the URL")
	case u.Scheme != "https":
		return "", errors.New("is not https: a password is not sent without TLS")
	}
	return u.Hostname(), nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
