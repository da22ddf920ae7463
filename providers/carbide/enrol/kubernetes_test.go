package enrol_test

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"converge.dev/converge/providers/carbide/enrol"
)

// An apiServer has the secrets of one namespace, and does with them what a Kubernetes API server does: versions, conflicts, merge patches.
type apiServer struct {
	mu       sync.Mutex
	token    string
	version  int
	data     map[string][]byte // nil: there is no secret
	conflict int               // changes by others that come before ours
	noDry    bool              // a webhook that is asked for real only
	readOnly bool              // our account may not patch
	sends    string            // optional: URL to which it sends everybody
	calls    []string
}

type k8sSecret struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Metadata   struct {
		Name            string `json:"name,omitempty"`
		ResourceVersion string `json:"resourceVersion,omitempty"`
	} `json:"metadata"`
	Type string            `json:"type,omitempty"`
	Data map[string][]byte `json:"data"`
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fail := func(code int, message string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "status": "Failure", "message": message, "code": code})
	}
	if r.Header.Get("Authorization") != "Bearer "+a.token {
		fail(http.StatusUnauthorized, "Unauthorized")
		return
	}
	if a.sends != "" {
		http.Redirect(w, r, a.sends, http.StatusFound)
		return
	}
	const at = "/api/v1/namespaces/converge/secrets"
	a.calls = append(a.calls, r.Method)
	var in k8sSecret
	if r.Method != http.MethodGet {
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&in); err != nil {
			fail(http.StatusBadRequest, err.Error())
			return
		}
	}
	dry := r.URL.Query().Get("dryRun") == "All"
	if r.Method != http.MethodGet && !dry && len(in.Data) == 0 {
		fail(http.StatusUnprocessableEntity, "nobody asks for nothing, unless to see what would be said")
		return
	}
	if dry && a.noDry {
		fail(http.StatusBadRequest, "admission webhook does not support dry run")
		return
	}
	switch {
	case r.Method == http.MethodPost && r.URL.Path == at && in.Metadata.Name == "far" && in.Kind == "Secret" && r.Header.Get("Content-Type") == "application/json":
		if a.data != nil {
			fail(http.StatusConflict, `secrets "far" already exists`)
			return
		}
		if dry {
			break
		}
		a.data = in.Data
	case r.URL.Path != at+"/far" || r.Method == http.MethodPost:
		fail(http.StatusForbidden, "secrets is forbidden")
		return
	case a.data == nil:
		fail(http.StatusNotFound, `secrets "far" not found`)
		return
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == "application/merge-patch+json":
		if a.readOnly {
			fail(http.StatusForbidden, "secrets is forbidden: cannot patch")
			return
		}
		if dry {
			break
		}
		if a.conflict > 0 {
			a.conflict--
			a.version++
		}
		if in.Metadata.ResourceVersion != strconv.Itoa(a.version) {
			fail(http.StatusConflict, "the object has been modified")
			return
		}
		maps.Copy(a.data, in.Data)
	case r.Method != http.MethodGet:
		fail(http.StatusUnsupportedMediaType, "the body of the request was in an unknown format")
		return
	}
	if r.Method != http.MethodGet && !dry {
		a.version++
	}
	var out k8sSecret
	out.Metadata.Name, out.Metadata.ResourceVersion, out.Data = "far", strconv.Itoa(a.version), a.data
	_ = json.NewEncoder(w).Encode(out)
}

func (a *apiServer) get(key string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return string(a.data[key])
}

// In a cluster the credentials are in a secret, whose other contents stay, and every replica sees them there.
func TestKubernetesSecret(t *testing.T) {
	for name, data := range map[string]map[string][]byte{"there is none": nil, "there is one": {"note": []byte("of others")}} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			a := &apiServer{token: "canary-token", version: 7, data: data, conflict: 1, noDry: data == nil, readOnly: data != nil}
			srv := httptest.NewUnstartedServer(a)
			srv.Config.ErrorLog = log.New(io.Discard, "", 0)
			srv.StartTLS()
			t.Cleanup(srv.Close)
			pod := t.TempDir()
			for name, text := range map[string]string{
				"token": "canary-token\n", "namespace": "converge", "ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})),
			} {
				b.write(filepath.Join(pod, name), text)
			}
			b.set.Store = enrol.Store{Kubernetes: &enrol.SecretStore{Secret: "far"}}
			at, err := url.Parse(srv.URL)
			if err != nil {
				t.Fatal(err)
			}
			o := b.options()
			o.Pod = pod
			o.Env = func(name string) string {
				return map[string]string{"KUBERNETES_SERVICE_HOST": at.Hostname(), "KUBERNETES_SERVICE_PORT": at.Port()}[name]
			}
			open := func() *enrol.Enroller {
				e, err := enrol.Open(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				return e
			}
			e := open()
			stop := b.run(e)
			if data != nil {
				b.until("it may not", func() bool { _, err := e.State(); return err != nil && strings.Contains(err.Error(), "cannot patch") })
				if n := b.requests(); n != 0 {
					t.Errorf("the password was sent %d times, for nothing", n)
				}
				a.mu.Lock()
				a.readOnly = false
				a.mu.Unlock()
			}
			b.until("the secret has credentials", func() bool { return a.get("tls.key") != "" })
			stop()
			if _, err := tls.X509KeyPair([]byte(a.get("tls.crt")), []byte(a.get("tls.key"))); err != nil || a.get("ca.crt") != b.text {
				t.Errorf("%v: %v", err, a.data)
			}
			if data != nil && a.get("note") != "of others" {
				t.Error("what was in the secret is lost")
			}
			held, err := open().State() // at another replica
			if err != nil || held.Certificate == nil {
				t.Errorf("%v, %v", held, err)
			}
			old := a.get("tls.crt")
			b.roll(second)
			b.write("otp", second)
			b.run(open())
			b.until("the secret has others", func() bool { return a.get("tls.crt") != old })
			if b.requests() != 2 {
				t.Errorf("%d requests were made", b.requests())
			}
			b.silent()
			other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it follows the API server elsewhere") }))
			t.Cleanup(other.Close)
			a.mu.Lock()
			a.sends = other.URL
			a.mu.Unlock()
			if _, err := enrol.Open(t.Context(), o); err != nil || !strings.Contains(b.log.String(), "302 Found") {
				t.Errorf("%v: %s", err, b.log.String())
			}
			b.write(filepath.Join(pod, "token"), "of nobody")
			if _, err := enrol.Open(t.Context(), o); err != nil || !strings.Contains(b.log.String(), "Unauthorized") {
				t.Errorf("without rights: %v", err)
			}
		})
	}
}
