package e2e

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidesim/devcert"
	"converge.dev/converge/internal/loopback"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// A cluster is a real etcd of one member, in a process of its own.
type cluster struct {
	s     *site
	args  []string
	url   string
	certs devcert.Files // empty without TLS
	cmd   *exec.Cmd
	log   *os.File
}

// newCluster starts etcd for a site, which stores its state there from then on.
func newCluster(s *site, secure bool) *cluster {
	s.Helper()
	program(s.T, "etcd", "etcd-server")
	address := loopback.Address(s)
	c := &cluster{s: s, url: "http://" + address}
	if secure {
		var err error
		host, _, _ := net.SplitHostPort(address)
		c.certs, err = devcert.Ensure(filepath.Join(s.dir, "etcd-tls"), host)
		s.must(err)
		c.url = strings.Replace(c.url, "http:", "https:", 1)
		c.args = []string{"--cert-file", c.certs.ServerCert, "--key-file", c.certs.ServerKey, "--client-cert-auth", "--trusted-ca-file", c.certs.CA, "--enable-grpc-gateway=false"}
	}
	peer := "http://" + loopback.Address(s)
	c.args = append(c.args, "--data-dir", filepath.Join(s.dir, "etcd"), "--listen-client-urls", c.url, "--advertise-client-urls", c.url,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer,
		"--heartbeat-interval", "10", "--election-timeout", "100")
	var err error
	c.log, err = os.Create(filepath.Join(s.dir, "etcd.log"))
	s.must(err)
	s.Cleanup(func() {
		c.kill()
		c.log.Close()
		if text, err := os.ReadFile(c.log.Name()); err == nil && s.Failed() {
			s.Logf("etcd said:\n%s", text[max(0, len(text)-4096):])
		}
	})
	s.store = []string{"-etcd-endpoints=" + c.url}
	if secure {
		s.store = append(s.store, "-etcd-ca=etcd-tls/ca.crt", "-etcd-cert=etcd-tls/client.crt", "-etcd-key=etcd-tls/client.key")
	}
	c.start()
	return c
}

// start starts the member and waits until it answers.
func (c *cluster) start() {
	c.s.Helper()
	c.cmd = exec.Command(program(c.s.T, "etcd", "etcd-server"), c.args...)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.s.must(c.cmd.Start())
	o := etcd.Options{Endpoints: []string{c.url}, CA: c.certs.CA, Cert: c.certs.ClientCert, Key: c.certs.ClientKey}
	c.s.until("etcd answers", func() bool {
		kv, err := etcd.Open(c.s.ctx, o)
		return err == nil && kv.Close() == nil
	})
}

func (c *cluster) kill() {
	if c.cmd != nil && c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

// ctl runs etcdctl, as a cloud would.
func (c *cluster) ctl(stdin string, args ...string) string {
	c.s.Helper()
	args = append([]string{"--endpoints", c.url}, args...)
	if c.certs.CA != "" {
		args = append(args, "--cacert", c.certs.CA, "--cert", c.certs.ClientCert, "--key", c.certs.ClientKey)
	}
	cmd := exec.CommandContext(c.s.ctx, program(c.s.T, "etcdctl", "etcd-client"), args...)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.s.Fatalf("etcdctl %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// The state of a site is in a cluster: documents, plans, runs and drift go through it, with and without TLS.
func TestEtcd(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			c := newCluster(s, secure)
			s.run(0, "put", "before.cue").says("Site fra1 is at serial 1")
			s.run(2, "plan", "-detailed-exitcode").says("8 to add")
			s.run(0, "apply", "-auto-approve")
			s.settled("before.cue")
			before := s.dump()

			p := s.plan("after.cue", "plan")
			s.inject(carbidesim.Fault{Method: "CreateNetworkSegment", Effect: carbidesim.Before, Code: 3})
			s.reverted(s.run(3, "apply", "plan"), stepOf(p, "CreateNetworkSegment"), before)

			s.run(0, "apply", "-auto-approve", "after.cue")
			s.settled("after.cue")
			s.run(0, "history").says("SERIAL")
			if _, err := os.Stat(filepath.Join(s.dir, ".converge")); !os.IsNotExist(err) {
				t.Errorf("an embedded store was made although there is a cluster: %v", err)
			}
			if got := c.ctl("", "get", "--print-value-only", "/converge/fra1/drift/latest"); !json.Valid([]byte(got)) {
				t.Errorf("drift/latest is not JSON: %s", got)
			}
			if !secure {
				return
			}
			s.store = []string{"-etcd-endpoints=" + c.url, "-etcd-ca=etcd-tls/ca.crt"}
			s.run(1, "plan").says(c.url, "certificate")
			s.store = []string{"-etcd-endpoints=" + c.url, "-etcd-ca=tls/ca.crt", "-etcd-cert=etcd-tls/client.crt", "-etcd-key=etcd-tls/client.key"}
			s.run(1, "plan").says(c.url, "certificate")
		})
	}
}

// A document that the cloud leaves in the inbox with its own client is planned in place, and accepted by apply; an invalid
// one stays there, and the site keeps the one before it. The cloud reads the verdict with its own client.
func TestInboxFromEtcdctl(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := newCluster(s, true)
	const inbox = "/converge/fra1/inbox"
	document := func(serial, vpc string) string {
		return `{"apiVersion": "converge.dev/v1", "site": {"name": "fra1", "id": "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e", "serial": ` + serial + `},
			"carbide": {"tenant": {"acme": {}}, "vpc": {"` + vpc + `": {"tenant": "acme"}}}}`
	}
	answer := func() (r state.InboxResult) {
		t.Helper()
		s.must(json.Unmarshal([]byte(c.ctl("", "get", "--print-value-only", inbox+"/result")), &r))
		return r
	}
	var put struct {
		Header struct {
			Revision int64 `json:"revision"`
		} `json:"header"`
	}
	s.must(json.Unmarshal([]byte(c.ctl(document("7", "prod"), "put", inbox, "-w", "json")), &put))
	s.run(2, "plan", "-detailed-exitcode").says("serial 7, not yet accepted", "site/carbide.vpc/prod", "2 to add")
	if got := c.ctl("", "get", inbox); got == "" {
		t.Error("a plan took the document out of the inbox")
	}
	if r := answer(); r.Verdict != state.Pending || r.Revision != put.Header.Revision {
		t.Errorf("after a plan the cloud is told %+v, want pending at revision %d", r, put.Header.Revision)
	}
	s.run(0, "apply", "-auto-approve").says("Accepted serial 7 from the inbox", "2 added")
	if got := c.ctl("", "get", inbox); got != "" {
		t.Errorf("the inbox still holds %s", got)
	}
	if r := answer(); r.Verdict != state.Accepted || r.Revision != put.Header.Revision || r.Serial != 7 || r.Applied == nil || r.Applied.Status != "applied" || r.Applied.Run == "" {
		t.Errorf("after it was applied the cloud is told %+v", r)
	}

	c.ctl(document("8", "main"), "put", inbox)
	s.run(7, "apply", "-auto-approve").says("Accepted serial 8 from the inbox")
	s.approved(0, "apply", "-auto-approve").says("1 added", "1 destroyed")
	s.run(0, "drift")
	world := s.dump()
	if !strings.Contains(world, `"main"`) || strings.Contains(world, `"prod"`) {
		t.Errorf("the world is not as the inbox said:\n%s", world)
	}

	c.ctl(strings.Replace(document("9", "main"), `"tenant": "acme"`, `"tennant": "acme"`, 1), "put", inbox)
	s.run(1, "apply", "-auto-approve").says("tennant", "tenant", "Put a corrected one in "+inbox)
	if got := c.ctl("", "get", inbox); !strings.Contains(got, "tennant") {
		t.Errorf("what was wrong left the inbox: %q", got)
	}
	if r := answer(); r.Verdict != state.Refused || !slices.ContainsFunc(r.Problems, func(p state.InboxProblem) bool { return p.Path == "carbide.vpc.main.tennant" }) {
		t.Errorf("of what was wrong the cloud is told %+v", r)
	}
	c.ctl(document("8", "other"), "put", inbox)
	s.run(7, "plan").says("not newer", inbox)
	c.ctl("", "del", inbox)
	s.run(0, "plan", "-detailed-exitcode")
	s.same(world)
}

// When the cluster dies in the middle of a run, the run stops by itself once its lock cannot be proven any more, and says
// how to continue; when the cluster is back, resume does.
func TestEtcdDiesDuringApply(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := newCluster(s, false)
	s.apply("before.cue")
	s.plan("after.cue", "plan")
	s.inject(carbidesim.Fault{Method: "CreateVpc", Effect: carbidesim.Hang})
	a := s.start("apply", "plan")
	s.struck()
	c.kill()
	a.ended(4).says(c.url, "converge resume")
	if strings.Contains(a.stderr.String(), "-timeout") {
		t.Errorf("it recommends a flag that has nothing to do with it:\n%s", a.stderr.String())
	}
	s.run(1, "plan").says(c.url, "no answer")
	s.run(1, "resume").says(c.url)
	c.start()
	s.run(0, "resume", "-lock-timeout=1m")
	s.settled("after.cue")
}
