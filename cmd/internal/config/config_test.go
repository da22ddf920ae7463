package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/schema/signed"
)

func read(t *testing.T, text string) (*config.File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), config.Name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Read(path)
}

func TestRead(t *testing.T) {
	f, err := read(t, `
site: fra1
etcd:
  endpoints: [https://a:2379, https://b:2379]
  ca: tls/ca.crt
  cert: /etc/c.crt
carbide:
  address: carbide:1079
  tls: {ca: x}
nodes:
  gpu-01: {ovs: "unix:/run/db.sock"}
policy: {max_destroy: 3}
`)
	if err != nil {
		t.Fatal(err)
	}
	if f.Site != "fra1" || len(f.Etcd.Endpoints) != 2 || f.Carbide.Address != "carbide:1079" || f.Nodes["gpu-01"].OVS == "" {
		t.Errorf("%+v", f)
	}
	if f.Policy.MaxDestroy != "3" {
		t.Errorf("the limit is %q", f.Policy.MaxDestroy)
	}
	if f.Etcd.CA != filepath.Join(f.Dir(), "tls/ca.crt") || f.Etcd.Cert != "/etc/c.crt" || f.Etcd.Key != "" {
		t.Errorf("paths begin at the folder of the file: %+v", f.Etcd)
	}
	if _, err := read(t, ""); err != nil {
		t.Errorf("an empty file: %v", err)
	}
}

func TestCertificates(t *testing.T) {
	f, err := read(t, `
https: {acme: {directory: "https://ca.example/dir", hosts: [site.example], http: ":80"}, clients: {ca: clients.crt}}
carbide:
  address: carbide:1079
  enrol: {url: "https://far.example/v1/sitecreds", otp_file: otp, ca: far.crt, store: {kubernetes: {secret: far}}}
  tls: {cert: c, key: k}
`)
	if err != nil {
		t.Fatal(err)
	}
	if f.HTTPS.ACME.Hosts[0] != "site.example" || f.HTTPS.Clients.CA != "clients.crt" || f.Carbide.Enrol.Store.Kubernetes.Secret != "far" {
		t.Errorf("%+v, %+v", f.HTTPS, f.Carbide.Enrol)
	}
	for text, want := range map[string]string{
		"https: {}": "https: want one origin of the certificate, and there are 0",
		"https: {builtin: true, files: {cert: a, key: b}}": "there are 2",
		"https: {file: {cert: a}}":                         "Did you mean files?",
		"carbide: {address: a, enrol: {otp: x}}":           `"carbide.enrol.otp"`,
	} {
		if _, err := read(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestWhatIsNotKnownIsRefused(t *testing.T) {
	for text, want := range map[string][]string{
		"site: a\nstie: b\n":                            {"line 2", `"stie"`, "Did you mean site?"},
		"etcd:\n  endpoint: x\n":                        {"line 2", `"etcd.endpoint"`, "Did you mean endpoints?"},
		"nodes:\n  n1:\n    osv: x\n":                   {"line 3", `"nodes.n1.osv"`, "Did you mean ovs?"},
		"carbide: {tls: {mod: x}, adress: y}\n":         {`"carbide.tls.mod"`, `"carbide.adress"`},
		"a: &x {b: 1}\ncarbide: *x\n":                   {`"a"`, `"carbide.b"`},
		"etcd: [1]\n":                                   {"line 1"},
		"policy: {max_destroy: many}\n":                 {"line 1", "policy.max_destroy", `"many"`},
		"policy: {max_destroy: \"\"}\n":                 {"policy.max_destroy"},
		"policy: {max_destroy: -1}\n":                   {"policy.max_destroy"},
		"site: [\n":                                     {"line"},
		"fake: {world: w.json\n":                        {"line 1", "did not find expected ',' or '}'"},
		"site: a\nsite: b\n":                            {"site"},
		"carbide:\n  address: a\n  parallel: many\n":    {"line 3"},
		"fake: {world: w, wolrd: v}\n":                  {"Did you mean world?"},
		"site: fra1\netcd: {endpoints: {a: b}, x: y}\n": {`"etcd.x"`},
	} {
		_, err := read(t, text)
		if err == nil {
			t.Errorf("%q is accepted", text)
			continue
		}
		for _, w := range append(want, config.Name) {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: no %q in: %v", text, w, err)
			}
		}
	}
}

// A file is found in a folder or the nearest one above it, but not above one that strangers may write to.
func TestUpwards(t *testing.T) {
	root := t.TempDir()
	shared, mine := filepath.Join(root, "shared"), filepath.Join(root, "mine")
	for _, dir := range []string{filepath.Join(shared, "a", "b"), filepath.Join(mine, "a", "b")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{shared, mine} {
		if err := os.WriteFile(filepath.Join(dir, config.Name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(shared, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(mine, "a"))
	for dir, want := range map[string]string{
		filepath.Join(mine, "a", "b"): "../converge.yaml", ".": "../converge.yaml", "b": "../converge.yaml", mine: filepath.Join(mine, config.Name),
		filepath.Join(mine, config.Name): filepath.Join("..", config.Name), // a file is not a folder
		filepath.Join(shared, "a", "b"):  "", shared: filepath.Join(shared, config.Name), filepath.Join(mine, "none"): "../converge.yaml",
	} {
		if path, err := config.Upwards(dir, config.Name); path != want || err != nil {
			t.Errorf("from %s: %q, %v; want %q", dir, path, err, want)
		}
	}
}

// The trusted authors of documents are read with their keys; a mistake there never reduces what is required.
func TestTrust(t *testing.T) {
	const key = "ed25519:iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w="
	f, err := read(t, "trust: {documents: [{name: cloud, key: \""+key+"\"}], require: true}")
	if err != nil {
		t.Fatal(err)
	}
	if signers, err := f.Signers(); err != nil || !f.Trust.Require || len(signers) != 1 || signers[0].Name != "cloud" || signed.Name(signers[0].Key) != key {
		t.Errorf("%+v, %v, %v", f, signers, err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, config.Name)
	for name, text := range map[string]string{config.Name: "trust: {documents: [{name: cloud, file: cloud.pub}]}", "cloud.pub": key} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if f, err = config.Read(path); err != nil {
		t.Fatal(err)
	}
	if signers, err := f.Signers(); err != nil || len(signers) != 1 {
		t.Errorf("a file beside it: %v, %v", signers, err)
	}
	for text, want := range map[string]string{
		"{documents: [{name: a, kee: b}]}":                                                `"trust.documents.0.kee". Did you mean key?`,
		"{documents: [{name: a}]}":                                                        "either key or file",
		"{documents: [{name: a, key: \"" + key + "\", file: x}]}":                         "either key or file",
		"{documents: [{key: \"" + key + "\"}]}":                                           "entry 1 has no name",
		"{documents: [{name: a, key: x}]}":                                                "a: want ed25519:",
		"{documents: [{name: a, file: none.pub}]}":                                        "no such file",
		"{documents: [{name: a, key: \"" + key + "\"}, {name: a, key: \"" + key + "\"}]}": "duplicate name a",
		"{require: true}":                                                                 "no document could ever be accepted",
		"{requires: true}":                                                                "Did you mean require?",
		"{documents: {name: a}}":                                                          "line 1",
		"{documents: [{name: a, key: \"" + key + "\"}], require: maybe}":                  "line 1",
	} {
		f, err := read(t, "trust: "+text)
		if err == nil {
			_, err = f.Signers()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

// Nothing is sent to an etcd on another machine without TLS, unless the file says so.
func TestRefused(t *testing.T) {
	for endpoint, refused := range map[string]bool{
		"https://etcd-0:2379": false, "http://127.0.0.1:2379": false, "http://localhost:2379": false, "http://localhost": false, "http://[::1]:2379": false,
		"http://[::1]": false, "unix:///run/etcd.sock": false, "unixs:///run/etcd.sock": false, "127.0.0.1:2379": false,
		"http://etcd-0:2379": true, "http://10.0.0.1:2379/": true, "http://10.0.0.1": true, "etcd-0:2379": true, "http://localhost.example.com:2379": true, "HTTP://10.0.0.1:2379": true,
	} {
		endpoints := []string{"https://etcd-1:2379", endpoint}
		if got := (config.Etcd{}).Refused(endpoints); (got == endpoint) != refused {
			t.Errorf("%s: %q is refused", endpoint, got)
		}
		if got := (config.Etcd{AllowInsecure: true}).Refused(endpoints); got != "" {
			t.Errorf("%s is refused although it is allowed", endpoint)
		}
	}
}
