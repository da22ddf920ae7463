package command

import (
	"bytes"
	"context"
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
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/internal/loopback"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/site/api"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// The document of a request is written only on top of the revision that it names, and only when the site accepts it. What is refused
// writes nothing, and is not in the inbox either.
func TestPutSent(t *testing.T) {
	signedBy := func(key string, body []byte) []byte {
		k := cloud
		if key == "stranger" {
			k = stranger
		}
		return signed.Envelope(signed.Sign(k, body), body)
	}
	good := inboxDocument("fra1", siteID, 42, allowed)
	next := bytes.Replace(good, []byte(`"serial": 42, `), nil, 1)
	newest := inboxDocument("fra1", siteID, 41, allowed)
	for name, c := range map[string]struct {
		body    []byte
		after   int64
		require bool
		status  int // 0: it is accepted
		says    string
	}{
		"a document":                    {good, 41, false, 0, ""},
		"one without a serial":          {next, 41, false, 0, ""},
		"a signed one":                  {signedBy("cloud", good), 41, true, 0, ""},
		"the newest, signed once more":  {signedBy("cloud", newest), 7, true, 0, ""},
		"on top of an older revision":   {good, 40, false, 412, "at serial 41"},
		"on top of a newer revision":    {next, 42, false, 412, "at serial 41"},
		"as the first one":              {good, 0, false, 412, "at serial 41"},
		"with an older serial":          {inboxDocument("fra1", siteID, 40, allowed), 41, false, 422, "not newer"},
		"an older one on an older":      {inboxDocument("fra1", siteID, 40, allowed), 39, false, 412, "at serial 41"},
		"for another site":              {inboxDocument("ber1", siteID, 42, allowed), 41, false, 422, "for another site"},
		"for another id":                {inboxDocument("fra1", otherID, 42, allowed), 41, false, 422, "another site of the same name"},
		"with a secret of the site's":   {inboxDocument("fra1", siteID, 42, "env:AWS_SECRET_ACCESS_KEY"), 41, false, 422, "AWS_SECRET_ACCESS_KEY"},
		"that is no JSON":               {[]byte("site: {"), 41, false, 422, "not valid"},
		"that is empty":                 {nil, 41, false, 422, "not valid"},
		"with a field nobody knows":     {bytes.Replace(good, []byte("display_name"), []byte("displayname"), 1), 41, false, 422, "not valid"},
		"larger than the inbox":         {append(bytes.Clone(good), bytes.Repeat([]byte(" "), 1<<20)...), 41, false, 422, "not valid"},
		"unsigned where that is wanted": {good, 41, true, 422, "trusted signature"},
		"signed by a stranger":          {signedBy("stranger", good), 41, true, 422, "not in trust.documents"},
		"signed, and then changed":      {bytes.Replace(signedBy("cloud", good), []byte(`"sig":"`), []byte(`"sig":"AAAA`), 1), 41, false, 422, "invalid"},
		"signed without a serial":       {signedBy("cloud", next), 41, false, 422, "has no serial"},
	} {
		s, said := trusting(t, testApp(), c.require)
		s.id = siteID
		before, err := s.store.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		v, err := s.putSent(t.Context(), c.body, "ada@https", c.after)
		after, herr := s.store.Head(t.Context())
		if herr != nil {
			t.Fatal(herr)
		}
		var p *api.Problem
		switch unchanged := strings.HasPrefix(name, "the newest"); {
		case c.status != 0:
			if !errors.As(err, &p) || p.Status != c.status || !strings.Contains(p.Detail+fmt.Sprint(p.Problems), c.says) || strings.Contains(p.Error()+p.Fix+fmt.Sprint(p.Problems), told) {
				t.Errorf("%s: %+v", name, err)
			}
			if c.status == 422 && len(p.Problems) == 0 {
				t.Errorf("%s: there are no problems in %+v", name, p)
			}
			if after.Revision != before.Revision {
				t.Errorf("%s: it was written", name)
			}
		case err != nil || v.Serial != after.Serial || v.Digest != after.Digest || v.Revision != after.Revision || v.Unchanged != unchanged || unchanged != (after.Revision == before.Revision):
			t.Errorf("%s: %+v, %v; %+v", name, v, err, after)
		case !unchanged && (after.By != "ada@https" || after.Serial != 42 || (v.Signer == "cloud") != c.require):
			t.Errorf("%s: %+v, %+v", name, v, after)
		}
		if _, n, err := s.store.Inbox(t.Context()); err != nil || n != 0 {
			t.Errorf("%s: it is in the inbox: %v", name, err)
		}
		if said.Len() > 0 {
			t.Errorf("%s: the site agent prints\n%s", name, said)
		}
	}
}

// Of two who write at once, each on top of what both have seen, one wins, and the other is told.
func TestPutSentAtOnce(t *testing.T) {
	s, _ := trusting(t, testApp(), false)
	document := func(name string) []byte {
		body := bytes.Replace(inboxDocument("fra1", siteID, 42, allowed), []byte(`"serial": 42, `), nil, 1)
		return bytes.Replace(body, []byte(told), []byte(name), 1)
	}
	other, first := &session{app: s.app, conf: s.conf, kv: s.kv, store: s.store, site: s.site}, true
	slow := s.kv.(*mem.KV).Connect(mem.Options{Fault: func(c mem.Call) error {
		if c.Name == "commit" && first { // between the look of the one and its write
			first = false
			if _, err := other.putSent(t.Context(), document("the other"), "grace@https", 41); err != nil {
				t.Error(err)
			}
		}
		return nil
	}})
	s.store = state.New(slow, "fra1")
	_, err := s.putSent(t.Context(), document("the one"), "ada@https", 41)
	var p *api.Problem
	if !errors.As(err, &p) || p.Status != http.StatusPreconditionFailed {
		t.Errorf("%v", err)
	}
	if head, err := s.store.Head(t.Context()); err != nil || head.Serial != 42 || head.By != "grace@https" || first {
		t.Errorf("%+v, %v", head, err)
	}
}

// The first document of a site is written as such, once, and with the id of the site's keys.
func TestPutSentFirst(t *testing.T) {
	s, _ := trusting(t, testApp(), false)
	s.site, s.store, s.id = "ber1", state.New(s.kv, "ber1"), siteID
	first := inboxDocument("ber1", siteID, 0, allowed)
	first = bytes.Replace(first, []byte(`"serial": 0, `), nil, 1)
	for _, c := range []struct {
		body   []byte
		after  int64
		status int
	}{{first, 1, 412}, {bytes.Replace(first, []byte(siteID), []byte(otherID), 1), 0, 422}, {first, 0, 0}, {first, 0, 0}, {first, 7, 0}, {inboxDocument("ber1", siteID, 2, allowed), 0, 412}} {
		_, err := s.putSent(context.Background(), c.body, "ada@https", c.after)
		var p *api.Problem
		if errors.As(err, &p); (c.status == 0) != (err == nil) || p != nil && p.Status != c.status {
			t.Errorf("want %d: %v", c.status, err)
		}
	}
}

// newIssuer returns an authority, and its certificate in PEM.
func newIssuer(t *testing.T) (*issuer, []byte) {
	t.Helper()
	ca := &issuer{T: t}
	var err error
	if ca.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	authority := ca.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, ca.key.Public())
	block, _ := pem.Decode(authority)
	if ca.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		t.Fatal(err)
	}
	return ca, authority
}

// client returns what a client shows.
func (i *issuer) client(template x509.Certificate) tls.Certificate {
	i.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.Fatal(err)
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	block, _ := pem.Decode(i.issue(&template, key.Public()))
	return tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}
}

// A site is run over HTTPS alone: a document is written and comes true, a plan that waits is approved by two people, and a freeze keeps
// the next one from being done.
func TestServeIsWrittenTo(t *testing.T) {
	t.Parallel()
	b := bench{t, t.TempDir()}
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(b.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca, authority := newIssuer(t)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	cert, key := ca.server()
	write("ca.crt", authority)
	write("tls.crt", cert)
	write("tls.key", key)
	document := func(policy, tenants string) string {
		return `{"apiVersion": "converge.dev/v1", "site": {"name": "fra1", "id": "` + siteID + `"}, "policy": {` + policy + `}, "carbide": {"tenant": {` + tenants + `}}}`
	}
	write("site.json", []byte(document("", `"acme": {}`)))
	write("converge.yaml", []byte(`
site: fra1
fake: {world: world.json}
https:
  files: {cert: tls.crt, key: tls.key}
  clients:
    ca: ca.crt
    roles:
      document: ["uri:spiffe://cloud/writer"]
      approve: ["cn:ada", "cn:grace"]
      hold: ["cn:ada"]
`))
	if status, said := b.ended(b.command("trust init", "-dev site.json")); status != exitDone {
		t.Fatalf("exit status %d\n%s", status, said)
	}
	web := loopback.Address(t)
	cmd, said := b.command("serve", "-listen=127.0.0.1:0 -mode=enforce -metrics=none -http="+web)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()

	clients := map[string]*http.Client{}
	for name, certs := range map[string][]tls.Certificate{
		"nobody": nil,
		"ada":    {ca.client(x509.Certificate{Subject: pkix.Name{CommonName: "ada"}})},
		"grace":  {ca.client(x509.Certificate{Subject: pkix.Name{CommonName: "grace"}})},
		"writer": {ca.client(x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "cloud", Path: "/writer"}}})},
	} {
		clients[name] = &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "site.example", Certificates: certs}}}
	}
	send := func(client, method, path, body string, header ...string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "https://"+web+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		res, err := clients[client].Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			return 0, err.Error()
		}
		return res.StatusCode, string(text)
	}
	must := func(status int, client, method, path, body string, header ...string) string {
		t.Helper()
		got, text := send(client, method, path, body, header...)
		if got != status {
			t.Fatalf("%s: %s %s: %d, want %d: %s\n%s", client, method, path, got, status, text, said)
		}
		return text
	}
	await := func(path string, parts ...string) string {
		t.Helper()
		last := ""
		for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			_, last = send("nobody", "GET", path, "")
			lacks := false
			for _, part := range parts {
				lacks = lacks || !strings.Contains(last, part)
			}
			if !lacks {
				return last
			}
			select {
			case err := <-ended:
				t.Fatalf("it has ended: %v\n%s", err, said)
			default:
			}
		}
		t.Fatalf("%s never has %q: %s", path, parts, last)
		return ""
	}

	await("/v1/site", `"phase":"no-document"`)
	first := document("", `"acme": {}`)
	must(403, "nobody", "PUT", "/v1/document", first, "If-None-Match", "*")
	must(403, "ada", "PUT", "/v1/document", first, "If-None-Match", "*")
	must(428, "writer", "PUT", "/v1/document", first)
	text := must(422, "writer", "PUT", "/v1/document", document("", `"acme": {"display": "x"}`), "If-None-Match", "*")
	if !strings.Contains(text, `"path":"carbide.tenant.acme.display"`) || !strings.Contains(text, `"line":1`) {
		t.Errorf("%s", text)
	}
	must(201, "writer", "PUT", "/v1/document", first, "If-None-Match", "*")
	must(200, "writer", "PUT", "/v1/document", first, "If-None-Match", "*")
	must(412, "writer", "PUT", "/v1/document", document("", `"other": {}`), "If-None-Match", "*")
	await("/v1/site", `"phase":"in-sync"`, `"serial":1`, `spiffe://cloud/writer@https`)

	must(201, "writer", "PUT", "/v1/document", document(`"reconcile": [{"mode": "approve"}], "approvals": {"count": 2}`, `"acme": {}, "more": {}`), "If-Match", `"1"`)
	var plans api.PlansView
	if err := json.Unmarshal([]byte(await("/v1/plans", `"needs":2`)), &plans); err != nil || len(plans.Waiting) != 1 {
		t.Fatalf("%v, %+v", err, plans)
	}
	digest := plans.Waiting[0].Approval
	if text := must(200, "nobody", "GET", "/v1/plans/"+digest[:16], ""); !strings.Contains(text, `site/carbide.tenant/more`) {
		t.Errorf("%s", text)
	}
	must(403, "writer", "PUT", "/v1/plans/"+digest+"/approval", "")
	must(200, "ada", "PUT", "/v1/plans/"+digest+"/approval", "")
	must(200, "ada", "PUT", "/v1/plans/"+digest+"/approval", "") // is one person
	must(404, "ada", "PUT", "/v1/holds/gpu-07", `{"reason": "the disk is replaced"}`)
	must(403, "grace", "PUT", "/v1/freeze", `{"reason": "fire drill"}`)
	must(200, "ada", "PUT", "/v1/freeze", `{"reason": "fire drill"}`)
	must(200, "grace", "PUT", "/v1/plans/"+digest+"/approval", "")
	await("/v1/site", `"phase":"held"`, "fire drill")
	if text := must(200, "nobody", "GET", "/v1/resources", ""); strings.Contains(text, "more") {
		t.Errorf("it was done under a freeze: %s", text)
	}
	must(200, "ada", "DELETE", "/v1/freeze", "")
	await("/v1/site", `"phase":"in-sync"`, `"serial":2`)
	await("/v1/resources", "site/carbide.tenant/more")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if log := said.String(); !strings.Contains(log, "a request has written") || !strings.Contains(log, "who=grace") {
		t.Errorf("%s", log)
	}
}
