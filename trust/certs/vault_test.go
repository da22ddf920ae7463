package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/trust/certs"
)

const (
	vaultToken = "hvs.canary-of-a-token"
	vaultID    = "canary-of-a-secret-id"
)

// A vault answers as the documentation of the PKI secrets engine and of AppRole says, and refuses what is not in it. It runs in real time.
type vault struct {
	*testing.T
	*authority
	mount, approle string        // where the engine and the auth method are
	life           time.Duration // of certificates, half of which has passed when they are issued
	shift          time.Duration // by which they are valid later than that
	names          []string      // of certificates, whatever is asked for; nil: what is asked for

	mu     sync.Mutex
	change func(http.ResponseWriter, map[string]any) bool // optional: changes the data of an answer, or answers instead
	bodies []string
	signed int
}

func (v *vault) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	fail := func(status int, text string) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string][]string{"errors": {text}})
	}
	b, _ := io.ReadAll(r.Body)
	v.bodies = append(v.bodies, string(b))
	in := map[string]string{}
	if err := json.Unmarshal(b, &in); err != nil || r.Method != http.MethodPost {
		fail(http.StatusBadRequest, "failed to parse JSON input")
		return
	}
	known := func(names ...string) bool {
		for name := range in {
			if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+name+" ") {
				fail(http.StatusBadRequest, "unknown parameter "+name)
				return false
			}
		}
		return true
	}
	switch r.URL.Path {
	case "/v1/auth/" + v.approle + "/login":
		if !known("role_id", "secret_id") {
			return
		}
		if in["role_id"] != "converge" || in["secret_id"] != vaultID {
			fail(http.StatusBadRequest, "invalid role or secret ID")
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"auth": map[string]any{"client_token": vaultToken, "lease_duration": 1200, "renewable": true}})
	case "/v1/" + v.mount + "/sign/web":
		if r.Header.Get("X-Vault-Token") != vaultToken || r.Header.Get("X-Vault-Request") != "true" {
			fail(http.StatusForbidden, "permission denied")
			return
		}
		if !known("csr", "common_name", "alt_names", "ip_sans", "ttl", "format") {
			return
		}
		block, _ := pem.Decode([]byte(in["csr"]))
		csr, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil || csr.CheckSignature() != nil {
			fail(http.StatusBadRequest, "certificate request could not be parsed")
			return
		}
		if in["common_name"] != "site.example" {
			fail(http.StatusBadRequest, "common name "+in["common_name"]+" not allowed by this role")
			return
		}
		v.signed++
		if v.names == nil {
			v.names = strings.Split(in["alt_names"], ",")
		}
		_, cert := sign(v.T, &x509.Certificate{
			DNSNames: v.names, NotBefore: time.Now().Add(v.shift - v.life), NotAfter: time.Now().Add(v.shift + v.life),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}, v.cert, csr.PublicKey, v.key)
		data := map[string]any{"certificate": string(cert), "issuing_ca": string(v.text), "ca_chain": []string{string(v.text)}, "serial_number": "1", "expiration": 1}
		if v.change != nil && v.change(w, data) {
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"request_id": "x", "lease_id": "", "renewable": false, "data": data, "warnings": nil})
	default:
		fail(http.StatusNotFound, "no handler for route")
	}
}

// served returns the settings with which it is reached.
func (v *vault) served(f folder) certs.Vault {
	srv := httptest.NewUnstartedServer(v)
	own, key := v.issue(v.T, "127.0.0.1", time.Hour)
	pair, err := tls.X509KeyPair(own, key)
	if err != nil {
		v.Fatal(err)
	}
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	v.Cleanup(srv.Close)
	f.write("vault-ca", v.text)
	f.write("token", []byte(vaultToken+"\n"))
	f.write("secret-id", []byte(vaultID+"\n"))
	return certs.Vault{
		Address: strings.Replace(srv.URL, "127.0.0.1", "localhost", 1), Mount: v.mount, Role: "web", CA: "vault-ca", TTL: "72h",
		AppRole: &certs.AppRole{RoleID: "converge", SecretIDFile: "secret-id"},
	}
}

// until waits for something that another goroutine does.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it has not happened within a minute", what)
		}
	}
}

func openVault(t *testing.T, f folder, c certs.Vault, log *logged) *certs.Source {
	t.Helper()
	s, err := certs.Open(certs.Options{Config: certs.Config{Vault: &c}, Path: f.path, Hosts: []string{"site.example", "site-1.example"}, Logger: log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := shown(s, "site.example"); err == nil || !strings.Contains(err.Error(), "no certificate yet") {
		t.Errorf("before Vault was asked: %v", err)
	}
	run(t, s)
	return s
}

func newVault(t *testing.T) (*vault, folder) {
	a := newAuthority(t)
	return &vault{T: t, authority: a, mount: "pki/site", approle: "approle", life: time.Hour}, newFolder(t)
}

// issue overrides that of the authority: its server is reached as localhost.
func (v *vault) issue(t *testing.T, _ string, life time.Duration) (cert, key []byte) {
	return v.authority.issue(t, "localhost", life)
}

// Vault signs for a key that it never sees, and signs again at half of the life; when it cannot, the certificate stays.
func TestVaultSigns(t *testing.T) {
	for _, how := range []string{"approle", "token"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			v, f := newVault(t)
			c := v.served(f)
			if how == "token" {
				c.AppRole, c.TokenFile = nil, "token"
			}
			log := &logged{}
			s := openVault(t, f, c, log)
			until(t, "it signs twice", func() bool { v.mu.Lock(); defer v.mu.Unlock(); return v.signed >= 2 })
			leaf, _, err := shown(s, "site.example")
			if err != nil || leaf.VerifyHostname("site-1.example") != nil {
				t.Fatalf("%v: %v", err, leaf)
			}
			v.mu.Lock()
			v.change = func(w http.ResponseWriter, _ map[string]any) bool {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, `{"errors":["Vault is sealed"]}`)
				return true
			}
			v.mu.Unlock()
			until(t, "it fails", func() bool {
				_, err := s.State()
				return err != nil && strings.Contains(err.Error(), "Vault is sealed")
			})
			if _, _, err := shown(s, "site.example"); err != nil {
				t.Errorf("the old one is not used while Vault is sealed: %v", err)
			}
			v.mu.Lock()
			defer v.mu.Unlock()
			for _, body := range v.bodies {
				if strings.Contains(body, "PRIVATE") {
					t.Error("the key was sent")
				}
			}
			for _, secret := range []string{vaultToken, vaultID} {
				if log.count(secret) > 0 {
					t.Error("a secret is in the log")
				}
			}
		})
	}
}

// What Vault says is checked before it is used.
func TestVaultIsNotBelieved(t *testing.T) {
	for name, c := range map[string]struct {
		set    func(*vault, *certs.Vault, folder)
		change func(v *vault, w http.ResponseWriter, data map[string]any) bool
		says   string
	}{
		"certificate for another key": {change: func(v *vault, _ http.ResponseWriter, data map[string]any) bool {
			cert, _ := v.authority.issue(v.T, "site.example", time.Hour)
			data["certificate"] = string(cert)
			return false
		}, says: "is for another key"},
		"other names": {set: func(v *vault, _ *certs.Vault, _ folder) { v.names = []string{"site.example"} }, says: "not for site-1.example"},
		"no certificate": {change: func(v *vault, _ http.ResponseWriter, data map[string]any) bool {
			delete(data, "certificate")
			return false
		}, says: "something else than certificates"},
		"expired": {set: func(v *vault, _ *certs.Vault, _ folder) { v.shift = -2 * time.Hour }, says: "check the clocks"},
		"too new": {set: func(v *vault, _ *certs.Vault, _ folder) { v.shift = 2 * time.Hour }, says: "check the clocks"},
		"no JSON": {change: func(_ *vault, w http.ResponseWriter, _ map[string]any) bool {
			_, _ = io.WriteString(w, "<html>")
			return true
		}, says: "no JSON"},
		"much": {change: func(_ *vault, w http.ResponseWriter, _ map[string]any) bool {
			_, _ = w.Write(make([]byte, 2<<20))
			return true
		}, says: "more than 1"},
		"sends elsewhere": {change: func(_ *vault, w http.ResponseWriter, _ map[string]any) bool {
			w.Header().Set("Location", "https://localhost:1/")
			w.WriteHeader(307)
			return true
		}, says: "307"},
		"wrong role":      {set: func(_ *vault, c *certs.Vault, _ folder) { c.Role = "other" }, says: "no handler for route"},
		"wrong secret id": {set: func(_ *vault, _ *certs.Vault, f folder) { f.write("secret-id", []byte("guess")) }, says: "invalid role or secret ID"},
		"wrong token": {set: func(_ *vault, c *certs.Vault, f folder) {
			f.write("guess", []byte("guess"))
			c.AppRole, c.TokenFile = nil, "guess"
		}, says: "permission denied"},
		"empty token": {set: func(_ *vault, c *certs.Vault, f folder) { f.write("none", nil); c.AppRole, c.TokenFile = nil, "none" }, says: "is empty"},
		"wrong CA":    {set: func(v *vault, _ *certs.Vault, f folder) { f.write("vault-ca", newAuthority(v.T).text) }, says: "certificate signed by unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, f := newVault(t)
			if c.change != nil {
				v.change = func(w http.ResponseWriter, data map[string]any) bool { return c.change(v, w, data) }
			}
			set := v.served(f)
			if c.set != nil {
				c.set(v, &set, f)
			}
			log := &logged{}
			s := openVault(t, f, set, log)
			until(t, "it is refused", func() bool { _, err := s.State(); return err != nil })
			leaf, err := s.State()
			if leaf != nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, %v", leaf, err)
			}
			if strings.Contains(err.Error(), vaultToken) || strings.Contains(err.Error(), vaultID) {
				t.Errorf("a secret is in %v", err)
			}
		})
	}
}
