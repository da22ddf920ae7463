package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/schema"
	"converge.dev/converge/site/api"
	"converge.dev/converge/state"
)

// pipes is a listener without a network.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// dial connects, and returns a function that asks for the health of the process on the connection, which it leaves open.
func (p *pipes) dial() (ask func() error, hangUp func()) {
	here, there := net.Pipe()
	p.conns <- there
	in := bufio.NewReader(here)
	return func() error {
		if _, err := io.WriteString(here, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err
		}
		res, err := http.ReadResponse(in, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
		}
		return err
	}, func() { here.Close() }
}

// As many connections as are allowed keep out no more than the ones beyond, which are closed at once, and they end when nothing is
// asked on them for a while.
func TestManyConnections(t *testing.T) {
	b := newBed(t)
	h := b.Handler()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		ctx, stop := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() {
			if err := b.Serve(ctx, p, h); err != nil {
				t.Errorf("%v", err)
			}
		})
		defer running.Wait()
		defer stop()
		first, hangUp := p.dial()
		if err := first(); err != nil {
			t.Fatal(err)
		}
		for range api.MaxConns - 1 {
			ask, _ := p.dial()
			if err := ask(); err != nil {
				t.Fatal(err)
			}
		}
		refused := func() bool {
			ask, hangUp := p.dial()
			defer hangUp()
			return ask() != nil
		}
		for range 2 {
			if !refused() {
				t.Error("one more is served")
			}
		}
		if err := first(); err != nil {
			t.Errorf("one that is there is no longer served: %v", err)
		}
		hangUp()
		synctest.Wait()
		if refused() {
			t.Error("none is served after one has gone")
		}
		synctest.Wait()
		for range api.MaxConns {
			p.dial()
		}
		time.Sleep(21 * time.Second)
		synctest.Wait()
		if refused() {
			t.Error("connections on which nothing is asked are kept")
		}
	})
}

// A request for which the program fails is answered, the log says how, and the next one is served.
func TestPanic(t *testing.T) {
	b := newBed(t)
	b.keep()
	b.commit(b.Store.RecordOp(state.Record{Ref: schema.Ref{Scope: "site", Kind: "far.net", Name: "panics"}, ID: "1"}))
	res, body := b.get("/v1/resources")
	if res.StatusCode != http.StatusInternalServerError || res.Header.Get("Content-Type") != "application/problem+json" || strings.Contains(body, "a bug") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if log := b.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "a bug with ***") || strings.Contains(log, scrubed) {
		t.Errorf("%s", log)
	}
	if res, body := b.get("/v1/resources?after=site/far.net/panics"); res.StatusCode != http.StatusOK {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// The number of a step that no run has is refused, or the page is empty.
func TestStepOutOfRange(t *testing.T) {
	b := newBed(t)
	b.keep()
	runs, _ := into[api.RunsPage](b, "/v1/runs")
	for after, want := range map[string]int{
		"9223372036854775807": 400, "9223372036854775806": 400, "9223372036854775808": 400, "2147483647": 400, "-1": 400, "-9223372036854775808": 400, "2147483646": 200,
	} {
		res, body := b.get("/v1/runs/" + runs.Runs[0].ID + "?after=" + after)
		if res.StatusCode != want {
			t.Errorf("after %s: %d %s", after, res.StatusCode, body)
		}
	}
}

// While records are read slowly, who wants them too is told to come again soon, and what says how the site stands is served.
func TestSlowRecords(t *testing.T) {
	b := newBed(t)
	b.keep()
	h := b.Handler()
	summaries := func() {
		t.Helper()
		for _, path := range []string{"/readyz", "/state", "/v1/site"} {
			if res, body := ask(h, "GET", path); res.StatusCode != http.StatusOK {
				t.Fatalf("%s: %d %s", path, res.StatusCode, body)
			}
		}
	}
	summaries() // what they need is known before the store becomes slow
	b.block = make(chan struct{})
	results := make(chan string, api.MaxRequests)
	for range api.MaxRequests {
		go func() {
			res, _ := ask(h, "GET", "/v1/resources")
			results <- fmt.Sprint(res.StatusCode, " ", res.Header.Get("Retry-After"))
		}()
	}
	summaries()
	for range api.MaxRequests - 1 { // while one of them reads
		if got := <-results; got != "503 1" {
			t.Errorf("%s", got)
		}
	}
	close(b.block)
	if got := <-results; got != "200 " {
		t.Errorf("%s", got)
	}
}
