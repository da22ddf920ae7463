package secrets

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"converge.dev/converge/internal/loopback"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/site/api"
)

// credentials are the kinds of canaries that a site of many machines has, beside the secrets of its document.
var credentials = []string{
	"enrolment token", "key of a node", "renewed key of a node", "task key", "key of the node CA", "root key", "token of the webhook",
	"one-time password of Carbide", "token of Vault", "key for Carbide",
}

// moments are what must have happened for the test to prove anything.
var moments = []string{
	"token damaged", "token cut off", "token readable by all", "token used twice", "token for another node", "site not there", "token file is a directory",
	"enrolled", "guarded change", "renewed", "webhook refuses", "webhook redirects", "event told", "Vault refuses", "Vault signs", "password refused", "Carbide enrols",
	"replica takes over", "webhook's token readable by all", "Vault's token readable by all", "password readable by all", "site's key damaged", "site's key readable by all",
	"node's key damaged", "node's key readable by all",
}

const keysDocument = `{"apiVersion": "converge.dev/v1", "site": {"name": "q", "id": "5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10", "serial": %d},
"carbide": {"tenant": {"acme": {}}},
"nodes": {"gpu-01": {"ovs": {"bridge": {"br-slice": {"fail_mode": "secure"}}}, "host": {"link": {"uplink": {"type": "physical", "state": "up", "mtu": %d, "lifecycle": {"adopt": "match"}}}}}}}`

// TestTortureKeys proves W6 for what a site of many machines is trusted by: the tokens and keys of its nodes, its own keys, and what it
// shows to Carbide, to Vault and to the webhook. The canaries are those that the program makes itself, or gets, in processes of its own with
// all logs, while those who were sent one repeat it, and files of it are damaged. None may be in anything but the file that it belongs in.
func TestTortureKeys(t *testing.T) {
	s := newSite(t)
	entered, happened := torture.Cover(t, "canary", credentials), torture.Cover(t, "moment", moments)
	var mu sync.Mutex
	var secret []guarded
	// holds adds a canary, which may be in the files whose names begin with homes.
	holds := func(name, value string, homes ...string) string {
		mu.Lock()
		secret = append(secret, guarded{canary{name, value}, homes})
		mu.Unlock()
		entered.Reach(name)
		return value
	}
	// key adds the key in a file, as bytes and as in the text of the file.
	key := func(name, path string, homes ...string) {
		t.Helper()
		block, _ := pem.Decode([]byte(s.read(path)))
		if block == nil {
			t.Fatalf("%s has no key", path)
		}
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		s.must(err)
		private, ok := parsed.(ed25519.PrivateKey)
		if !ok {
			t.Fatalf("%s has a key of another type", path)
		}
		seed := private.Seed()
		before := bytes.Index(block.Bytes, seed)
		text := base64.StdEncoding.EncodeToString(block.Bytes)[(before*8+5)/6 : (before+len(seed))*8/6]
		holds(name, string(seed), append(homes, path)...)
		holds(name, text, append(homes, path)...)
	}
	far := newFarSide(t, s, happened, holds)

	s.write("site.json", fmt.Sprintf(keysDocument, 1, 1500))
	s.run(done, "trust", "init", "-dev", "site.json")
	for name, pattern := range map[string]string{"root key": "root-*.key", "task key": "task-*.key", "key of the node CA": "ca-*.key"} {
		paths, err := filepath.Glob(filepath.Join(s.dir, ".converge", "trust", pattern))
		s.must(err)
		for _, path := range paths {
			path, err = filepath.Rel(s.dir, path)
			s.must(err)
			key(name, path, "damaged/"+filepath.Base(path))
		}
	}
	s.run(done, "put", "site.json")

	// What the site has, damaged or readable by all, is refused.
	wrong := func(what string, args ...string) {
		t.Helper()
		s.run(failed, args...)
		happened.Reach(what)
	}
	none := []string{"-http=none", "-metrics=none", "-listen=127.0.0.1:0", "-socket=other.sock"}
	for _, w := range []struct{ what, file string }{
		{"webhook's token readable by all", "webhook.token"}, {"Vault's token readable by all", "vault.token"}, {"password readable by all", "otp"},
	} {
		s.must(os.Chmod(filepath.Join(s.dir, w.file), 0o644))
		if w.file != "vault.token" { // which is read when Vault is asked
			wrong(w.what, append([]string{"serve"}, none...)...)
			s.must(os.Chmod(filepath.Join(s.dir, w.file), 0o600))
		}
	}
	for _, file := range []string{"task", "ca"} {
		s.must(os.CopyFS(filepath.Join(s.dir, "damaged"), os.DirFS(filepath.Join(s.dir, ".converge", "trust"))))
		s.must(os.Chmod(filepath.Join(s.dir, "damaged"), 0o700))
		all, err := filepath.Glob(filepath.Join(s.dir, "damaged", "*"))
		s.must(err)
		for _, path := range all {
			s.must(os.Chmod(path, 0o600))
		}
		paths, err := filepath.Glob(filepath.Join(s.dir, "damaged", file+"-*.key"))
		s.must(err)
		b, err := os.ReadFile(paths[0])
		s.must(err)
		s.must(os.Chmod(paths[0], 0o644))
		wrong("site's key readable by all", append([]string{"serve", "-trust-dir=damaged"}, none...)...)
		s.must(os.Chmod(paths[0], 0o600))
		s.must(os.WriteFile(paths[0], bytes.Replace(b, []byte("-----END"), []byte("=!-----END"), 1), 0o600))
		wrong("site's key damaged", append([]string{"serve", "-trust-dir=damaged"}, none...)...)
		s.must(os.RemoveAll(filepath.Join(s.dir, "damaged")))
	}

	address, web, metrics := loopback.Address(t), loopback.Address(t), loopback.Address(t)
	first := s.service("serve", "-log-format=json", "-mode=enforce", "-sweep=1s", "-host=127.0.0.1", "-listen="+address, "-http="+web, "-metrics="+metrics)
	first.await("site agent started")
	first.await("no new certificate of the HTTP server can be had") // its token is readable by all
	happened.Reach("Vault's token readable by all")
	s.must(os.Chmod(filepath.Join(s.dir, "vault.token"), 0o600))

	// Enrolment, and everything that is no enrolment.
	token := func(node string) string {
		t.Helper()
		file := node + ".token"
		s.run(done, "agent", "token", "create", "-out="+file, node)
		text := strings.TrimSpace(s.read(file))
		body := strings.TrimPrefix(text, "cvt1.")
		b, err := base64.RawURLEncoding.DecodeString(body)
		s.must(err)
		var inside struct {
			S []byte `json:"s"`
		}
		s.must(json.Unmarshal(b, &inside))
		at := bytes.Index(b, []byte(base64.StdEncoding.EncodeToString(inside.S))) * 8 / 6
		if len(inside.S) != 32 || at < 0 {
			t.Fatalf("the token of %s has no secret", node)
		}
		holds("enrolment token", string(inside.S), file, "broken.token")
		holds("enrolment token", body[at:at+56], file, "broken.token")
		return text
	}
	enrol := func(want []int, file, dir string, more ...string) result {
		t.Helper()
		return s.run(want, append([]string{"agent", "bootstrap", "-server=" + address, "-token-file=" + file, "-dir=" + dir}, more...)...)
	}
	text := token("gpu-02")
	broken := func(what, text string, mode os.FileMode, more ...string) {
		t.Helper()
		s.write("broken.token", text)
		s.must(os.Chmod(filepath.Join(s.dir, "broken.token"), mode))
		enrol(failed, "broken.token", "broken", more...)
		happened.Reach(what)
	}
	other := strings.Replace(text, text[20:22], map[bool]string{true: "YX", false: "WF"}[text[20:22] != "YX"], 1)
	broken("token damaged", other, 0o600)
	broken("token cut off", text[:len(text)-7], 0o600)
	broken("token readable by all", text, 0o644)
	broken("token for another node", text, 0o600, "-node=gpu-03")
	wrong("token file is a directory", "agent", "bootstrap", "-server="+address, "-token-file=.", "-dir=broken")
	wrong("site not there", "agent", "bootstrap", "-server="+loopback.Address(t), "-token-file=gpu-02.token", "-dir=nowhere")
	enrol(done, "gpu-02.token", "gpu-02")
	key("key of a node", "gpu-02/identity.pem")
	enrol(failed, "gpu-02.token", "copy")
	key("key of a node", "copy/next.key")
	happened.Reach("token used twice")
	s.run(done, "agent", "list")
	s.run(done, "agent", "list", "-json")

	token("gpu-01")
	s.machine("gpu-01")
	enrol(done, "gpu-01.token", "gpu-01/identity", "-json")
	key("key of a node", "gpu-01/identity/identity.pem")
	enrol(done, "gpu-01.token", "gpu-01/identity") // again
	happened.Reach("enrolled")
	second := loopback.Address(t)
	s.write("gpu-01/agent.yaml", fmt.Sprintf("servers: [%q, %q]\nguard: guard\nfake: {server: \"unix:node.sock\"}\n", address, second))
	guard := s.service("agent", "guard", "-config=gpu-01/agent.yaml", "-log-format=json")
	guard.await("guard started")
	agent := s.service("agent", "run", "-config=gpu-01/agent.yaml")
	first.await(`"phase":"in-sync"`)
	first.await("the site has new credentials for Carbide")
	happened.Reach("Carbide enrols")
	first.await("the HTTP server has a new certificate")
	happened.Reach("Vault signs")

	// Looking at it, in every way.
	look := func(web, metrics string) {
		t.Helper()
		for _, args := range [][]string{
			{"runs", "-json"}, {"drift", "-json"}, {"agent", "list", "-json"}, {"trust", "show"}, {"trust", "show", "-json"}, {"events", "-json"}, {"inventory", "-json"},
			{"plan", "-json", "-out=keys.plan"}, {"show", "-json", "keys.plan"}, {"history", "-json"}, {"state", "list"},
			{"agent", "status", "-config=gpu-01/agent.yaml"}, {"agent", "status", "-config=gpu-01/agent.yaml", "-json"}, {"agent", "config", "-config=gpu-01/agent.yaml"},
			{"agent", "health", "-config=gpu-01/agent.yaml", "-json"}, {"agent", "logs", "-config=gpu-01/agent.yaml"}, {"agent", "logs", "-config=gpu-01/agent.yaml", "-json"},
		} {
			s.run([]int{0, 1, 2, 8}, args...) // 8: the site agent has the world of far open
		}
		var runs struct{ Runs []struct{ ID string } }
		s.must(json.Unmarshal(s.get(far.client, "https://"+web+"/v1/runs"), &runs))
		if len(runs.Runs) == 0 {
			t.Fatal("no run is served")
		}
		for _, path := range api.Paths() {
			s.get(far.client, "https://"+web+strings.ReplaceAll(path, "{id}", runs.Runs[0].ID))
		}
		s.get(http.DefaultClient, "http://"+metrics+"/metrics")
		local := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.dir, "gpu-01", "identity", "agent.sock"))
		}}}
		for _, path := range []string{"status", "logs"} {
			s.get(local, "http://agent/"+path)
		}
	}
	look(web, metrics)
	s.run(done, "agent", "renew-cert", "-force", "-config=gpu-01/agent.yaml")
	key("renewed key of a node", "gpu-01/identity/identity.pem")
	happened.Reach("renewed")

	// Another replica takes over, which logs text; so do the guard, and JSON the agent. A change is guarded.
	web2, metrics2 := loopback.Address(t), loopback.Address(t)
	next := s.service("serve", "-mode=enforce", "-sweep=1s", "-host=127.0.0.1", "-listen="+second, "-socket=other.sock", "-http="+web2, "-metrics="+metrics2)
	next.await("another site agent keeps the site")
	guard.stop()
	agent.stop()
	guard = s.service("agent", "guard", "-config=gpu-01/agent.yaml")
	guard.await("guard started")
	agent = s.service("agent", "run", "-config=gpu-01/agent.yaml", "-log-format=json")
	next.await("node connected")
	first.stop()
	next.await("this site agent keeps the site")
	happened.Reach("replica takes over")
	s.write("site.json", fmt.Sprintf(keysDocument, 2, 9000))
	s.write("converge.yaml", strings.Replace(s.read("converge.yaml"), ".converge/serve.sock", "other.sock", 1))
	s.run([]int{0, 8}, "apply", "-auto-approve", "site.json")
	guard.await("a change is guarded")
	happened.Reach("guarded change")
	next.await("phase=in-sync serial=2")
	look(web2, metrics2)
	far.told()
	next.stop()
	agent.stop()
	guard.stop()

	// A node whose key cannot be used.
	s.must(os.Chmod(filepath.Join(s.dir, "gpu-01/identity/identity.pem"), 0o644))
	wrong("node's key readable by all", "agent", "run", "-config=gpu-01/agent.yaml")
	s.write("gpu-01/identity/identity.pem", strings.Replace(s.read("gpu-01/identity/identity.pem"), "-----END PRIVATE", "=!-----END PRIVATE", 1))
	wrong("node's key damaged", "agent", "run", "-config=gpu-01/agent.yaml")

	places, keys := s.places()
	for _, p := range s.files(func(string) bool { return true }) { // also those that are not the program's
		if !slices.ContainsFunc(places, func(q place) bool { return q.name == p.name }) {
			places = append(places, p)
		}
	}
	places = append(places, far.heard()...)
	for _, g := range secret {
		elsewhere := slices.DeleteFunc(slices.Clone(places), func(p place) bool {
			return slices.ContainsFunc(g.homes, func(home string) bool { return strings.HasPrefix(p.name, "file "+home) })
		})
		for _, f := range search(elsewhere, []canary{g.canary}) {
			t.Errorf("%s, in %s, is in the %s: …%q…", f.canary, f.encoding, f.place, f.excerpt)
		}
	}
	torture.Report(t, "Q", "%d keys, tokens and passwords in %d encodings: 0 found in %d places (%d commands, %d keys of the store)",
		len(secret), len(encodings), len(places), s.number, keys)
}

// A guarded canary may be in files whose paths begin with one of its homes.
type guarded struct {
	canary
	homes []string
}

// machine serves the world of a node whose link its connections go through, as converge dev site does.
func (s *site) machine(node string) {
	s.Helper()
	described, err := kinds.New()
	s.must(err)
	s.must(os.MkdirAll(filepath.Join(s.dir, node), 0o700))
	world, err := fake.Open(filepath.Join(s.dir, node, "world.json"), described.Kinds())
	s.must(err)
	s.Cleanup(func() { _ = world.Close() })
	cuts := fake.NodeTraits()
	cuts.CutsOff, cuts.Mark = true, false
	world.Traits = map[string]providers.Traits{"host.link": cuts}
	s.must(world.Put(node, "host.link", providers.Thing{ID: "uplink", Spec: schema.Object{"type": "physical", "state": "up", "mtu": int64(1500)}}))
	var all []*providers.Provider
	for _, kind := range described.Kinds().Names() {
		name := (schema.Ref{Kind: kind}).Provider()
		if described.Kinds()[kind].Node && !slices.ContainsFunc(all, func(p *providers.Provider) bool { return p.Name == name }) {
			all = append(all, world.Provider(name, node))
		}
	}
	server := grpc.NewServer()
	s.must(wire.Serve(server, nil, all...))
	l, err := net.Listen("unix", filepath.Join(s.dir, node, "node.sock"))
	s.must(err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	s.Cleanup(serving.Wait)
	s.Cleanup(server.Stop)
}

// A service is the program as it runs until it is stopped.
type service struct {
	*site
	name string
	cmd  *exec.Cmd
	log  string
	over chan struct{}
	out  bytes.Buffer
}

// service starts the program with a log of its own.
func (s *site) service(args ...string) *service {
	s.Helper()
	s.number++
	p := &service{site: s, name: strings.Join(args[:2], " "), cmd: s.command(s.Context(), args...), over: make(chan struct{})}
	p.log = filepath.Join(s.dir, fmt.Sprintf("%d.log", s.number))
	p.cmd.Env = append(p.cmd.Env, "CONVERGE_LOG_PATH="+p.log)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.must(p.cmd.Start())
	go func() {
		defer close(p.over)
		_ = p.cmd.Wait()
	}()
	s.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.over
	})
	return p
}

// await waits until its log matches.
func (p *service) await(pattern string) {
	p.Helper()
	re := regexp.MustCompile(pattern)
	p.until(p.name+" logs "+pattern, func() bool {
		b, _ := os.ReadFile(p.log)
		if re.Match(b) {
			return true
		}
		select {
		case <-p.over:
			p.Fatalf("%s has ended without logging %s:\n%s\n%s", p.name, pattern, p.out.String(), b)
		default:
		}
		return false
	})
}

// stop ends it in order, and keeps what it said.
func (p *service) stop() {
	p.Helper()
	p.must(p.cmd.Process.Signal(os.Interrupt))
	<-p.over
	p.keep(result{stdout: p.out.String()}, p.name)
	if status := p.cmd.ProcessState.ExitCode(); status != 0 {
		p.Errorf("%s: status %d\n%s", p.name, status, p.out.String())
	}
}

// until looks again and again whether something is so.
func (s *site) until(what string, so func() bool) {
	s.Helper()
	for end := time.Now().Add(torture.Patience); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("it is not so that %s", what)
		}
	}
}

// get keeps what is served at a URL, and returns it.
func (s *site) get(client *http.Client, url string) []byte {
	s.Helper()
	res, err := client.Get(url)
	s.must(err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	s.must(err)
	s.said = append(s.said, place{"answer of " + url, fmt.Appendf(body, "\n%v", res.Header)})
	return body
}
