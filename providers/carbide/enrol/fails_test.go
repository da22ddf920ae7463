package enrol_test

import (
	"bufio"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"converge.dev/converge/providers/carbide/enrol"
)

// A reply that is lost uses the password up. Whoever reads why it ended learns that.
func TestLostReply(t *testing.T) {
	b := newBed(t)
	b.drop = 1
	e := b.open()
	b.run(e)
	b.until("it ends", func() bool { _, err := e.State(); return err != nil && strings.Contains(err.Error(), "ended after 2") })
	_, err := e.State()
	if !strings.Contains(err.Error(), "OTP already used") || !strings.Contains(err.Error(), "was lost") {
		t.Errorf("%v", err)
	}
	b.roll(second)
	b.write("otp", second)
	b.has(nil)
	b.silent(err)
}

// Failures that may pass are tried again, as often as configured, and then no more until the password is another one.
func TestAttemptsAreBounded(t *testing.T) {
	b := newBed(t)
	failures := 2
	b.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		if failures--; failures < 0 {
			return false
		}
		http.Error(w, "Error getting creds, check logs", http.StatusInternalServerError)
		return true
	}
	e := b.open()
	stop := b.run(e)
	leaf := b.has(nil)
	stop()
	if tried, got := e.Counts(); tried != 3 || got != 1 {
		t.Errorf("counted are %d attempts and %d successes", tried, got)
	}
	b.mu.Lock()
	failures = 1 << 20
	b.mu.Unlock()
	b.roll(second)
	b.write("otp", second)
	b.run(e)
	b.until("it ends", func() bool { _, err := e.State(); return err != nil && strings.Contains(err.Error(), "ended after 3") })
	if held, _ := e.State(); !held.Certificate.Equal(leaf) || b.requests() != 6 {
		t.Errorf("after %d requests there is %v", b.requests(), held)
	}
	_, err := e.State()
	b.silent(err)
}

// Credentials that cannot be stored are not asked for again: they are stored when that is possible.
func TestStoreThatFails(t *testing.T) {
	b := newBed(t)
	b.write("far", "a file is in the way")
	if b.open(); !strings.Contains(b.log.String(), "not a directory") { // which does not keep the site from starting
		t.Errorf("it is not said:\n%s", b.log.String())
	}
	if err := os.Remove(b.path("far")); err != nil {
		t.Fatal(err)
	}
	chmod := func(mode os.FileMode) {
		if err := os.Chmod(b.path("far/carbide"), mode); err != nil {
			t.Error(err)
		}
	}
	if err := os.MkdirAll(b.path("far/carbide"), 0o700); err != nil {
		t.Fatal(err)
	}
	chmod(0o755)
	e := b.open()
	b.run(e)
	said := func(text string) func() bool {
		return func() bool { _, err := e.State(); return err != nil && strings.Contains(err.Error(), text) }
	}
	b.until("it cannot be stored", said("does not use its one-time password yet"))
	if n := b.requests(); n != 0 {
		t.Errorf("the password was sent %d times, for nothing", n)
	}
	b.mu.Lock()
	b.intercept = func(http.ResponseWriter, *http.Request) bool { chmod(0o755); return false } // just then
	b.mu.Unlock()
	chmod(0o700)
	b.until("it cannot be stored after all", said("the new credentials cannot be stored"))
	chmod(0o700)
	b.has(nil)
	if n := b.requests(); n != 1 {
		t.Errorf("%d requests were made", n)
	}
	if list, err := os.ReadDir(b.path("far/carbide")); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	b.silent()
}

// Credentials that are damaged keep nobody from getting others, and nobody tries the password of before a second time for nothing.
func TestDamagedStore(t *testing.T) {
	b := newBed(t)
	e := b.open()
	b.run(e)
	leaf := b.has(nil)
	for i, damage := range []func(){
		func() { b.write("far/carbide/identity.pem", "-----BEGIN CERTIFICATE-----\nhalf") },
		func() { _ = os.Remove(b.path("far/carbide/ca.pem")) },
	} {
		damage()
		b.until("it is said", func() bool {
			_, err := e.State()
			return err != nil && strings.Contains(err.Error(), "far/carbide") && strings.Contains(err.Error(), "already used")
		})
		otp := fmt.Sprint("canary-otp-", i+3)
		b.roll(otp)
		b.write("otp", otp)
		leaf = b.has(leaf)
		b.until("all is well", func() bool { held, err := e.State(); return err == nil && leaf.Equal(held.Certificate) })
	}
	if n := b.requests(); n != 5 {
		t.Errorf("%d requests were made", n)
	}
	b.silent()
}

// Two processes that both take the site for theirs for a moment get its credentials once, and both have them.
func TestTwoAtOnce(t *testing.T) {
	b := newBed(t)
	both := []*enrol.Enroller{b.open(), b.open()}
	for _, e := range both {
		b.run(e)
	}
	leaf := b.has(nil)
	for _, e := range both {
		b.until("each has them", func() bool { held, err := e.State(); return err == nil && leaf.Equal(held.Certificate) })
	}
	if n := b.requests(); n > 2 {
		t.Errorf("%d requests were made", n)
	}
}

// The authorities may be replaced along with the password, without a restart.
func TestAuthoritiesAreReplaced(t *testing.T) {
	b := newBed(t)
	right := b.text
	b.write("ca.crt", newAuthority(t).text)
	e := b.open()
	b.run(e)
	said := func(text string) func() bool {
		return func() bool { _, err := e.State(); return err != nil && strings.Contains(err.Error(), text) }
	}
	b.until("it ends", said("ended after 3"))
	if err := os.Remove(b.path("ca.crt")); err != nil {
		t.Fatal(err)
	}
	b.roll(second)
	b.write("otp", second)
	b.until("the file is missed", said("no such file"))
	b.write("ca.crt", right)
	b.has(nil)
	if n := b.requests(); n != 1 {
		t.Errorf("%d requests were made", n)
	}
}

// A clock that is a little slow does not cost the password.
func TestSlowClock(t *testing.T) {
	b := newBed(t)
	b.ago = -5 * time.Minute
	b.run(b.open())
	b.has(nil)
}

// alone reports whether a test is in a process of its own, and runs it in one when it is not: of some variables of the environment a
// process learns once.
func alone(t *testing.T) bool {
	const name = "ENROL_TEST_ALONE"
	if os.Getenv(name) != "" {
		return true
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), name+"=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// Authorities that this machine believes otherwise do not count.
func TestSystemAuthorities(t *testing.T) {
	if !alone(t) {
		return
	}
	b := newBed(t)
	b.write("system.crt", b.text)
	_ = os.Setenv("SSL_CERT_FILE", b.path("system.crt"))
	b.write("ca.crt", newAuthority(t).text)
	e := b.open()
	b.run(e)
	if err := b.refused(e); !strings.Contains(err.Error(), "unknown authority") || b.requests() != 0 {
		t.Errorf("after %d requests: %v", b.requests(), err)
	}
}

// A proxy of the environment carries the request, and learns nothing but whom it is for.
func TestProxy(t *testing.T) {
	if !alone(t) {
		return
	}
	b := newBed(t)
	far, err := url.Parse(b.serve(b.server("sitemgr.example", time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		_ = os.Setenv(name, "http://"+proxy.Addr().String())
	}
	_ = os.Unsetenv("NO_PROXY")
	_ = os.Unsetenv("no_proxy")
	seen := make(chan string, 1)
	go func() {
		client, err := proxy.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		var all bytes.Buffer
		defer func() { seen <- all.String() }()
		reader := bufio.NewReader(io.TeeReader(client, &all))
		if r, err := http.ReadRequest(reader); err != nil || r.Method != http.MethodConnect {
			return
		}
		server, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", far.Port()))
		if err != nil {
			return
		}
		_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
		_, _ = io.Copy(server, reader)
		_ = server.Close()
	}()
	b.set.URL = "https://sitemgr.example/v1/sitecreds"
	b.run(b.open())
	b.has(nil)
	if text := <-seen; !strings.HasPrefix(text, "CONNECT sitemgr.example:443 ") || strings.Contains(text, "canary") {
		t.Errorf("the proxy saw %q", text)
	}
}

// refused waits until the attempts are over, and returns why they failed.
func (b *bed) refused(e *enrol.Enroller) (err error) {
	b.T.Helper()
	b.until("it ends", func() bool {
		var held enrol.Held
		if held, err = e.State(); held.Certificate != nil {
			b.T.Fatal("it has credentials")
		}
		return err != nil && strings.Contains(err.Error(), "ended after")
	})
	return err
}

// raw answers with a text, whatever it is, and hangs up.
func raw(text string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
		return true
	}
}

// What is wrong with the far side, or with what it sends, is said, nothing is stored, and the password goes to nobody who is not known.
func TestRefusals(t *testing.T) {
	elsewhere := http.NewServeMux()
	var leaked atomic.Int64
	elsewhere.HandleFunc("/", func(http.ResponseWriter, *http.Request) { leaked.Add(1) })
	other := httptest.NewServer(elsewhere)
	t.Cleanup(other.Close)
	for name, c := range map[string]struct {
		prepare func(b *bed)
		says    string
		tries   int64 // 3: it may pass
		unsent  bool  // the password has not left the machine
	}{
		"wrong CA":     {func(b *bed) { b.write("ca.crt", newAuthority(b.T).text) }, "unknown authority", 3, true},
		"expired":      {func(b *bed) { b.set.URL = b.serve(b.server("localhost", -time.Hour)) + "/v1/sitecreds" }, "expired", 3, true},
		"wrong name":   {func(b *bed) { b.set.URL = b.serve(b.server("other.example", time.Hour)) + "/v1/sitecreds" }, "not localhost", 3, true},
		"nobody there": {func(b *bed) { b.set.URL = "https://localhost:1/v1/sitecreds" }, "refused", 3, true},
		"no TLS":       {func(b *bed) { b.set.URL = strings.Replace(other.URL, "http:", "https:", 1) }, "server gave HTTP response", 3, true},
		"redirect": {func(b *bed) {
			b.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
				return true
			}
		}, "sends to another address", 1, false},
		"endless": {func(b *bed) {
			b.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
				for range 64 {
					if _, err := w.Write(make([]byte, 1<<20)); err != nil {
						return true // who has read enough hangs up
					}
				}
				b.T.Error("it reads everything")
				return true
			}
		}, "more than 256 KiB", 1, false},
		"no JSON": {func(b *bed) {
			b.intercept = func(w http.ResponseWriter, _ *http.Request) bool { _, _ = io.WriteString(w, "<html>"); return true }
		}, "not the JSON", 1, false},
		"truncated, but whole": {func(b *bed) {
			b.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
				_, _ = io.WriteString(w, `{"certificate":"-----BEGIN`)
				return true
			}
		}, "ends in the middle", 3, false},
		"another's key": {func(b *bed) {
			b.change = func(r map[string]string) { r["certificate"] = b.client(newKey(b.T).Public(), 0, time.Hour) }
		}, "does not match", 1, false},
		"expired certificate": {func(b *bed) { b.ago, b.life = time.Hour, -time.Minute }, "check the clocks", 1, false},
		"for servers": {func(b *bed) {
			b.change = func(r map[string]string) {
				key := newKey(b.T)
				r["key"] = keyText(b.T, key)
				r["certificate"] = b.sign(&x509.Certificate{NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, key.Public())
			}
		}, "not one for a client", 1, false},
		"no CA":             {func(b *bed) { b.change = func(r map[string]string) { delete(r, "cacertificate") } }, "lacks", 1, false},
		"half a CA":         {func(b *bed) { b.change = func(r map[string]string) { r["cacertificate"] = r["cacertificate"][:200] } }, "not complete", 1, false},
		"a CA that is none": {func(b *bed) { b.change = func(r map[string]string) { r["cacertificate"] = r["certificate"] } }, "not that of an authority", 1, false},
		"unknown site":      {func(b *bed) { b.set.SiteUUID = "00000000-0000-4000-8000-000000000000" }, "not found", 1, false},
		"used password":     {func(b *bed) { b.otp = "" }, "already used", 1, false},
		"old password": {func(b *bed) {
			b.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
				http.Error(w, "OTP expired", http.StatusInternalServerError)
				return true
			}
		}, "OTP expired", 1, false},
		"wrong password": {func(b *bed) { b.otp = second }, "Bad OTP", 1, false},
		"no requests":    {func(b *bed) { b.signs = false }, "key: download", 1, false},
		"starts later":   {func(b *bed) { b.ago, b.life = -time.Hour, 2*time.Hour }, "check the clocks", 1, false},
		"echo": {func(b *bed) {
			b.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
				http.Error(w, "no "+first, http.StatusForbidden)
				return true
			}
		}, "(the password)", 1, false},
		"echo in JSON": {func(b *bed) {
			b.otp = "can\"ary  <otp>"
			b.write("otp", b.otp)
			b.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusForbidden)
				_ = json.NewEncoder(w).Encode([]string{b.otp, "ok"})
				_, _ = io.WriteString(w, url.QueryEscape(b.otp)+" "+b.otp)
				return true
			}
		}, `["(the password)","ok"] (the password) (the password)`, 1, false},
		"echo in the status": {func(b *bed) { b.intercept = raw("HTTP/1.1 403 no " + first + "\r\nContent-Length: 0\r\n\r\n") }, "(the password)", 1, false},
		"echo, no HTTP":      {func(b *bed) { b.intercept = raw("HTTP/1.1 " + first + " what\r\n\r\n") }, "(the password)", 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			c.prepare(b)
			e := b.open()
			b.run(e)
			err := b.refused(e)
			if tried, got := e.Counts(); !strings.Contains(err.Error(), c.says) || tried != c.tries || got != 0 {
				t.Errorf("after %d attempts: %v", tried, err)
			}
			if c.unsent && b.requests() > 0 {
				t.Error("the password was sent")
			}
			if list, err := os.ReadDir(b.path("far/carbide")); err != nil || len(list) > 0 {
				t.Errorf("something was stored: %v, %v", list, err)
			}
			b.silent(err)
		})
	}
	t.Cleanup(func() {
		if leaked.Load() > 0 {
			t.Error("a request followed a redirect, or went out without TLS")
		}
	})
}

// What is missing is said at the start.
func TestWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(b *bed)
		says    string
	}{
		"password":         {func(b *bed) { _ = os.Remove(b.path("otp")) }, "needs a one-time password"},
		"empty password":   {func(b *bed) { b.write("otp", " \n") }, "is empty"},
		"open password":    {func(b *bed) { _ = os.Chmod(b.path("otp"), 0o644) }, "chmod"},
		"CA file":          {func(b *bed) { _ = os.Remove(b.path("ca.crt")) }, "enrol.ca: "},
		"empty CA":         {func(b *bed) { b.write("ca.crt", "") }, "contains no certificate"},
		"URL":              {func(b *bed) { b.set.URL = "" }, "url is missing"},
		"OTP file":         {func(b *bed) { b.set.OTPFile = "" }, "otp_file is missing"},
		"CA":               {func(b *bed) { b.set.CA = "" }, "ca is missing"},
		"http":             {func(b *bed) { b.set.URL = "http://localhost/x" }, "is not https"},
		"password in URL":  {func(b *bed) { b.set.URL = "https://u:canary@h/x" }, "user or a password"},
		"skip elsewhere":   {func(b *bed) { b.set.URL, b.set.SkipVerify = "https://far.example/x", true }, "this machine only"},
		"no UUID":          {func(b *bed) { b.set.SiteUUID = "fra1" }, "want a UUID"},
		"key of whom":      {func(b *bed) { b.set.Key = "remote" }, "want local or download"},
		"attempts":         {func(b *bed) { b.set.Attempts = -1 }, "attempts is -1"},
		"within":           {func(b *bed) { b.set.Within = "soon" }, "want a duration"},
		"two stores":       {func(b *bed) { b.set.Store.Kubernetes = &enrol.SecretStore{Secret: "x"} }, "either files or kubernetes"},
		"no store":         {func(b *bed) { b.set.Store = enrol.Store{} }, "either files or kubernetes"},
		"no directory":     {func(b *bed) { b.set.Store.Files = &enrol.FileStore{} }, "dir is missing"},
		"no secret's name": {func(b *bed) { b.set.Store = enrol.Store{Kubernetes: &enrol.SecretStore{Secret: "../x"}} }, "name of a secret"},
		"no cluster":       {func(b *bed) { b.set.Store = enrol.Store{Kubernetes: &enrol.SecretStore{Secret: "x"}} }, "no pod"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			c.prepare(b)
			o := b.options()
			o.Env = func(string) string { return "" }
			_, err := enrol.Open(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			b.silent(err)
		})
	}
}

// On this machine, and there alone, a test may leave the server's certificate unchecked.
func TestSkipVerify(t *testing.T) {
	b := newBed(t)
	b.set.CA, b.set.SkipVerify = "", true
	b.run(b.open())
	b.has(nil)
}
