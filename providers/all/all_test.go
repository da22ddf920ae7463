package all

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.yaml.in/yaml/v3"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

var site = schema.Site{Name: "lab", ID: "6f1c3c5e-4a4e-4f0e-9d53-0f1d3c6f7a10"}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, o Options, needs ...providers.Need) *providers.Set {
	t.Helper()
	o.Site = site
	set, err := New(o).Open(t.Context(), needs...)
	must(t, err)
	t.Cleanup(func() { must(t, set.Close()) })
	return set
}

// A provider has a folder of kinds, a folder of code and a line in a list, or none of them.
func TestListsMatchFolders(t *testing.T) {
	want := slices.AppendSeq(slices.Collect(maps.Keys(sites)), maps.Keys(nodes))
	slices.Sort(want)
	var described []string
	entries, err := fs.ReadDir(schema.Files, ".")
	must(t, err)
	for _, e := range entries {
		if e.Name() != "core" {
			described = append(described, e.Name())
		}
	}
	if !slices.Equal(described, want) {
		t.Errorf("schema has folders for %q, the lists have %q", described, want)
	}

	var written []string
	entries, err = os.ReadDir("..")
	must(t, err)
	for _, e := range entries {
		if e.IsDir() && !slices.Contains([]string{"all", "fake", "remote", "sysfs", "wire"}, e.Name()) {
			written = append(written, e.Name())
		}
	}
	if !slices.Equal(written, want) {
		t.Errorf("providers has folders for %q, the lists have %q", written, want)
	}
}

// simulator serves a simulated site on a socket in dir.
func simulator(t *testing.T, dir string) {
	t.Helper()
	world, err := carbidesim.New(carbidesim.Options{})
	must(t, err)
	server, err := carbidesim.NewServer(world, carbidesim.ServerOptions{})
	must(t, err)
	l, err := net.Listen("unix", filepath.Join(dir, "carbide.sock"))
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		must(t, <-done)
		must(t, world.Close())
	})
}

// What can be opened serves; what cannot is a failure with its reason, and what is not needed is not opened.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	simulator(t, dir)
	set := open(t, Options{
		Dir: dir,
		Config: Config{
			Carbide: &carbide.Config{Address: "unix:carbide.sock", TLS: carbide.TLS{Mode: "off"}, Parallel: 3},
			Nodes: map[string]Node{
				"n1": {OVS: ovs.Config(ovstest.Fake(t).Endpoint)},
				"n2": {OVS: "unix:nobody.sock"},
				"n3": {OVS: "unix:not-needed.sock"},
			},
		},
	}, providers.Need{Scope: "site", Provider: "carbide"}, providers.Need{Scope: "n1", Provider: "ovs"}, providers.Need{Scope: "n2", Provider: "ovs"}, providers.Need{Scope: "n4", Provider: "ovs"}, providers.Need{Scope: "n1", Provider: "carbide"}, providers.Need{Scope: "site", Provider: "ovs"}, providers.Need{Scope: "site", Provider: "magic"})

	vpc, p, ok := set.Find("site", "carbide.vpc")
	if !ok || p.Limit != 3 {
		t.Fatalf("carbide.vpc is served: %t, by %+v; want a limit of 3 calls", ok, p)
	}
	_, err := providers.Collect(vpc.Kind.List(t.Context()))
	must(t, err)
	bridge, _, ok := set.Find("n1", "ovs.bridge")
	if !ok {
		t.Fatal("ovs.bridge is not served on n1")
	}
	_, err = providers.Collect(bridge.Kind.List(t.Context()))
	must(t, err)

	for at, says := range map[providers.Need]string{
		{Scope: "site", Provider: "carbide"}: "",
		{Scope: "n1", Provider: "ovs"}:       "",
		{Scope: "n2", Provider: "ovs"}:       filepath.Join(dir, "nobody.sock"),
		{Scope: "n3", Provider: "ovs"}:       "",
		{Scope: "n4", Provider: "ovs"}:       `set its database socket: nodes: {n4: {ovs: "unix:/run/openvswitch/db.sock"}}`,
		{Scope: "n1", Provider: "carbide"}:   "not node n1",
		{Scope: "site", Provider: "ovs"}:     "ovs serves nodes, not the site",
		{Scope: "site", Provider: "magic"}:   "unknown provider magic",
	} {
		err := set.Failure(at.Scope, at.Provider)
		switch {
		case says == "" && err != nil:
			t.Errorf("%v failed: %v", at, err)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
			t.Errorf("the failure of %v is %v, want it to say %q", at, err, says)
		}
	}
	for _, scope := range []string{"n2", "n3", "n4"} {
		if _, _, ok := set.Find(scope, "ovs.bridge"); ok {
			t.Errorf("ovs.bridge is served on %s", scope)
		}
	}
}

// For a document that needs what the configuration lacks, the error says what to write.
func TestNotConfigured(t *testing.T) {
	set := open(t, Options{}, providers.Need{Scope: "site", Provider: "carbide"})
	if err := set.Failure("site", "carbide"); err == nil || !strings.Contains(err.Error(), `carbide: {address: "HOST:PORT"}`) {
		t.Errorf("the failure is %v, want it to say what to write", err)
	}
}

// That a provider cannot be opened is logged when it begins, and not each time it is tried again.
func TestFailureIsLoggedOnce(t *testing.T) {
	dir, need := t.TempDir(), providers.Need{Scope: "n1", Provider: "pci"}
	var log bytes.Buffer
	opener := New(Options{Dir: dir, Config: Config{Nodes: map[string]Node{"n1": {Sysfs: "sys"}}}, Site: site, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	logged := func(want int, failing bool) {
		t.Helper()
		for range 3 {
			set, err := opener.Open(t.Context(), need)
			must(t, err)
			if err := set.Failure(need.Scope, need.Provider); (err != nil) != failing {
				t.Errorf("the failure is %v", err)
			}
			must(t, set.Close())
		}
		if n := strings.Count(log.String(), "provider could not be opened"); n != want {
			t.Errorf("it is logged %d times, want %d:\n%s", n, want, log.String())
		}
	}
	logged(1, true)
	must(t, os.MkdirAll(filepath.Join(dir, "sys"), 0o700))
	logged(2, true) // for another reason
	must(t, os.MkdirAll(filepath.Join(dir, "sys", "bus", "pci", "devices"), 0o700))
	logged(2, false)
	must(t, os.RemoveAll(filepath.Join(dir, "sys", "bus")))
	logged(3, true)
}

// Providers are opened concurrently: one that does not answer does not delay the next.
func TestOpenInParallel(t *testing.T) {
	dir := t.TempDir()
	var config Config
	var need []providers.Need
	var listeners []net.Listener
	config.Nodes = map[string]Node{}
	for _, node := range []string{"n1", "n2"} {
		l, err := net.Listen("unix", filepath.Join(dir, node))
		must(t, err)
		t.Cleanup(func() { l.Close() })
		listeners = append(listeners, l)
		config.Nodes[node] = Node{OVS: ovs.Config("unix:" + node)}
		need = append(need, providers.Need{Scope: node, Provider: "ovs"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var givenUp atomic.Bool
	go func() { // no answers are sent; once both have called, everything is cancelled
		for i, l := range listeners {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if i == 0 {
				go func() {
					_, _ = io.Copy(io.Discard, c)
					givenUp.Store(ctx.Err() == nil)
					cancel()
				}()
			}
		}
		cancel()
	}()
	if _, err := New(Options{Dir: dir, Config: config, Site: site}).Open(ctx, need...); err == nil {
		t.Error("open succeeded though its context was cancelled")
	}
	<-ctx.Done()
	if givenUp.Load() {
		t.Error("the first node was given up before the second was called")
	}
}

// One world serves every kind in every scope; it is stored beside the configuration.
func TestFake(t *testing.T) {
	dir := t.TempDir()
	o := Options{
		Dir:    dir,
		Config: Config{Fake: &Fake{World: "world.json"}},
		Kinds: schema.Kinds{
			"carbide.tenant": {Name: "carbide.tenant"},
			"ovs.bridge":     {Name: "ovs.bridge", Node: true},
		},
		Site: site,
	}
	opener := New(o)
	set, err := opener.Open(t.Context(), providers.Need{Scope: "site", Provider: "carbide"}, providers.Need{Scope: "n1", Provider: "ovs"})
	must(t, err)
	more, err := opener.Open(t.Context(), providers.Need{Scope: "n2", Provider: "ovs"}) // later, and in the same world
	must(t, err)
	must(t, set.Join(more))
	for _, at := range [][2]string{{"site", "carbide.tenant"}, {"n1", "ovs.bridge"}, {"n2", "ovs.bridge"}} {
		k, _, ok := set.Find(at[0], at[1])
		if !ok {
			t.Fatalf("%s is not served in %s", at[1], at[0])
		}
		ref := schema.Ref{Scope: at[0], Kind: at[1], Name: "x"}
		must(t, k.Kind.Create(t.Context(), providers.Call{Ref: ref, ID: "x"}))
	}
	if needs, err := opener.Offers(); err != nil || len(needs) != 3 { // while the world is open
		t.Errorf("%v, %v", needs, err)
	}
	must(t, set.Close())
	if needs, err := opener.Offers(); err != nil || len(needs) != 3 {
		t.Errorf("%v, %v", needs, err)
	}
	world, err := os.ReadFile(filepath.Join(dir, "world.json"))
	must(t, err)
	if got := strings.Count(string(world), `"x": {`); got != 3 {
		t.Errorf("the world holds %d things, want 3:\n%s", got, world)
	}

	must(t, os.WriteFile(filepath.Join(dir, "world.json"), []byte("{"), 0o600))
	if _, err := opener.Open(t.Context(), providers.Need{Scope: "n1", Provider: "ovs"}); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "world.json")) {
		t.Errorf("a broken world gave %v, want an error with its path", err)
	}
	set, err = opener.Open(t.Context())
	must(t, err)
	must(t, set.Close())
}

// A world that others may change is served while it is open, and where that is impossible it is open all the same.
func TestFakeControl(t *testing.T) {
	for name, c := range map[string]struct {
		control bool
		there   string // what is at the path of the socket
		serves  bool
	}{
		"not asked for": {},
		"asked for":     {control: true, serves: true},
		"impossible":    {control: true, there: "precious"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "world.json")
			if c.there != "" {
				must(t, os.WriteFile(path+".sock", []byte(c.there), 0o600))
			}
			bridges := schema.Kinds{"ovs.bridge": {Name: "ovs.bridge", Node: true}}
			var log strings.Builder
			set, err := New(Options{
				Dir: dir, Config: Config{Fake: &Fake{World: "world.json"}}, Kinds: bridges, Site: site, Control: c.control, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			}).Open(t.Context(), providers.Need{Scope: "n1", Provider: "ovs"})
			must(t, err)
			if logged := log.String() != ""; logged != (c.there != "") {
				t.Errorf("the log is %q", log.String())
			}
			far, err := fake.OpenControl(t.Context(), path, bridges)
			if c.serves != (err == nil) {
				t.Fatalf("a control of the world: %v", err)
			}
			if c.serves {
				must(t, far.Change(t.Context(), "n1", "ovs.bridge", "br0", nil))
				must(t, far.Close())
			}
			bridge, _, _ := set.Find("n1", "ovs.bridge")
			things, err := bridge.Kind.Get(t.Context(), []string{"br0"})
			must(t, err)
			if (len(things) == 1) != c.serves {
				t.Errorf("the world has %+v", things)
			}
			must(t, set.Close())
			if _, err := os.Lstat(path + ".sock"); (err == nil) != (c.there != "") {
				t.Errorf("after the end, the socket: %v", err)
			}
		})
	}
}

// An impossible configuration is refused before anything is opened, with all problems at once and what to do.
func TestImpossible(t *testing.T) {
	for _, c := range []struct {
		yaml string
		says []string
	}{
		{"fake: {}", []string{`fake.world is missing: set it to the world file`}},
		{"{fake: {world: w.json}, nodes: {n1: {ovs: 'unix:/s'}}}", []string{"keep one or the other"}},
		{"carbide: {tls: {mode: off}}", []string{"carbide.address is missing: want HOST:PORT or unix:PATH"}},
		{"carbide: {address: 'a:1'}", []string{"set cert and key"}},
		{"carbide: {address: 'a:1', tls: {cert: c.pem}}", []string{"set both cert and key"}},
		{"carbide: {address: 'a:1', tls: {mode: server, cert: c.pem, key: k.pem}}", []string{"set mode: mutual"}},
		{"carbide: {address: 'a:1', tls: {mode: 'off', ca: ca.pem}}", []string{"remove it, or set another mode"}},
		{"carbide: {address: 'a:1', tls: {mode: both}}", []string{`carbide.tls.mode is "both": want off, server or mutual`}},
		{"carbide: {parallel: -1, tls: {mode: server}}", []string{"carbide.address is missing", "carbide.parallel is -1"}},
		{"nodes: {site: {}, n1: {ovs: 'tcp:h:1'}}", []string{"nodes.site: ", `nodes.n1.ovs is "tcp:h:1": want the database socket`}},
		{"nodes: {n1: {libvirt: 'xen:///system'}}", []string{`nodes.n1.libvirt is "xen:///system": want the URI of libvirt`}},
		{"nodes: {n1: {libvirt_images: images}}", []string{"nodes.n1.libvirt_images has no effect: nodes.n1.libvirt is missing"}},
	} {
		var config Config
		must(t, yaml.Unmarshal([]byte(c.yaml), &config))
		_, err := New(Options{Config: config, Site: site}).Open(t.Context())
		for _, says := range c.says {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: error is %v, want it to say %q", c.yaml, err, says)
			}
		}
	}
}

// Everything in the configuration can be written as YAML and as JSON, under the same names.
func TestConfigNames(t *testing.T) {
	want := Config{
		Carbide: &carbide.Config{
			Address:       "carbide.example:443",
			TLS:           carbide.TLS{Mode: "mutual", CA: "ca.pem", Cert: "c.pem", Key: "k.pem", ServerName: "carbide"},
			AllowInsecure: true, Parallel: 4,
		},
		Nodes: map[string]Node{"gpu-01": {Libvirt: "qemu:///system", Images: "images", OVS: "unix:/run/openvswitch/db.sock"}},
		Fake:  &Fake{World: "world.json"},
	}
	text := `{"carbide": {"address": "carbide.example:443", "tls": {"mode": "mutual", "ca": "ca.pem", "cert": "c.pem", "key": "k.pem",
		"server_name": "carbide"}, "allow_insecure": true, "parallel": 4},
		"nodes": {"gpu-01": {"libvirt": "qemu:///system", "libvirt_images": "images", "ovs": "unix:/run/openvswitch/db.sock"}}, "fake": {"world": "world.json"}}`
	var fromYAML, fromJSON Config
	y := yaml.NewDecoder(strings.NewReader(strings.ReplaceAll(text, "\t", " ")))
	y.KnownFields(true)
	must(t, y.Decode(&fromYAML))
	j := json.NewDecoder(strings.NewReader(text))
	j.DisallowUnknownFields()
	must(t, j.Decode(&fromJSON))
	if !reflect.DeepEqual(fromYAML, want) || !reflect.DeepEqual(fromJSON, want) {
		t.Errorf("YAML gives %+v, JSON gives %+v, want %+v", fromYAML, fromJSON, want)
	}
}

// Traits only name fields that the kind has: a misspelt one would exclude nothing.
func TestTraitsNameFields(t *testing.T) {
	dir := t.TempDir()
	simulator(t, dir)
	described, err := kinds.New()
	must(t, err)
	kinds, named := described.Kinds(), 0
	open(t, Options{
		Dir: dir, Config: Config{Carbide: &carbide.Config{Address: "unix:carbide.sock", TLS: carbide.TLS{Mode: "off"}}},
	}, providers.Need{Scope: "site", Provider: "carbide"}).Each(func(_ string, k providers.Served, _ *providers.Provider) {
		has := func(path string) bool {
			f := &schema.Field{Fields: kinds[k.Name].Fields}
			for word := range strings.SplitSeq(path, ".") {
				if f = f.Field(word); f == nil {
					return false
				}
				if f.Elem != nil {
					f = f.Elem
				}
			}
			return true
		}
		for _, e := range k.Traits.Exclusive {
			if named++; e.Field != "{name}" && !has(e.Field) || e.Within != "" && !has(e.Within) {
				t.Errorf("%s has no field %s within %s, which is said to be exclusive", k.Name, e.Field, e.Within)
			}
		}
		for _, field := range slices.Concat(k.Traits.SelfChanging, k.Traits.Overlap) {
			if named++; !has(field) {
				t.Errorf("%s has no field %s, which its traits name", k.Name, field)
			}
		}
		for _, d := range k.Traits.Detach {
			for _, path := range append([]string{d.Head}, d.Group...) {
				if named++; !has(d.Field) || path != "" && !has(d.Field+"."+path) {
					t.Errorf("%s has no field %s.%s, which is said to be detachable", k.Name, d.Field, path)
				}
			}
		}
	})
	if named == 0 {
		t.Error("no traits name a field")
	}
}
