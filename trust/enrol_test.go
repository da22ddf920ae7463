package trust_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
	"converge.dev/converge/trust"
	"converge.dev/converge/trust/trustpb"
)

// A node enrols, calls the site, and is known there; what it has is on the disk, for its user only.
func TestEnrol(t *testing.T) {
	b := newBed(t)
	dir := filepath.Join(t.TempDir(), "node")
	token := b.token("gpu-01")
	id, err := b.bootstrap(dir, token)
	if err != nil {
		t.Fatal(err)
	}
	if node, err := who(t, b.address, id.TLS()); err != nil || node != "gpu-01" {
		t.Fatalf("%q, %v", node, err)
	}
	if n := b.stored("gpu-01"); n.Status() != state.NodeEnrolled || !n.Expires.Equal(id.Certificate().NotAfter) {
		t.Errorf("%+v", n)
	}
	if id.Site().ID != siteID || id.Node() != "gpu-01" || id.Document().Version != 1 {
		t.Errorf("%+v, %s", id.Site(), id.Node())
	}
	for _, name := range []string{"identity.pem", "trust.json"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	again, err := trust.OpenIdentity(dir, trust.IdentityOptions{Now: b.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	if node, err := who(t, b.address, again.TLS()); err != nil || node != "gpu-01" {
		t.Fatalf("opened again: %q, %v", node, err)
	}
	// The same again is harmless.
	same, err := b.bootstrap(dir, token)
	if err != nil || !same.Certificate().Equal(id.Certificate()) {
		t.Fatalf("repeated: %v", err)
	}
}

// A node that crashed after its claim, and before it stored anything but its key, gets the same certificate again.
func TestClaimRepeated(t *testing.T) {
	b := newBed(t)
	token, key := b.token("gpu-01"), newKey()
	first, err := b.Claim(t.Context(), b.store, token, request(t, key, ""))
	if err != nil {
		t.Fatal(err)
	}
	second, err := b.Claim(t.Context(), b.store, token, request(t, key, "another-name"))
	if err != nil || !bytes.Equal(first[0], second[0]) || len(second) != 2 || !bytes.Equal(first[1], second[1]) {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "next.key"), trust.MarshalKey(key), 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := b.bootstrap(dir, token)
	if err != nil || !bytes.Equal(id.Certificate().Raw, first[0]) {
		t.Fatal(err)
	}
}

// Whatever a request says, the certificate says what the token's record says.
func TestRequestSaysNothing(t *testing.T) {
	b := newBed(t)
	chain, err := b.Claim(t.Context(), b.store, b.token("gpu-01"), request(t, newKey(), "gpu-02"))
	if err != nil {
		t.Fatal(err)
	}
	c := parse(t, chain)
	if c.Subject.CommonName != "gpu-01" || len(c.URIs) != 1 || c.URIs[0].String() != "spiffe://"+siteID+"/node/gpu-01" || len(c.DNSNames) != 0 ||
		len(c.ExtKeyUsage) != 1 || c.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth || c.IsCA {
		t.Errorf("%+v", c)
	}
	if !c.NotAfter.Equal(start.Add(24 * time.Hour)) {
		t.Error(c.NotAfter)
	}
}

// Claims that are refused, each with its own error, and nothing is issued.
func TestClaimRefused(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	body := func(token string) string { return strings.TrimPrefix(token, "cvt1.") }
	recode := func(token, old, now string) string {
		t.Helper()
		raw, err := base64.RawURLEncoding.DecodeString(body(token))
		if err != nil || !strings.Contains(string(raw), old) {
			t.Fatalf("%v: %q is not in the token", err, old)
		}
		return "cvt1." + base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(raw), old, now, 1)))
	}
	for name, c := range map[string]struct {
		spoil func(b *bed, token string, csr []byte) (string, []byte)
		want  error
	}{
		"no token":          {func(_ *bed, _ string, csr []byte) (string, []byte) { return "", csr }, trust.ErrToken},
		"another format":    {func(_ *bed, k string, csr []byte) (string, []byte) { return "cvt2." + body(k), csr }, trust.ErrToken},
		"cut":               {func(_ *bed, k string, csr []byte) (string, []byte) { return k[:len(k)-9], csr }, trust.ErrToken},
		"too long":          {func(_ *bed, k string, csr []byte) (string, []byte) { return k + strings.Repeat("A", 8192), csr }, trust.ErrToken},
		"with a field more": {func(_ *bed, k string, csr []byte) (string, []byte) { return recode(k, `{`, `{"x":1,`), csr }, trust.ErrToken},
		"for another node": {func(b *bed, k string, csr []byte) (string, []byte) {
			b.token("gpu-02")
			return recode(k, "gpu-01", "gpu-02"), csr
		}, trust.ErrTokenUnknown},
		"for no node":      {func(_ *bed, k string, csr []byte) (string, []byte) { return recode(k, "gpu-01", "gpu-77"), csr }, trust.ErrTokenUnknown},
		"for a path":       {func(_ *bed, k string, csr []byte) (string, []byte) { return recode(k, "gpu-01", "../a"), csr }, trust.ErrToken},
		"valid for longer": {func(_ *bed, k string, csr []byte) (string, []byte) { return recode(k, `"e":1`, `"e":2`), csr }, trust.ErrTokenUnknown},
		"another secret": {func(_ *bed, k string, csr []byte) (string, []byte) {
			return recode(k, `{"s":"`+secretOf(t, k)[:4], `{"s":"AAAA`), csr
		}, trust.ErrTokenUnknown},
		"of another site":     {func(_ *bed, _ string, csr []byte) (string, []byte) { return newBed(t).token("gpu-01"), csr }, trust.ErrTokenUnknown},
		"replaced":            {func(b *bed, k string, csr []byte) (string, []byte) { b.token("gpu-01"); return k, csr }, trust.ErrTokenUnknown},
		"expired":             {func(b *bed, k string, csr []byte) (string, []byte) { b.clock.add(15 * time.Minute); return k, csr }, trust.ErrTokenExpired},
		"no request":          {func(_ *bed, k string, _ []byte) (string, []byte) { return k, nil }, trust.ErrRequest},
		"damaged request":     {func(_ *bed, k string, csr []byte) (string, []byte) { return k, csr[:40] }, trust.ErrRequest},
		"something behind it": {func(_ *bed, k string, csr []byte) (string, []byte) { return k, append(csr, 0) }, trust.ErrRequest},
		"huge request":        {func(_ *bed, k string, _ []byte) (string, []byte) { return k, large(t) }, trust.ErrRequest},
		"bad signature":       {func(_ *bed, k string, csr []byte) (string, []byte) { csr[len(csr)-1] ^= 1; return k, csr }, trust.ErrRequest},
		"RSA":                 {func(_ *bed, k string, _ []byte) (string, []byte) { return k, request(t, rsaKey, "gpu-01") }, trust.ErrRequest},
		"ECDSA":               {func(_ *bed, k string, _ []byte) (string, []byte) { return k, request(t, ecKey, "gpu-01") }, trust.ErrRequest},
		"refused too often": {func(b *bed, k string, csr []byte) (string, []byte) {
			for range trust.MaxTries {
				if _, err := b.Claim(t.Context(), b.store, k, nil); !errors.Is(err, trust.ErrRequest) {
					t.Fatal(err)
				}
			}
			return k, csr
		}, trust.ErrTokenTries},
		"used, and renewed since": {func(b *bed, k string, csr []byte) (string, []byte) {
			chain, err := b.Claim(t.Context(), b.store, k, csr)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Renew(t.Context(), b.store, parse(t, chain), request(t, newKey(), "")); err != nil {
				t.Fatal(err)
			}
			return k, csr
		}, trust.ErrTokenUsed},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			token, csr := c.spoil(b, b.token("gpu-01"), request(t, newKey(), ""))
			before := b.stored("gpu-01").Count
			chain, err := b.Claim(t.Context(), b.store, token, csr)
			if chain != nil || !errors.Is(err, c.want) {
				t.Fatalf("%v", err)
			}
			if b.stored("gpu-01").Count != before {
				t.Error("something was issued")
			}
		})
	}
}

// large returns a request that is valid but for its size.
func large(t *testing.T) []byte {
	t.Helper()
	r := &x509.CertificateRequest{}
	for i := range 2000 {
		r.DNSNames = append(r.DNSNames, fmt.Sprintf("host-%04d.example.org", i))
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, r, newKey())
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func secretOf(t *testing.T, token string) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, "cvt1."))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), `{"s":"`)
	secret, _, _ := strings.Cut(after, `"`)
	return secret
}

// A second key is refused and the node marked, until an operator makes a new token; the first key's certificate stays.
func TestContested(t *testing.T) {
	b := newBed(t)
	token, key := b.token("gpu-01"), newKey()
	first, err := b.Claim(t.Context(), b.store, token, request(t, key, ""))
	if err != nil {
		t.Fatal(err)
	}
	var contested *trust.ContestedError
	for range 2 * trust.MaxTries {
		if _, err := b.Claim(t.Context(), b.store, token, request(t, newKey(), "")); !errors.As(err, &contested) || contested.Node != "gpu-01" {
			t.Fatal(err)
		}
	}
	n := b.stored("gpu-01")
	if n.Status() != state.NodeContested || n.Token.Tries != trust.MaxTries || !bytes.Equal(n.Certificate, first[0]) {
		t.Errorf("%+v", n)
	}
	if again, err := b.Claim(t.Context(), b.store, token, request(t, key, "")); err != nil || !bytes.Equal(again[0], first[0]) {
		t.Errorf("the first key: %v", err)
	}
	if err := b.admission.Check("gpu-01", parse(t, first).SerialNumber); err != nil {
		t.Errorf("the first key's certificate: %v", err)
	}
	b.token("gpu-01")
	if n := b.stored("gpu-01"); n.Status() != state.NodeEnrolled {
		t.Errorf("%+v", n)
	}
}

// Of a thousand claims at once with a thousand keys, one is bound, and all others are refused.
func TestThousandClaims(t *testing.T) {
	b := newBed(t)
	token := b.token("gpu-01")
	requests := make([][]byte, 1000)
	for i := range requests {
		requests[i] = request(t, newKey(), "")
	}
	var mu sync.Mutex
	var bound [][]byte
	refused := 0
	begin := make(chan struct{})
	var all sync.WaitGroup
	for _, csr := range requests {
		all.Go(func() {
			<-begin
			chain, err := b.Claim(context.Background(), b.store, token, csr)
			mu.Lock()
			defer mu.Unlock()
			var contested *trust.ContestedError
			switch {
			case err == nil:
				bound = append(bound, chain[0])
			case errors.As(err, &contested):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	close(begin)
	all.Wait()
	if len(bound) != 1 || refused != 999 {
		t.Fatalf("%d bound, %d refused", len(bound), refused)
	}
	if n := b.stored("gpu-01"); n.Count != n.Token.Count || !bytes.Equal(n.Certificate, bound[0]) || n.Status() != state.NodeContested {
		t.Errorf("%+v", n)
	}
}

// When the reply of the store is lost, the claim still ends with the one certificate that was stored.
func TestClaimUnknownOutcome(t *testing.T) {
	b := newBed(t)
	lost := 0
	b.store = state.New(mem.New(mem.Options{Fault: func(c mem.Call) error {
		if c.Name == "commit" && c.Done {
			if lost++; lost == 2 { // the first made the token
				return fmt.Errorf("the reply is lost: %w", state.ErrUnknown)
			}
		}
		return nil
	}}), "fra1")
	chain, err := b.Claim(t.Context(), b.store, b.token("gpu-01"), request(t, newKey(), ""))
	if err != nil || lost != 2 {
		t.Fatal(lost, err)
	}
	if n := b.stored("gpu-01"); n.Count != n.Token.Count || !bytes.Equal(n.Certificate, chain[0]) {
		t.Errorf("%+v", n)
	}
}

// Only the newest certificate can be renewed, for a new key; a lost reply is had again.
func TestRenew(t *testing.T) {
	b := newBed(t)
	key := newKey()
	chain, err := b.Claim(t.Context(), b.store, b.token("gpu-01"), request(t, key, ""))
	if err != nil {
		t.Fatal(err)
	}
	first := parse(t, chain)
	if _, err := b.Renew(t.Context(), b.store, first, request(t, key, "")); !errors.Is(err, trust.ErrSameKey) {
		t.Errorf("the same key: %v", err)
	}
	next := newKey()
	chain, err = b.Renew(t.Context(), b.store, first, request(t, next, "gpu-02"))
	if err != nil {
		t.Fatal(err)
	}
	second := parse(t, chain)
	if second.SerialNumber.Cmp(first.SerialNumber) <= 0 || second.Subject.CommonName != "gpu-01" {
		t.Errorf("%+v", second)
	}
	if again, err := b.Renew(t.Context(), b.store, first, request(t, next, "")); err != nil || !bytes.Equal(again[0], second.Raw) {
		t.Errorf("the same request again: %v", err)
	}
	if _, err := b.Renew(t.Context(), b.store, first, request(t, newKey(), "")); !errors.Is(err, trust.ErrSuperseded) {
		t.Errorf("an older certificate: %v", err)
	}
	if _, err := b.Renew(t.Context(), b.store, second, request(t, next, "")); !errors.Is(err, trust.ErrSameKey) {
		t.Errorf("the same key: %v", err)
	}
	if _, err := b.Renew(t.Context(), b.store, second, nil); !errors.Is(err, trust.ErrRequest) {
		t.Errorf("no request: %v", err)
	}
	stranger := bedOf(t, siteID, b.clock)
	foreign, err := stranger.Claim(t.Context(), stranger.store, stranger.token("gpu-01"), request(t, newKey(), ""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Renew(t.Context(), b.store, parse(t, foreign), request(t, newKey(), "")); !errors.Is(err, trust.ErrCertificate) {
		t.Errorf("of another authority: %v", err)
	}
	b.clock.set(second.NotAfter.Add(trust.RenewLate))
	var expired *trust.ExpiredError
	if _, err := b.Renew(t.Context(), b.store, second, request(t, newKey(), "")); !errors.As(err, &expired) {
		t.Errorf("too late: %v", err)
	}
	b.clock.add(-time.Second)
	if _, err := b.Renew(t.Context(), b.store, second, request(t, newKey(), "")); err != nil {
		t.Errorf("just in time: %v", err)
	}
}

// A store restored from a backup knows an older certificate than the node has. The node goes on, and no older one does.
func TestRestoredStore(t *testing.T) {
	b := newBed(t)
	chain, err := b.Claim(t.Context(), b.store, b.token("gpu-01"), request(t, newKey(), ""))
	if err != nil {
		t.Fatal(err)
	}
	first, backup := parse(t, chain), b.stored("gpu-01")
	peer := first
	for range 2 {
		if chain, err = b.Renew(t.Context(), b.store, peer, request(t, newKey(), "")); err != nil {
			t.Fatal(err)
		}
		peer = parse(t, chain)
	}
	backup.Revision = b.stored("gpu-01").Revision
	if err := b.store.SetNode(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	if err := b.admission.Check("gpu-01", peer.SerialNumber); err != nil {
		t.Error(err)
	}
	chain, err = b.Renew(t.Context(), b.store, peer, request(t, newKey(), ""))
	if err != nil {
		t.Fatal(err)
	}
	if n := b.stored("gpu-01"); n.Count != n.Token.Count+3 || !bytes.Equal(n.Certificate, chain[0]) {
		t.Errorf("%+v", n)
	}
	for _, old := range []*x509.Certificate{first, peer} {
		if err := b.admission.Check("gpu-01", old.SerialNumber); !errors.Is(err, trust.ErrSuperseded) {
			t.Errorf("an older certificate: %v", err)
		}
	}
}

// The watch learns of a ban, says so, and the check is right with and without it.
func TestAdmission(t *testing.T) {
	b := newBed(t)
	id, other := b.node("gpu-01"), b.node("gpu-02")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	refused := make(chan string)
	go func() {
		ended <- b.admission.Run(ctx, func(node string, why error) {
			var banned *trust.BannedError
			if !errors.As(why, &banned) {
				t.Error(why)
			}
			refused <- node
		})
	}()
	if err := trust.Ban(t.Context(), b.store, "gpu-01", "stolen", "ann@host"); err != nil {
		t.Fatal(err)
	}
	if node := <-refused; node != "gpu-01" {
		t.Error(node)
	}
	var banned *trust.BannedError
	check := func() {
		t.Helper()
		if err := b.admission.Check("gpu-01", id.Certificate().SerialNumber); !errors.As(err, &banned) {
			t.Error(err)
		}
		if err := b.admission.Check("gpu-02", other.Certificate().SerialNumber); err != nil {
			t.Error(err)
		}
		if err := b.admission.Check("gpu-77", other.Certificate().SerialNumber); !errors.Is(err, trust.ErrUnknownNode) {
			t.Error(err)
		}
	}
	check()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	check()
}

// One claim a second and address for tokens that nobody knows; those that are known then wait as well.
func TestRateLimit(t *testing.T) {
	b := newBed(t)
	unknown := newBed(t).token("gpu-01")
	client := trustpb.NewEnrolmentClient(dial(t, b.address, showing(b.clock)))
	claim := func(token string) codes.Code {
		_, err := client.Claim(t.Context(), &trustpb.ClaimRequest{Token: token, Csr: request(t, newKey(), "")})
		return status.Code(err)
	}
	good := b.token("gpu-01")
	for i, c := range []struct {
		token string
		want  codes.Code
		after time.Duration
	}{
		{unknown, codes.Unauthenticated, 0}, {unknown, codes.ResourceExhausted, 0}, {good, codes.ResourceExhausted, 0},
		{unknown, codes.ResourceExhausted, 999 * time.Millisecond}, {unknown, codes.Unauthenticated, time.Millisecond},
		{"nonsense", codes.InvalidArgument, time.Second}, {unknown, codes.ResourceExhausted, 0}, {good, codes.OK, time.Second}, {good, codes.PermissionDenied, 0},
	} {
		b.clock.add(c.after)
		if got := claim(c.token); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
}

// A token is refused before anything is stored when it asks for too much.
func TestCreateTokenRefused(t *testing.T) {
	b := newBed(t)
	for name, c := range map[string]struct {
		node string
		o    trust.TokenOptions
	}{
		"too long":    {"gpu-01", trust.TokenOptions{By: "ann", TTL: 25 * time.Hour}},
		"negative":    {"gpu-01", trust.TokenOptions{By: "ann", TTL: -time.Hour}},
		"by nobody":   {"gpu-01", trust.TokenOptions{}},
		"a bad name":  {"GPU", trust.TokenOptions{By: "ann"}},
		"a path":      {"a/b", trust.TokenOptions{By: "ann"}},
		"no name":     {"", trust.TokenOptions{By: "ann"}},
		"a long name": {strings.Repeat("a", 64), trust.TokenOptions{By: "ann"}},
	} {
		if token, err := b.CreateToken(t.Context(), b.store, c.node, c.o); err == nil || token != "" {
			t.Errorf("%s is accepted", name)
		}
	}
	if nodes, err := trust.Nodes(t.Context(), b.store); err != nil || len(nodes) != 0 {
		t.Errorf("%v, %v", nodes, err)
	}
}

// No secret is in what is stored, logged or reported.
func TestSecretsStaySecret(t *testing.T) {
	b := newBed(t)
	dir := filepath.Join(t.TempDir(), "node")
	token := b.token("gpu-01")
	id, err := b.bootstrap(dir, token)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	note := func(err error) {
		t.Helper()
		if err == nil {
			t.Fatal("want an error")
		}
		texts = append(texts, err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err))
	}
	_, err = b.bootstrap(t.TempDir(), token) // the directory is not private
	note(err)
	_, err = b.bootstrap(filepath.Join(t.TempDir(), "thief"), token)
	note(err)
	b.clock.add(time.Second)
	_, err = b.bootstrap(filepath.Join(t.TempDir(), "cut"), token[:len(token)-4])
	note(err)
	spoilt := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(spoilt, []byte(token+"?"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = trust.ReadToken(spoilt)
	note(err)
	b.clock.add(time.Hour)
	_, err = b.Claim(t.Context(), b.store, token, request(t, newKey(), ""))
	note(err)
	pem := contents(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "identity.pem"), []byte(strings.Replace(pem, "PRIVATE KEY", "PRIVATE  KEY", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = trust.OpenIdentity(dir, trust.IdentityOptions{})
	note(err)
	parsed, err := trust.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	texts = append(texts, b.logged(), parsed.String(), fmt.Sprintf("%v %+v %#v", parsed, parsed, parsed))
	items, err := b.store.List(t.Context(), b.store.Path())
	if err != nil || len(items) == 0 {
		t.Fatal(err)
	}
	for _, it := range items {
		texts = append(texts, string(it.Value))
	}
	if !strings.Contains(b.logged(), "gpu-01") {
		t.Error("nothing was logged")
	}
	raw, err := base64.StdEncoding.DecodeString(secretOf(t, token))
	if err != nil {
		t.Fatal(err)
	}
	seed := id.NodeKey().Seed()
	for _, secret := range []string{token, strings.TrimPrefix(token, "cvt1."), string(raw), hex.EncodeToString(raw), base64.StdEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw), fmt.Sprint(raw),
		string(seed), hex.EncodeToString(seed), base64.StdEncoding.EncodeToString(seed), string(trust.MarshalKey(id.NodeKey()))} {
		for _, text := range texts {
			if strings.Contains(text, secret) {
				t.Errorf("a secret is in %q", text)
			}
		}
	}
}

// What a node refuses of whoever answers at the site's address.
func TestBootstrapRefused(t *testing.T) {
	stranger := func(b *bed, id string) string { return bedOf(t, id, b.clock).address }
	for name, c := range map[string]struct {
		address func(b *bed) string
		want    string
	}{
		"another authority":  {func(b *bed) string { return stranger(b, siteID) }, "none of the authorities that the token names"},
		"another site":       {func(b *bed) string { return stranger(b, otherID) }, "none of the authorities that the token names"},
		"a node as the site": {func(b *bed) string { return b.serve(forged(b, false)) }, "no URI spiffe"},
		"TLS 1.2": {func(b *bed) string {
			c := b.config.Clone()
			c.MinVersion, c.MaxVersion = 0, tls.VersionTLS12
			return b.serve(c)
		}, "version"},
		"another site's name": {func(b *bed) string { return b.serve(forged(b, true)) }, "another site"},
		"the CA itself": {func(b *bed) string {
			ca, key := b.ca()
			return b.serve(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{ca.Raw, ca.Raw}, PrivateKey: key}}})
		}, "no URI"},
		"the bare certificate":   {func(b *bed) string { return b.serve(bare(b)) }, "none of the authorities"},
		"an expired certificate": {func(b *bed) string { return b.serve(&tls.Config{Certificates: []tls.Certificate{expired(b)}}) }, "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.address = c.address(b)
			dir := filepath.Join(t.TempDir(), "node")
			_, err := b.bootstrap(dir, b.token("gpu-01"))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatal(err)
			}
			if _, err := trust.OpenIdentity(dir, trust.IdentityOptions{}); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("something was installed: %v", err)
			}
		})
	}
}

// forged returns a configuration with a certificate that the real CA has issued: to a node, or to the server of another site.
func forged(b *bed, server bool) *tls.Config {
	ca, key := b.ca()
	c := template("gpu-66", big.NewInt(1))
	if server {
		c = serverTemplate(otherID)
	}
	made := issue(b.t, c, ca, key)
	made.Certificate = append(made.Certificate, ca.Raw)
	return &tls.Config{Certificates: []tls.Certificate{made}}
}

// bare returns a configuration that shows the right certificate without its issuer, which is what carries the pin.
func bare(b *bed) *tls.Config {
	cert, err := b.ServerCertificate("localhost")(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: cert.Certificate[:1], PrivateKey: cert.PrivateKey}}}
}

func expired(b *bed) tls.Certificate {
	ca, key := b.ca()
	c := serverTemplate(siteID)
	c.NotAfter = start.Add(-time.Second)
	made := issue(b.t, c, ca, key)
	made.Certificate = append(made.Certificate, ca.Raw)
	return made
}
