package certs

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/tells"
)

// Vault is a PKI secrets engine of HashiCorp Vault or OpenBao. It signs requests; the key stays here.
type Vault struct {
	Address   string   `yaml:"address"`    // URL
	Namespace string   `yaml:"namespace"`  // optional
	Mount     string   `yaml:"mount"`      // of the PKI secrets engine; "pki" when empty
	Role      string   `yaml:"role"`       // of that
	CA        string   `yaml:"ca"`         // file of the authorities that may sign Vault's own certificate; empty: the system's
	TTL       string   `yaml:"ttl"`        // optional: the validity that is asked for, such as 72h; the role's when empty
	TokenFile string   `yaml:"token_file"` // file of a token, read each time
	AppRole   *AppRole `yaml:"approle"`    // or a role to log in with, each time
}

// AppRole is how a program logs in to Vault.
type AppRole struct {
	Mount        string `yaml:"mount"` // of the auth method; "approle" when empty
	RoleID       string `yaml:"role_id"`
	SecretIDFile string `yaml:"secret_id_file"`
}

// Limits of what is exchanged with Vault.
const (
	maxAnswer = 1 << 20
	maxToken  = 8 << 10
)

// segments of a path of Vault's API
var segments = regexp.MustCompile(`^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$`)

func (v *Vault) check(wrong func(format string, args ...any)) {
	if err := secure(v.Address); err != nil {
		wrong(".address %v", err)
	}
	paths := map[string]string{"mount": cmp.Or(v.Mount, "pki"), "role": v.Role}
	if a := v.AppRole; a != nil {
		paths["approle.mount"] = cmp.Or(a.Mount, "approle")
		if a.RoleID == "" || a.SecretIDFile == "" {
			wrong(".approle: set both role_id and secret_id_file")
		}
	}
	for name, path := range paths {
		switch {
		case path == "":
			wrong(".%s is missing", name)
		case !segments.MatchString(path) || strings.Contains(path, ".."):
			wrong(".%s is %q: want a path without spaces and without a slash at its ends", name, path)
		}
	}
	if (v.TokenFile == "") == (v.AppRole == nil) {
		wrong(": want either token_file or approle")
	}
	if d, err := time.ParseDuration(v.TTL); v.TTL != "" && (err != nil || d < time.Minute) {
		wrong(".ttl is %q: want a duration of at least 1m, such as 72h, or omit it", v.TTL)
	}
}

// A vaultOrigin has its certificates signed by Vault.
type vaultOrigin struct {
	*Vault
	web    *http.Client
	hosts  []string
	secret string // path of the token or of the secret id
}

func (v *Vault) open(o Options) (*vaultOrigin, error) {
	roots, err := authorities(v.CA, o)
	if err != nil {
		return nil, err
	}
	if len(o.Hosts) == 0 {
		return nil, errors.New("the server has no name to ask a certificate for")
	}
	from := &vaultOrigin{Vault: v, web: web(roots), hosts: o.Hosts, secret: o.Path(v.TokenFile)}
	if v.AppRole != nil {
		from.secret = o.Path(v.AppRole.SecretIDFile)
	}
	return from, nil
}

func (v *vaultOrigin) obtain(ctx context.Context, have *tls.Certificate) (*tls.Certificate, time.Duration, error) {
	now := time.Now()
	if have != nil {
		if left := halfway(have.Leaf, now); left > 0 {
			return nil, left, nil
		}
	}
	cert, err := v.signed(ctx, now)
	if err != nil {
		return nil, 0, fmt.Errorf("vault %s: %w", v.Address, err)
	}
	return cert, halfway(cert.Leaf, now), nil
}

// signed makes a key and has Vault sign a certificate for it.
func (v *vaultOrigin) signed(ctx context.Context, now time.Time) (*tls.Certificate, error) {
	token, err := v.token(ctx)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: v.hosts[0]}}
	var dns, ips []string
	for _, host := range v.hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses, ips = append(template.IPAddresses, ip), append(ips, host)
		} else {
			template.DNSNames, dns = append(template.DNSNames, host), append(dns, host)
		}
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	ask := map[string]any{
		"csr": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})), "common_name": v.hosts[0], "format": "pem",
	}
	if len(dns) > 0 {
		ask["alt_names"] = strings.Join(dns, ",")
	}
	if len(ips) > 0 {
		ask["ip_sans"] = strings.Join(ips, ",")
	}
	if v.TTL != "" {
		ask["ttl"] = v.TTL
	}
	var answer struct {
		Data struct {
			Certificate string   `json:"certificate"`
			IssuingCA   string   `json:"issuing_ca"`
			Chain       []string `json:"ca_chain"`
		} `json:"data"`
	}
	if err := v.ask(ctx, cmp.Or(v.Mount, "pki")+"/sign/"+v.Role, token, ask, &answer); err != nil {
		return nil, err
	}
	chain := answer.Data.Chain
	if len(chain) == 0 && answer.Data.IssuingCA != "" {
		chain = []string{answer.Data.IssuingCA}
	}
	return v.checked(append([]string{answer.Data.Certificate}, chain...), key, now)
}

// checked returns the certificate that Vault has signed, which has to be for our key, for our names and valid now.
func (v *vaultOrigin) checked(chain []string, key crypto.Signer, now time.Time) (*tls.Certificate, error) {
	cert := &tls.Certificate{PrivateKey: key}
	for _, text := range chain {
		block, rest := pem.Decode([]byte(text))
		if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
			return nil, errors.New("its answer has something else than certificates in PEM")
		}
		cert.Certificate = append(cert.Certificate, block.Bytes)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return nil, errors.New("the certificate in its answer is damaged")
	}
	if public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(key.Public()) {
		return nil, errors.New("the certificate in its answer is for another key")
	}
	for _, host := range v.hosts {
		if err := leaf.VerifyHostname(host); err != nil {
			return nil, fmt.Errorf("the certificate in its answer is not for %s: %w", host, err)
		}
	}
	if now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
		return nil, fmt.Errorf("the certificate in its answer is valid from %s to %s, and it is %s here: check the clocks", stamp(leaf.NotBefore), stamp(leaf.NotAfter), stamp(now))
	}
	cert.Leaf = leaf
	return cert, nil
}

// token returns one to ask with.
func (v *vaultOrigin) token(ctx context.Context) (string, error) {
	b, err := files.ReadPrivate(v.secret, maxToken)
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(b))
	if secret == "" {
		return "", fmt.Errorf("%s is empty", v.secret)
	}
	if v.AppRole == nil {
		return secret, nil
	}
	var answer struct {
		Auth struct {
			Token string `json:"client_token"`
		} `json:"auth"`
	}
	path := "auth/" + cmp.Or(v.AppRole.Mount, "approle") + "/login"
	if err := v.ask(ctx, path, "", map[string]any{"role_id": v.AppRole.RoleID, "secret_id": secret}, &answer); err != nil {
		return "", err
	}
	if answer.Auth.Token == "" {
		return "", fmt.Errorf("%s: its answer has no token", path)
	}
	return answer.Auth.Token, nil
}

// ask makes one call of Vault's API. Of an answer that is not what it should be, an error says what Vault says is wrong, which is no secret.
func (v *vaultOrigin) ask(ctx context.Context, path, token string, body map[string]any, into any) error {
	secret, _ := body["secret_id"].(string)
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(v.Address, "/")+"/v1/"+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Vault-Request", "true")
	if token != "" {
		r.Header.Set("X-Vault-Token", token)
	}
	if v.Namespace != "" {
		r.Header.Set("X-Vault-Namespace", v.Namespace)
	}
	res, err := v.web.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: read its answer: %w", path, err)
	case len(text) > maxAnswer:
		return fmt.Errorf("%s: its answer has more than %s", path, files.Size(maxAnswer))
	case res.StatusCode != http.StatusOK:
		var failed struct {
			Errors []string `json:"errors"`
		}
		_ = json.Unmarshal(text, &failed) // without it the status says enough
		said := strings.Join(failed.Errors, "; ")
		if tells.Of(said, token) || tells.Of(said, secret) {
			said = "what it says repeats a secret"
		}
		if len(said) > 512 {
			said = strings.ToValidUTF8(said[:512], "") + "…"
		}
		return fmt.Errorf("%s: %s: %s", path, res.Status, cmp.Or(strings.Join(strings.Fields(said), " "), "it does not say why"))
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: its answer is no JSON of the form that is documented", path)
	}
	return nil
}
