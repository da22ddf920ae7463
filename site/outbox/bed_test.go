package outbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/site/outbox"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

var fra1 = schema.Site{Name: "fra1", ID: "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"}

// A cloud is the receiver of events. It lives in a bubble, without a network: it is an [http.RoundTripper].
type cloud struct {
	mu     sync.Mutex
	got    []received
	answer func(n int, e received) (status int, header http.Header, err error) // to the request with this number, from 1; nil: 204
	asked  int
}

// A received is an event as it came.
type received struct {
	ID, Type, Subject, Sequence, Source, DataSchema, TraceParent, Site string
	Dropped                                                            int64
	Data                                                               json.RawMessage
	SpecVersion                                                        string
	Time                                                               time.Time
	auth                                                               string
	at                                                                 time.Time // of arrival
}

func (c *cloud) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var e received
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, err
	}
	e.auth, e.at = r.Header.Get("Authorization"), time.Now()
	c.mu.Lock()
	c.asked++
	n, answer := c.asked, c.answer
	c.mu.Unlock()
	status, header := http.StatusNoContent, http.Header{}
	if answer != nil {
		if status, header, err = answer(n, e); errors.Is(err, errHang) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
	}
	if (err == nil || errors.Is(err, errLost)) && status/100 == 2 {
		c.mu.Lock()
		c.got = append(c.got, e)
		c.mu.Unlock()
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

var (
	errHang  = errors.New("it hangs")
	errLost  = errors.New("its answer is lost")
	errReset = errors.New("connection reset by peer")
)

// events returns what has come so far.
func (c *cloud) events() []received {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got)
}

// first returns the events without those that have come before, and fails when one came with another content.
func first(t interface{ Errorf(string, ...any) }, all []received) (events []received) {
	seen := map[string]received{}
	for _, e := range all {
		was, ok := seen[e.ID]
		if !ok {
			events = append(events, e)
			seen[e.ID] = e
		} else if was.Type != e.Type || was.Subject != e.Subject || string(was.Data) != string(e.Data) || was.Sequence != e.Sequence || !was.Time.Equal(e.Time) {
			t.Errorf("the event %s came again and is another one:\n%+v\n%+v", e.ID, was, e)
		}
	}
	return events
}

// subjects returns the types and subjects of events of a kind, as lines.
func subjects(events []received, kinds ...string) string {
	var lines []string
	for _, e := range events {
		if kind := strings.TrimPrefix(e.Type, "dev.converge."); len(kinds) == 0 || slices.Contains(kinds, kind) {
			lines = append(lines, kind+" "+e.Subject)
		}
	}
	return strings.Join(lines, "\n")
}

// A bed is a store and a cloud.
type bed struct {
	*testing.T
	kv    *mem.KV
	store *state.Store // of others than the outbox
	cloud *cloud
	log   *bytes.Buffer

	mu    sync.Mutex
	nodes []site.NodeStatus
}

func newBed(t *testing.T) *bed {
	b := &bed{T: t, kv: mem.New(mem.Options{}), cloud: &cloud{}, log: &bytes.Buffer{}}
	b.store = state.New(b.kv, fra1.Name)
	return b
}

func (b *bed) options() outbox.Options {
	return outbox.Options{
		Site: fra1, Store: b.store, Webhook: "https://cloud.example/events?key=" + canary, Version: "test", Transport: b.cloud,
		Nodes: func() []site.NodeStatus {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.Clone(b.nodes)
		},
		Node:      func(name string) any { return map[string]any{"name": name} },
		MaskDrift: func(r *drift.Report) *drift.Report { return r },
		Scrub:     func(text string) string { return strings.ReplaceAll(text, "hunter2", "(hidden)") },
		Logger:    slog.New(slog.NewTextHandler(&locked{w: b.log, mu: &b.mu}, nil)),
	}
}

type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// logged returns what was logged so far.
func (b *bed) logged() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.String()
}

func (b *bed) new(change func(*outbox.Options)) *outbox.Outbox {
	b.Helper()
	o := b.options()
	if change != nil {
		change(&o)
	}
	box, err := outbox.New(o)
	if err != nil {
		b.Fatal(err)
	}
	return box
}

// run runs an outbox until the function that it returns is called, and waits until it has nothing to do.
func (b *bed) run(box *outbox.Outbox) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { box.Run(ctx) })
	synctest.Wait()
	return func() {
		cancel()
		running.Wait()
	}
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A run that has ended, in the store.
func ended(i int, change func(*state.Run)) state.Run {
	at := time.Now().UTC()
	r := state.Run{ID: fmt.Sprintf("run-%04d", i), Op: "apply", Status: state.RunApplied, By: "ada@lab", Started: at, Ended: &at, Steps: 1, Done: 1}
	if change != nil {
		change(&r)
	}
	return r
}

func (b *bed) put(runs ...state.Run) {
	b.Helper()
	for _, r := range runs {
		if _, err := b.store.Commit(context.Background(), nil, []state.Op{b.store.PutRunOp(r)}); err != nil {
			b.Fatal(err)
		}
	}
}

// say publishes a status as the site agent does.
func (b *bed) say(box *outbox.Outbox, was, is site.Status) {
	b.Helper()
	with, then := box.Said(was, is)
	body, err := json.Marshal(is)
	if err == nil {
		err = b.store.Publish(context.Background(), "status", body, with...)
	}
	if err != nil {
		b.Fatal(err)
	}
	then()
}

// waits returns the events that are kept.
func (b *bed) waits() []state.Outgoing {
	b.Helper()
	events, err := b.store.Outbox(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	return events
}

func (b *bed) delivery() state.Delivery {
	b.Helper()
	d, err := b.store.Delivery(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	return d
}

const canary = "canary-7c0e9b1f"
