package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"converge.dev/converge/agent"
	"converge.dev/converge/guard"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/reverse"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/providers/remote"
	"converge.dev/converge/schema"
	"converge.dev/converge/trust"
)

// A door is the socket of an agent in a bubble.
type door struct {
	t *testing.T
	l *bufconn.Listener
}

// door makes the agent that is started with o answer at one.
func (p *place) door(o *agent.Options) door {
	d := door{p.t, bufconn.Listen(1 << 16)}
	o.Local = func(dir string) (net.Listener, error) {
		if dir != p.dir {
			return nil, fmt.Errorf("asked for %s", dir)
		}
		return d.l, nil
	}
	return d
}

func (d door) send(method, what string, body io.Reader) (*http.Response, func()) {
	d.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.l.DialContext(ctx) }}
	q, err := http.NewRequestWithContext(d.t.Context(), method, "http://agent"+what, body)
	if err != nil {
		d.t.Fatal(err)
	}
	r, err := transport.RoundTrip(q)
	if err != nil {
		d.t.Fatal(err)
	}
	return r, func() {
		_ = r.Body.Close()
		transport.CloseIdleConnections()
	}
}

// ask returns what is answered, and its code.
func (d door) ask(method, what string, body io.Reader) (text string, code int) {
	d.t.Helper()
	r, end := d.send(method, what, body)
	defer end()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(b), r.StatusCode
}

func (d door) status() (s agent.Status) {
	d.t.Helper()
	text, code := d.ask("GET", "/status", nil)
	if err := json.Unmarshal([]byte(text), &s); err != nil || code != http.StatusOK {
		d.t.Fatalf("%d %s: %v", code, text, err)
	}
	return s
}

// healths gives the providers of an agent a health.
func healths(o *agent.Options, of func(provider string) func(context.Context) error) {
	open := o.Open
	o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
		set, err := open(ctx, site, needs)
		if err == nil {
			for _, p := range set.All() {
				p.Health = of(p.Name)
			}
		}
		return set, err
	}
}

// The status tells how the connections, the providers and the certificate are, and what is wrong first.
func TestStatus(t *testing.T) {
	placed(t, trust.Options{NodeLife: time.Hour}, func(t *testing.T, p *place) {
		p.enrol()
		began := time.Now()
		o := p.options("c.test:7443", second)
		var ill atomic.Bool
		healths(&o, func(string) func(context.Context) error {
			return func(context.Context) error {
				if ill.Load() {
					return errors.New("the switch is off")
				}
				return nil
			}
		})
		p.away["odd"] = "no such device"
		d := p.door(&o)
		p.run(o)
		c := p.conn(second)
		time.Sleep(time.Second)
		p.serves(c)
		asked := time.Now()
		time.Sleep(2 * time.Second)

		s := d.status()
		if s.Node != "n1" || s.Site != "test" || s.SiteID != siteID || s.Version != "v1" || !s.Started.Equal(began) || !s.Now.Equal(time.Now()) || s.Trust.Version != 1 {
			t.Errorf("%+v", s)
		}
		cert := c.State().PeerCertificates[0]
		if s.Certificate.Serial != cert.SerialNumber.Text(16) || !s.Certificate.NotAfter.Equal(cert.NotAfter) || !s.Certificate.Renewal.After(began) || s.Certificate.Error != "" {
			t.Errorf("%+v", s.Certificate)
		}
		if a := s.Servers[0]; a.Address != "c.test:7443" || a.Connected || !strings.Contains(a.Error, "nothing listens") || a.Next == nil || !a.Next.After(began) || a.Contact != nil {
			t.Errorf("%+v", a)
		}
		if b := s.Servers[1]; b.Address != second || !b.Connected || b.Since == nil || !b.Since.Equal(began) || b.Contact == nil || !b.Contact.Equal(asked) || b.Next != nil {
			t.Errorf("%+v", b)
		}
		if s.Contact == nil || !s.Contact.Equal(asked) {
			t.Errorf("last contact: %v, want %v", s.Contact, asked)
		}
		if s.Guard.State != agent.NoGuard || s.Tasks.Open == nil || len(s.Tasks.Open) > 0 {
			t.Errorf("%+v, %+v", s.Guard, s.Tasks)
		}
		if got := fmt.Sprintf("%s %s, %s %s %s", s.Providers[0].Provider, s.Providers[0].Health, s.Providers[1].Provider, s.Providers[1].Health, s.Providers[1].Detail); got != "lab ok, odd missing no such device" {
			t.Error(got)
		}
		if got := strings.Join(s.Problems, "; "); s.Health != agent.Degraded || got != "odd could not be opened: no such device" {
			t.Errorf("%s: %s", s.Health, got)
		}

		p.mu.Lock()
		delete(p.away, "odd")
		p.mu.Unlock()
		ill.Store(true)
		time.Sleep(time.Minute)
		if s := d.status(); strings.Join(s.Problems, "; ") != "lab is unavailable: the switch is off; odd is unavailable: the switch is off" || s.Providers[0].Since == nil {
			t.Errorf("%v", s.Problems)
		}
		if st, err := remote.Beat(t.Context(), p.remote(p.conn(second)), 1); err != nil || len(st.GetUnwell()) != 2 || st.GetUnwell()[0].GetWhy() != "the switch is off" {
			t.Errorf("the site is told %v, %v", st, err)
		}
		ill.Store(false)
		time.Sleep(time.Minute)
		if s := d.status(); s.Health != agent.OK || len(s.Problems) != 0 || s.Problems == nil {
			t.Errorf("%s: %v", s.Health, s.Problems)
		}

		c = p.conn(second)
		p.lines[second].Close()
		c.Close()
		time.Sleep(time.Minute)
		if s := d.status(); s.Servers[1].Connected || !strings.HasPrefix(strings.Join(s.Problems, "; "), "not connected to any site agent: ") {
			t.Errorf("%+v %v", s.Servers[1], s.Problems)
		}
		time.Sleep(time.Hour)
		s = d.status()
		if !strings.HasPrefix(s.Problems[0], "the certificate has expired") || s.Certificate.Error == "" || s.Certificate.Failed == nil || !strings.Contains(s.Problems[len(s.Problems)-1], "cannot be renewed") {
			t.Errorf("%v, %+v", s.Problems, s.Certificate)
		}
	})
}

// A provider that hangs keeps neither the status nor another provider waiting, and counts as unavailable.
func TestHealthHangs(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		o := p.options(first)
		release, asked := make(chan struct{}), atomic.Int64{}
		healths(&o, func(name string) func(context.Context) error {
			return func(context.Context) error {
				if name == "odd" {
					asked.Add(1)
					<-release // whatever its context says
				}
				return nil
			}
		})
		d := p.door(&o)
		p.run(o)
		time.Sleep(time.Minute)
		s := d.status()
		if s.Providers[0].Health != agent.OK || s.Providers[1].Health != agent.Unavailable || asked.Load() != 1 {
			t.Errorf("%+v, asked %d times", s.Providers, asked.Load())
		}
		close(release)
		time.Sleep(time.Minute)
		if s := d.status(); s.Health != agent.OK {
			t.Errorf("%v", s.Problems)
		}
	})
}

// guarded runs a guard for a test, outside of its bubble, and returns its directory.
func guarded(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "g")
	ready, ended := make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		ended <- guard.Run(ctx, guard.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler), Ready: sync.OnceFunc(func() { close(ready) })})
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return dir
}

// unwell returns what the site is told that does not answer, and why.
func (p *place) unwell(c *reverse.Conn) (list []string) {
	p.t.Helper()
	st, err := remote.Beat(p.t.Context(), p.remote(c), 1)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, u := range st.GetUnwell() {
		list = append(list, u.GetName()+": "+u.GetWhy())
	}
	return list
}

// An agent that begins before what it needs, its guard among that, serves it soon after that has begun.
func TestBeginsFirst(t *testing.T) {
	served, there := guarded(t), filepath.Join(t.TempDir(), "guard")
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		p.away["odd"] = "no such device"
		var ill atomic.Bool
		ill.Store(true)
		o := p.options(first)
		healths(&o, func(string) func(context.Context) error {
			return func(context.Context) error {
				if ill.Load() {
					return errors.New("the switch is off")
				}
				return nil
			}
		})
		o.Undo, o.Log = guard.Dial(there), agent.NewLog(100)
		o.Logger = slog.New(o.Log.Handler(slog.LevelInfo))
		d := p.door(&o)
		p.run(o)
		time.Sleep(2500 * time.Millisecond)
		if got := p.unwell(p.conn(first)); len(got) != 2 {
			t.Errorf("the site is told %q", got)
		}
		if err := os.Symlink(served, there); err != nil {
			t.Fatal(err)
		}
		ill.Store(false)
		p.mu.Lock()
		delete(p.away, "odd")
		p.mu.Unlock()
		time.Sleep(2 * time.Second)
		if got := p.unwell(p.conn(first)); len(got) != 0 {
			t.Errorf("2 s after all has begun, the site is told %q", got)
		}
		if got := p.serves(p.conn(first)); got != "v1: [lab odd], trust 1" {
			t.Error(got)
		}
		text, _ := d.ask("GET", "/logs?n=100", nil)
		for _, what := range []string{"guard is unavailable", "guard is available again", "lab is unavailable", "lab is available again"} {
			if n := strings.Count(text, what); n != 1 {
				t.Errorf("%s is said %d times:\n%s", what, n, text)
			}
		}
	})
}

// The site is told when the guard of a node does not answer, and the log says so once.
func TestGuardIsMissed(t *testing.T) {
	served, there := guarded(t), filepath.Join(t.TempDir(), "guard")
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		o := p.options(first)
		o.Undo, o.Log = guard.Dial(there), agent.NewLog(100)
		o.Logger = slog.New(o.Log.Handler(slog.LevelInfo))
		d := p.door(&o)
		p.run(o)
		time.Sleep(time.Minute)
		if got := p.unwell(p.conn(first)); len(got) != 1 || !strings.HasPrefix(got[0], "guard: open: the guard of this node cannot be reached at "+there) {
			t.Errorf("the site is told %q", got)
		}
		if s := d.status(); s.Guard.State != agent.AbsentGuard || s.Health != agent.Degraded {
			t.Errorf("%s, %+v", s.Health, s.Guard)
		}
		if err := os.Symlink(served, there); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := p.unwell(p.conn(first)); len(got) != 0 {
			t.Errorf("the site is told %q", got)
		}
		if s := d.status(); s.Guard.State != agent.IdleGuard || s.Health != agent.OK {
			t.Errorf("%s, %+v", s.Health, s.Guard)
		}
		text, _ := d.ask("GET", "/logs?n=100", nil)
		if strings.Count(text, "guard is unavailable") != 1 || strings.Count(text, "guard is available again") != 1 {
			t.Errorf("the log is\n%s", text)
		}

		// The next time, too, it is asked again soon.
		if err := os.Remove(there); err != nil {
			t.Fatal(err)
		}
		for begin := time.Now(); len(p.unwell(p.conn(first))) == 0; time.Sleep(100 * time.Millisecond) {
			if time.Since(begin) > time.Minute {
				t.Fatal("that it is gone is not noticed")
			}
		}
		if err := os.Symlink(served, there); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond)
		if got := p.unwell(p.conn(first)); len(got) != 0 {
			t.Errorf("the site is told %q", got)
		}
	})
}

// What is carried out is listed while it lasts, and counted when it has ended.
func TestTasksAreListed(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		o := p.options(first)
		d := p.door(&o)
		p.world.Hook = func(op string, at fake.Moment, c providers.Call) {
			if op == "create" && at == fake.Before {
				time.Sleep(time.Minute)
			}
		}
		p.run(o)
		r := p.remote(p.conn(first))
		if _, err := remote.Beat(t.Context(), r, 1); err != nil {
			t.Fatal(err)
		}
		set, err := remote.Open(t.Context(), r, []providers.Need{{Scope: "n1", Provider: "lab"}})
		if err != nil {
			t.Fatal(err)
		}
		served, _, _ := set.Find("n1", "lab.switch")
		create := func(key string) error {
			ref := schema.Ref{Scope: "n1", Kind: "lab.switch", Name: "s1"}
			return served.Kind.Create(t.Context(), providers.Call{Ref: ref, ID: "s1", Want: schema.Object{}, Mark: providers.Mark{Site: siteID, Ref: ref, Incarnation: 1}, Key: key, Epoch: 1})
		}
		began, made := time.Now(), make(chan error, 1)
		go func() { made <- create("k1") }()
		synctest.Wait()
		time.Sleep(time.Second)
		s := d.status()
		if len(s.Tasks.Open) != 1 || s.Tasks.Open[0] != (agent.Task{Key: "k1", Kind: "lab.switch", Ref: "n1/lab.switch/s1", Action: "create", Since: s.Tasks.Open[0].Since}) || !s.Tasks.Open[0].Since.Equal(began) {
			t.Errorf("%+v", s.Tasks)
		}
		if err := <-made; err != nil {
			t.Fatal(err)
		}
		if err := create("k2"); err == nil {
			t.Error("it was created twice")
		}
		if s := d.status(); len(s.Tasks.Open) != 0 || s.Tasks.Done != 1 || s.Tasks.Failed != 1 {
			t.Errorf("%+v", s.Tasks)
		}
	})
}

// Whoever may ask can have the certificate renewed at once; why that fails is told, and kept until it succeeds.
func TestRenewsWhenAsked(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		o, off := p.options(first), atomic.Bool{}
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			if off.Load() {
				return nil, errors.New("no route to host")
			}
			return p.dial(ctx, address)
		}
		d := p.door(&o)
		p.run(o)
		before := d.status().Certificate
		off.Store(true)
		if text, code := d.ask("POST", "/renew", nil); code != http.StatusBadGateway || !strings.Contains(text, "no route to host") {
			t.Errorf("%d %s", code, text)
		}
		if s := d.status(); !strings.Contains(s.Certificate.Error, "no route to host") || s.Certificate.Serial != before.Serial || s.Health != agent.OK {
			t.Errorf("%s, %+v", s.Health, s.Certificate)
		}
		off.Store(false)
		time.Sleep(time.Minute)
		text, code := d.ask("POST", "/renew", nil)
		var c agent.Certificate
		if err := json.Unmarshal([]byte(text), &c); err != nil || code != http.StatusOK || c.Serial == before.Serial || c.Error != "" || !c.NotAfter.After(before.NotAfter) {
			t.Errorf("%d %s: %v", code, text, err)
		}
		time.Sleep(time.Minute)
		if got := p.conn(first).State().PeerCertificates[0].SerialNumber.Text(16); got != c.Serial {
			t.Errorf("it is connected with %s, want %s", got, c.Serial)
		}
		if text, code := d.ask("GET", "/renew", nil); code != http.StatusMethodNotAllowed {
			t.Errorf("%d %s", code, text)
		}
	})
}

// A socket that is misused does not hold up the agent.
func TestDoorIsNarrow(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		o := p.options(first)
		o.Log = agent.NewLog(10)
		d := p.door(&o)
		end := p.run(o)
		for what, want := range map[string]int{"/": 404, "/logs?n=-1": 400, "/logs?n=x": 400, "/logs?follow=maybe": 400, "/logs?format=xml": 400} {
			if text, code := d.ask("GET", what, nil); code != want {
				t.Errorf("%s: %d %s", what, code, text)
			}
		}
		if text, code := d.ask("POST", "/renew", strings.NewReader("a body")); code != 400 {
			t.Errorf("%d %s", code, text)
		}
		var ends []func()
		for range 4 {
			r, end := d.send("GET", "/logs?follow=true", nil)
			if r.StatusCode != 200 {
				t.Fatal(r.Status)
			}
			ends = append(ends, end)
		}
		fifth, leave := d.send("GET", "/logs?follow=true", nil)
		if leave(); fifth.StatusCode != 503 {
			t.Errorf("a fifth follower: %s", fifth.Status)
		}
		d.status() // goes on
		ends[0]()
		synctest.Wait()
		r, more := d.send("GET", "/logs?follow=true", nil)
		if r.StatusCode != 200 {
			t.Error(r.Status)
		}
		// Those who connect and say nothing are left.
		var idle []net.Conn
		for range 80 {
			c, err := d.l.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			idle = append(idle, c)
		}
		time.Sleep(time.Minute)
		d.status()
		for _, c := range idle {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("one who says nothing is answered")
			}
			_ = c.Close()
		}
		end() // with a follower that does not leave
		for _, end := range append(ends[1:], more) {
			end()
		}
	})
}

// The newest records are read in the order in which they came, as text or JSON, and followed.
func TestLogs(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		o := p.options(first)
		o.Log = agent.NewLog(3)
		o.Logger = slog.New(o.Log.Handler(slog.LevelInfo))
		d := p.door(&o)
		p.run(o)
		p.conn(first)
		log := o.Logger.With("node", "n1").WithGroup("task")
		log.Debug("too low")
		for i := range 5 {
			log.Info("done", "n", i, "took", 1500*time.Millisecond)
		}
		text, _ := d.ask("GET", "/logs", nil)
		if lines := strings.Split(strings.TrimSpace(text), "\n"); len(lines) != 3 || !strings.Contains(lines[0], "level=INFO msg=done node=n1 task.n=2 task.took=1.5s") || !strings.Contains(lines[2], "task.n=4") {
			t.Errorf("%s", text)
		}
		if text, _ = d.ask("GET", "/logs?n=1&format=json", nil); strings.Count(text, "\n") != 1 || !strings.Contains(text, `"task":{"n":4,"took":"1.5s"}`) {
			t.Errorf("%s", text)
		}
		r, end := d.send("GET", "/logs?n=1&follow=true", nil)
		defer end()
		in := bufio.NewScanner(r.Body)
		for i := 4; i < 20; i++ {
			if !in.Scan() || !strings.Contains(in.Text(), fmt.Sprintf("task.n=%d ", i)) {
				t.Fatalf("%s, %v", in.Text(), in.Err())
			}
			time.Sleep(time.Minute)
			log.Info("done", "n", i+1, "took", time.Second)
		}
	})
}

// What a log keeps is bounded.
func TestLogIsBounded(t *testing.T) {
	placed(t, trust.Options{}, func(t *testing.T, p *place) {
		p.enrol()
		o := p.options(first)
		o.Log = agent.NewLog(1000)
		log := slog.New(o.Log.Handler(slog.LevelInfo))
		d := p.door(&o)
		p.run(o)
		for i := range 200 {
			log.Info("large", "i", i, "text", strings.Repeat("x", 60<<10))
		}
		log.Info(strings.Repeat("m", 1<<20))
		log.Info("huge", "text", strings.Repeat("x", 1<<20))
		text, _ := d.ask("GET", "/logs?n=1000", nil)
		if len(text) > 2<<20 || !strings.Contains(text, "i=199") || strings.Contains(text, "i=10 ") || !strings.HasSuffix(text, "level=INFO msg=huge\n") {
			t.Errorf("%d bytes, that end with %.100s", len(text), text[max(0, len(text)-100):])
		}
	})
}

// A lab is an agent with a real socket.
type lab struct {
	*place
	o     agent.Options
	local *agent.Local
}

func newLab(t *testing.T) *lab {
	p := newPlace(t, trust.Options{})
	dir, err := os.MkdirTemp("", "agent") // its path is short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p.dir = filepath.Join(dir, "id")
	p.enrol()
	l := &lab{p, p.options(first), agent.AskLocal(p.dir)}
	l.o.Local, l.o.Log = agent.ListenLocal, agent.NewLog(10)
	l.o.Logger = slog.New(l.o.Log.Handler(slog.LevelInfo))
	return l
}

// start runs the agent until end is called, and waits until it answers.
func (l *lab) start() (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- agent.Run(ctx, l.o) }()
	end = sync.OnceFunc(func() {
		stop()
		<-over
	})
	l.t.Cleanup(end)
	for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // between two checks for what happens elsewhere
		s, err := l.local.Status(l.t.Context())
		if err == nil && s.Servers[0].Connected {
			return end
		}
		if time.Now().After(limit) {
			l.t.Fatalf("it does not answer: %+v, %v", s, err)
		}
	}
}

// The socket is its owner's alone, replaces a stale one, and is gone with the agent; a second agent does not touch it.
func TestSocket(t *testing.T) {
	l := newLab(t)
	path := filepath.Join(l.dir, agent.SocketName)
	var away *agent.AwayError
	if _, err := l.local.Status(t.Context()); !errors.As(err, &away) || away.Path != path || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none runs: %v", err)
	}
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.local.Status(t.Context()); !errors.As(err, &away) {
		t.Errorf("one was killed: %v", err)
	}
	end := l.start()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || info.Mode().Type() != fs.ModeSocket {
		t.Errorf("%v, %v", info, err)
	}
	if err := agent.Run(t.Context(), l.o); !errors.Is(err, files.ErrInUse) {
		t.Errorf("another one runs: %v", err)
	}
	if s, err := l.local.Status(t.Context()); err != nil || s.Node != "n1" {
		t.Errorf("%+v, %v", s, err)
	}
	if c, err := l.local.Renew(t.Context()); err != nil || c.Serial == "" {
		t.Errorf("%+v, %v", c, err)
	}
	var log bytes.Buffer
	if err := l.local.Logs(t.Context(), &log, 10, false, false); err != nil || !strings.Contains(log.String(), "certificate renewed") {
		t.Errorf("%s, %v", &log, err)
	}
	if err := l.local.Logs(t.Context(), &log, -1, false, false); err == nil || !strings.Contains(err.Error(), "want a number of records") {
		t.Error(err)
	}
	end()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
}

// What is in the way of the socket is not removed, and does not keep the agent from its work.
func TestSocketIsTaken(t *testing.T) {
	l := newLab(t)
	path := filepath.Join(l.dir, agent.SocketName)
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.ListenLocal(l.dir); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Error(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- agent.Run(ctx, l.o) }()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // between two checks for what happens elsewhere
		l.mu.Lock()
		n := l.count
		l.mu.Unlock()
		if n > 0 {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("it never came")
		}
	}
	stop()
	<-over
	if b, err := os.ReadFile(path); string(b) != "mine" {
		t.Errorf("%s, %v", b, err)
	}
}
