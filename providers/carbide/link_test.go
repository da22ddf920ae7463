package carbide_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidesim/devcert"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema"
)

// A renewed site replaces the certificates of both sides while its provider is open.
type renewed struct {
	*site
	server *carbidesim.Server
	live   devcert.Files
	log    lines

	mu    sync.Mutex
	last  string              // serial number of the client's certificate in the last call
	news  chan struct{}       // closed when another one is seen
	block func(method string) // what a call waits for
}

func newRenewed(t *testing.T) *renewed {
	t.Helper()
	r := &renewed{news: make(chan struct{}), block: func(string) {}}
	var err error
	if r.live, err = devcert.Ensure(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, carbidesim.Options{})
	server, address := serve(t, w, carbidesim.ServerOptions{
		CertFile: r.live.ServerCert, KeyFile: r.live.ServerKey, ClientCA: r.live.CA, Mutual: true, Roles: carbidesim.DefaultRoles,
		Arrived: r.arrived,
	})
	p, err := carbide.Open(t.Context(), carbide.Options{
		Address: address, TLS: carbide.TLS{CA: r.live.CA, Cert: r.live.ClientCert, Key: r.live.ClientKey},
		Recheck: 10 * time.Millisecond, Logger: slog.New(&r.log),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	r.site, r.server = &site{t, w, p}, server
	return r
}

// arrived records which client made the call. The greeting on a new connection is not one of ours.
func (r *renewed) arrived(ctx context.Context, method string) {
	if method == "Version" {
		return
	}
	from, _ := peer.FromContext(ctx)
	serial := from.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].SerialNumber.String()
	r.mu.Lock()
	if serial != r.last {
		r.last = serial
		close(r.news)
		r.news = make(chan struct{})
	}
	block := r.block
	r.mu.Unlock()
	block(method)
}

// certificates returns some of a new authority, with the client's serial number.
func (r *renewed) certificates() (devcert.Files, string) {
	r.Helper()
	f, err := devcert.Ensure(r.TempDir())
	if err != nil {
		r.Fatal(err)
	}
	return f, serial(r.TB, f.ClientCert)
}

// place puts files in the places of the live ones, one after the other, each atomically.
func (r *renewed) place(pairs ...string) {
	r.Helper()
	for pair := range slices.Chunk(pairs, 2) {
		b, err := os.ReadFile(pair[0])
		if err != nil {
			r.Fatal(err)
		}
		if err := os.WriteFile(pair[1]+".new", b, 0o600); err != nil {
			r.Fatal(err)
		}
		if err := os.Rename(pair[1]+".new", pair[1]); err != nil {
			r.Fatal(err)
		}
	}
}

// places returns which file goes where, in order.
func (r *renewed) places(f devcert.Files) iter.Seq2[string, string] {
	return func(yield func(from, to string) bool) {
		_ = yield(f.ServerKey, r.live.ServerKey) && yield(f.ServerCert, r.live.ServerCert) && yield(f.CA, r.live.CA) &&
			yield(f.ClientCert, r.live.ClientCert) && yield(f.ClientKey, r.live.ClientKey)
	}
}

func (r *renewed) placeAll(f devcert.Files) {
	for from, to := range r.places(f) {
		r.place(from, to)
	}
}

func serial(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c.SerialNumber.String()
}

// looks makes a reading call.
func (r *renewed) looks(ctx context.Context) error {
	_, err := providers.Collect(r.kind("vpc").List(ctx))
	return err
}

// until makes calls until a condition is met.
func (r *renewed) until(what string, so func() bool) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		if err := r.looks(ctx); err != nil {
			r.Fatalf("waiting for %s: %v", what, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.Fatalf("waiting for %s: %v", what, ctx.Err())
		}
	}
}

func (r *renewed) seen() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// alone reports whether there is no connection but the newest.
func (r *renewed) alone() bool { open, _ := r.server.Connections(); return open == 1 }

// lines are the logged warnings.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (*lines) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler         { return l }
func (l *lines) WithGroup(string) slog.Handler              { return l }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			l.text = append(l.text, a.Value.String())
		}
		return true
	})
	return nil
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.text, func(line string) bool { return strings.Contains(line, text) })
}

// TestRotation replaces the authority and both sides' certificates fifty times. Meanwhile two hundred calls are made per second,
// and more of them between any two files; none fails, and each has its effect once.
func TestRotation(t *testing.T) {
	const rotations, workers, perFile, perSecond = 50, 8, 2, 200
	r := newRenewed(t)
	var calls, made atomic.Int64
	turns := make(chan struct{}) // a call is due
	var under sync.WaitGroup
	for range workers {
		under.Go(func() {
			for range turns {
				n := calls.Add(1)
				c := call("vpc", fmt.Sprintf("vpc-%d", n-n%4))
				var err error
				if n%4 == 0 {
					c.Want = schema.Object{"tenant": "acme"}
					err = r.kind("vpc").Create(t.Context(), c)
					made.Add(1)
				} else {
					_, err = r.kind("vpc").Get(t.Context(), []string{c.ID})
				}
				if err != nil {
					t.Errorf("call %d: %v", n, err)
				}
			}
		})
	}
	begin := time.Now()
	stop := make(chan struct{})
	var pacer sync.WaitGroup
	pacer.Go(func() { // as many calls as are due; a late tick loses none
		tick := time.NewTicker(time.Second / perSecond)
		defer tick.Stop()
		for paced := 0; ; {
			for due := int(time.Since(begin).Seconds() * perSecond); paced < due; paced++ {
				select {
				case turns <- struct{}{}:
				case <-stop:
					return
				}
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	end := sync.OnceFunc(func() {
		close(stop)
		pacer.Wait()
		close(turns)
		under.Wait()
	})
	defer end()

	limit := time.After(2 * time.Minute) // against a hang; it takes seconds
	for i := range rotations {
		f, want := r.certificates()
		for from, to := range r.places(f) {
			r.place(from, to)
			for range perFile {
				turns <- struct{}{}
			}
		}
		for {
			r.mu.Lock()
			last, news := r.last, r.news
			r.mu.Unlock()
			if last == want {
				break
			}
			select {
			case <-news:
			case <-limit:
				t.Fatalf("replacement %d had no effect", i)
			}
		}
	}
	took, n := time.Since(begin), calls.Load()
	end()
	r.until("old connections to close", r.alone)
	_, ever := r.server.Connections()
	if ever < rotations+1 {
		t.Errorf("there were %d connections in all", ever)
	}
	if things, err := providers.Collect(r.kind("vpc").List(t.Context())); err != nil || len(things) != int(made.Load()) {
		t.Errorf("%d VPCs were made, and there are %d, %v", made.Load(), len(things), err)
	}
	t.Logf("%d replacements, %d calls in %s (%.0f/s), %d connections", rotations, n, took.Round(time.Millisecond), float64(n)/took.Seconds(), ever)
}

// TestCallEndsWhereItBegan: a call in progress keeps its connection, which closes after it and not before.
func TestCallEndsWhereItBegan(t *testing.T) {
	r := newRenewed(t)
	arrived, answer := make(chan struct{}), make(chan struct{})
	r.mu.Lock()
	r.block = func(method string) {
		if method == "CreateVpc" {
			close(arrived)
			<-answer
		}
	}
	r.mu.Unlock()
	ended := make(chan error, 1)
	go func() {
		c := call("vpc", "prod")
		c.Want = schema.Object{"tenant": "acme"}
		ended <- r.kind("vpc").Create(t.Context(), c)
	}()
	<-arrived
	for range 3 {
		f, want := r.certificates()
		r.placeAll(f)
		r.until("the new certificate", func() bool { return r.seen() == want })
	}
	r.until("the connections without calls to close", func() bool { open, _ := r.server.Connections(); return open == 2 })
	close(answer)
	if err := <-ended; err != nil {
		t.Errorf("the call that began on the first connection: %v", err)
	}
	r.until("the first connection to close", r.alone)
}

// TestUnusableCertificates: unusable files change nothing, and are reported once.
func TestUnusableCertificates(t *testing.T) {
	r := newRenewed(t)
	mine := serial(t, r.live.ClientCert)
	other, _ := r.certificates()
	kept := filepath.Join(t.TempDir(), "ca")
	r.place(r.live.CA, kept)
	expired, err := devcert.Made(t.TempDir(), time.Now().AddDate(0, 0, -60))
	if err != nil {
		t.Fatal(err)
	}
	nothing := filepath.Join(t.TempDir(), "nothing")
	if err := os.WriteFile(nothing, []byte("-----BEGIN CERTI"), 0o600); err != nil {
		t.Fatal(err)
	}
	saved := devcert.Files{ClientCert: filepath.Join(t.TempDir(), "cert"), ClientKey: filepath.Join(t.TempDir(), "key")}
	r.place(r.live.ClientCert, saved.ClientCert, r.live.ClientKey, saved.ClientKey)
	before := []string{saved.ClientCert, r.live.ClientCert, saved.ClientKey, r.live.ClientKey, kept, r.live.CA}
	for _, c := range []struct {
		name, says string
		place      []string
	}{
		{"a certificate without its key", "private key does not match", []string{other.ClientCert, r.live.ClientCert}},
		{"half a file", "contains no certificate", []string{nothing, r.live.CA}},
		{"an authority that did not sign the server's", "is not signed by a CA in", []string{other.CA, r.live.CA}},
		{"a certificate that expired", "expired at", []string{expired.ClientCert, r.live.ClientCert, expired.ClientKey, r.live.ClientKey}},
		{"a certificate that the server does not take", "the server rejects the client certificate", []string{other.ClientCert, r.live.ClientCert, other.ClientKey, r.live.ClientKey}},
	} {
		r.place(c.place...)
		r.until(c.name+" to be noticed", func() bool { return r.log.has(c.says) })
		if err := r.looks(t.Context()); err != nil || r.seen() != mine {
			t.Errorf("%s: %v; the certificate in use is %s, was %s", c.name, err, r.seen(), mine)
		}
		if down := r.Health(t.Context()); down != nil {
			t.Errorf("%s: health is %v", c.name, down)
		}
		r.place(before...)
	}
	f, want := r.certificates()
	r.placeAll(f)
	r.until("good certificates to be used", func() bool { return r.seen() == want })
}
