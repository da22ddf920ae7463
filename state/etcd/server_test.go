package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"converge.dev/converge/internal/loopback"
	"converge.dev/converge/internal/statetest"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// program finds a program of a Debian package. Without it the test is skipped, unless real systems are required.
func program(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path
	case os.Getenv("CONVERGE_REAL") == "1":
		t.Fatalf("%s is missing: install the package %s", name, pkg)
	default:
		t.Skipf("%s is missing: install the package %s", name, pkg)
	}
	return ""
}

// A server is an etcd in a process of its own.
type server struct {
	cmd *exec.Cmd
	url string
}

// serve starts a server with more flags, and waits until it answers.
func serve(t *testing.T, scheme string, o etcd.Options, flags ...string) *server {
	t.Helper()
	path := program(t, "etcd", "etcd-server")
	s := &server{url: scheme + "://" + loopback.Address(t)}
	peer := "http://" + loopback.Address(t)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command(path, append([]string{
		"--data-dir", t.TempDir(), "--listen-client-urls", s.url, "--advertise-client-urls", s.url,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
		"--heartbeat-interval", "10", "--election-timeout", "100", "--unsafe-no-fsync",
	}, flags...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("etcd said:\n%s", text[max(0, len(text)-4096):])
		}
	})
	o.Endpoints = []string{s.url}
	deadline := time.Now().Add(2 * time.Minute)
	for {
		kv, err := etcd.Open(t.Context(), o)
		if err == nil {
			_ = kv.Close()
			return s
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func connect(t *testing.T, o etcd.Options) state.KV {
	t.Helper()
	kv, err := etcd.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kv.Close() })
	return kv
}

func TestServer(t *testing.T) {
	s := serve(t, "http", etcd.Options{})
	o := etcd.Options{Endpoints: []string{s.url}}
	t.Run("Laws", func(t *testing.T) {
		kv := connect(t, o)
		statetest.KV(t, func(*testing.T) state.KV { return kv })
		statetest.Store(t, func(*testing.T) state.KV { return kv })
		statetest.WatchClosed(t, connect(t, o))
	})
	t.Run("Inbox", func(t *testing.T) { // written by the client that a cloud would use
		ctl := exec.Command(program(t, "etcdctl", "etcd-client"), "--endpoints", s.url, "put", "/converge/inbox-site/inbox")
		ctl.Stdin = strings.NewReader("{\"apiVersion\": \"converge.dev/v1\"}\n")
		ctl.Env = append(os.Environ(), "ETCDCTL_API=3")
		if out, err := ctl.CombinedOutput(); err != nil {
			t.Fatalf("etcdctl: %v\n%s", err, out)
		}
		store := state.New(connect(t, o), "inbox-site")
		body, revision, err := store.Inbox(t.Context())
		if err != nil || strings.TrimSpace(string(body)) != `{"apiVersion": "converge.dev/v1"}` {
			t.Fatalf("the inbox holds %q, %v", body, err)
		}
		if err := store.Answer(t.Context(), state.InboxResult{Revision: revision, Verdict: state.Accepted}); err != nil {
			t.Error(err)
		}
	})
	// A holder that disappears loses the lock when its ttl has passed, and cannot write when it comes back.
	t.Run("Abandoned", func(t *testing.T) {
		lost, next := connect(t, o), connect(t, o)
		old, err := state.New(lost, "abandoned").Lock(t.Context(), state.LockInfo{Who: "old"}, state.LockOptions{TTL: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		work := old.Context(context.Background())
		if err := lost.Close(); err != nil {
			t.Fatal(err)
		}
		l, err := state.New(next, "abandoned").Lock(t.Context(), state.LockInfo{Who: "new"}, state.LockOptions{TTL: 2 * time.Second, Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		select {
		case <-work.Done():
			if cause := context.Cause(work); !errors.Is(cause, state.ErrFenced) {
				t.Errorf("the work of the old holder ended with %v", cause)
			}
		default:
			t.Error("there is a new holder and the old one still works")
		}
		if l.Epoch() != 2 {
			t.Errorf("epoch %d, want 2", l.Epoch())
		}
	})
	t.Run("Killed", func(t *testing.T) {
		kv := connect(t, o)
		s.kill()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := kv.Commit(ctx, nil, []state.Op{{Key: "/a"}})
		if !errors.Is(err, state.ErrUnknown) || !strings.Contains(err.Error(), s.url) {
			t.Errorf("a commit to a dead server: %v, want ErrUnknown and its address", err)
		}
		if _, err := kv.Get(ctx, "/a"); err == nil || errors.Is(err, state.ErrUnknown) {
			t.Errorf("a read from a dead server: %v", err)
		}
		_, err = etcd.Open(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), s.url) || !strings.Contains(err.Error(), "no answer") {
			t.Errorf("open a dead server: %v", err)
		}
	})
}

func TestServerTLS(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	serverCert, serverKey := ca.issue(t, dir, "server", "etcd.test")
	o := etcd.Options{CA: ca.file, ServerName: "etcd.test"}
	o.Cert, o.Key = ca.issue(t, dir, "client", "converge")
	s := serve(t, "https", o, "--cert-file", serverCert, "--key-file", serverKey, "--client-cert-auth", "--trusted-ca-file", ca.file)
	o.Endpoints = []string{s.url}

	kv := connect(t, o)
	statetest.KV(t, func(*testing.T) state.KV { return kv })

	stranger := newAuthority(t, dir, "stranger")
	strangerCert, strangerKey := stranger.issue(t, dir, "stranger-client", "converge")
	for name, change := range map[string]func(*etcd.Options){
		"no client certificate":        func(o *etcd.Options) { o.Cert, o.Key = "", "" },
		"another's client certificate": func(o *etcd.Options) { o.Cert, o.Key = strangerCert, strangerKey },
		"another CA":                   func(o *etcd.Options) { o.CA = stranger.file },
		"another name":                 func(o *etcd.Options) { o.ServerName = "other.test" },
		"a missing key":                func(o *etcd.Options) { o.Key = filepath.Join(dir, "none") },
		"a CA that is none":            func(o *etcd.Options) { o.CA = o.Key },
		"no TLS":                       func(o *etcd.Options) { o.Endpoints = []string{strings.Replace(s.url, "https", "http", 1)} },
		"TLS for one of two":           func(o *etcd.Options) { o.Endpoints = append(o.Endpoints, "http://127.0.0.1:1") },
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			change(&o)
			kv, err := etcd.Open(t.Context(), o)
			if err == nil {
				_ = kv.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), o.Endpoints[0]) {
				t.Errorf("%v does not name %s", err, o.Endpoints[0])
			}
			t.Log(err)
		})
	}
}

// TestCertificateFiles: TLS files that block, never end or are accessible to everybody are refused before any connection.
func TestCertificateFiles(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	good := etcd.Options{Endpoints: []string{"https://127.0.0.1:1"}, CA: ca.file}
	good.Cert, good.Key = ca.issue(t, dir, "client", "converge")
	pipe, open := filepath.Join(dir, "pipe"), filepath.Join(dir, "open.key")
	key, err := os.ReadFile(good.Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.WriteFile(open, key, 0o600), os.Chmod(open, 0o644)); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*etcd.Options){
		"/dev/zero: it is a device":   func(o *etcd.Options) { o.CA = "/dev/zero" },
		pipe + ": it is a named pipe": func(o *etcd.Options) { o.Cert = pipe },
		"anyone on this machine can read or write " + open + " (mode 0644): run chmod o-rw": func(o *etcd.Options) { o.Key = open },
	} {
		o := good
		change(&o)
		kv, err := etcd.Open(t.Context(), o)
		if err == nil {
			_ = kv.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// demandLogin switches authentication on, and returns the options of a user who may access the site "mine".
func demandLogin(t *testing.T, s *server) etcd.Options {
	t.Helper()
	ctl := func(args ...string) {
		t.Helper()
		c := exec.Command(program(t, "etcdctl", "etcd-client"), append([]string{"--endpoints", s.url}, args...)...)
		c.Env = append(os.Environ(), "ETCDCTL_API=3")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("etcdctl %q: %v\n%s", args, err, out)
		}
	}
	ctl("user", "add", "root:secret")
	ctl("user", "grant-role", "root", "root")
	ctl("role", "add", "site")
	ctl("role", "grant-permission", "site", "readwrite", "/converge/mine/", "--prefix=true")
	ctl("user", "add", "ann:secret")
	ctl("user", "grant-role", "ann", "site")
	ctl("auth", "enable")
	return etcd.Options{Endpoints: []string{s.url}, Username: "ann", Password: "secret"}
}

// TestServerLogin tests a cluster with authentication, and a user who may use one site.
func TestServerLogin(t *testing.T) {
	s := serve(t, "http", etcd.Options{})
	o := demandLogin(t, s)
	kv := connect(t, o)
	if _, err := state.New(kv, "mine").Lock(t.Context(), state.LockInfo{}, state.LockOptions{}); err != nil {
		t.Errorf("the own site: %v", err)
	}
	_, err := kv.Commit(t.Context(), nil, []state.Op{{Key: "/converge/other/a"}})
	if err == nil || errors.Is(err, state.ErrUnknown) || !strings.Contains(err.Error(), "permission") {
		t.Errorf("another site: %v", err)
	}
	o.Password = "wrong"
	if _, err := etcd.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "password") {
		t.Errorf("a wrong password: %v", err)
	}
	o.Username, o.Password = "", ""
	anonymous := connect(t, o)
	if _, err := anonymous.Get(t.Context(), "/converge/mine/a"); err == nil || !strings.Contains(err.Error(), "user name") {
		t.Errorf("no user: %v", err)
	}
}

// TestServerBesideOneThatHangs: one of the members answers gRPC but no call, like one that has lost its leader without knowing it
// yet. Opening the store, reading, writing and getting a lease are served by the other, sooner than gRPC or etcd give the first
// one up.
func TestServerBesideOneThatHangs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	hanging := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		asked.Add(1)
		<-s.Context().Done()
		return s.Context().Err()
	}))
	go func() { _ = hanging.Serve(l) }()
	t.Cleanup(hanging.Stop)
	server := serve(t, "http", etcd.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second) // etcd would take 30 of these to give a single call up
	defer cancel()
	use := func(o etcd.Options) {
		o.Endpoints = []string{"http://" + l.Addr().String(), server.url}
		kv, err := etcd.Open(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		defer kv.Close()
		if _, err := kv.Get(ctx, "/converge/mine/a"); err != nil {
			t.Error(err)
		}
		if _, err := kv.Commit(ctx, nil, []state.Op{{Key: "/converge/mine/a"}}); err != nil && !errors.Is(err, state.ErrUnknown) {
			t.Error(err)
		}
		lease, err := kv.Lease(ctx, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 3 { // which it asks first is random
		use(etcd.Options{})
	}
	use(demandLogin(t, server))
	if asked.Load() == 0 {
		t.Error("nobody asked the member that hangs")
	}
}

// TestServerFull: a cluster whose quota is used up says so; it occasionally carries a transaction out all the same, so
// whether it was written is unknown.
func TestServerFull(t *testing.T) {
	s := serve(t, "http", etcd.Options{}, "--quota-backend-bytes", "1000000")
	kv := connect(t, etcd.Options{Endpoints: []string{s.url}})
	body := make([]byte, 500_000)
	var err error
	for range 1000 { // etcd counts what has reached its file
		if _, err = kv.Commit(t.Context(), nil, []state.Op{{Key: "/a", Value: body}}); err != nil {
			break
		}
	}
	if !errors.Is(err, state.ErrUnknown) || !strings.Contains(err.Error(), "quota is used up") {
		t.Errorf("got %v", err)
	}
}

// An authority issues certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{file: filepath.Join(dir, name+".pem")}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func (a *authority) issue(t *testing.T, dir, name, host string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "PRIVATE KEY", pkcs8)
	return certFile, keyFile
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
