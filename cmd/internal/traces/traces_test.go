package traces_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/cmd/internal/traces"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

const (
	trace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	caller = "00f067aa0ba902b7"
	parent = "00-" + trace + "-" + caller + "-01"
	canary = "canary-of-an-error"
)

// A receiver takes spans, by gRPC or HTTP.
type receiver struct {
	collector.UnimplementedTraceServiceServer

	mu    sync.Mutex
	spans []*otlp.Span
	of    map[string]string // the resource
	raw   bytes.Buffer
}

// Export implements the service.
func (r *receiver) Export(_ context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	raw, err := proto.Marshal(in)
	if err != nil {
		return nil, err
	}
	r.raw.Write(raw)
	for _, rs := range in.GetResourceSpans() {
		r.of = attributes(rs.GetResource().GetAttributes())
		for _, ss := range rs.GetScopeSpans() {
			r.spans = append(r.spans, ss.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP is Export by HTTP.
func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	in := &collector.ExportTraceServiceRequest{}
	if err != nil || q.URL.Path != "/v1/traces" || proto.Unmarshal(body, in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, _ = r.Export(q.Context(), in)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// named returns the spans with a name.
func (r *receiver) named(name string) (list []*otlp.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if s.GetName() == name {
			list = append(list, s)
		}
	}
	return list
}

func attributes(list []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range list {
		m[kv.GetKey()] = text(kv.GetValue())
	}
	return m
}

func text(v *common.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_IntValue:
		return strconv.FormatInt(v.IntValue, 10)
	case *common.AnyValue_BoolValue:
		if v.BoolValue {
			return "true"
		}
		return "false"
	}
	return "?"
}

func open(t *testing.T, patience time.Duration, log io.Writer) *traces.Traces {
	t.Helper()
	tr, err := traces.Open(t.Context(), traces.Options{
		Env: os.Getenv, Site: "test", Version: "1.2.3", Parent: parent, Logger: slog.New(slog.NewTextHandler(log, nil)),
		Scrub: func(s string) string { return strings.ReplaceAll(s, canary, "***") }, Patience: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// A run is a span below that of the caller, and each step one below that of the run.
func TestRun(t *testing.T) {
	t.Setenv("OTEL_SERVICE_NAME", "site-agent")
	for name, start := range map[string]func(t *testing.T, r *receiver) string{
		"grpc": func(t *testing.T, r *receiver) string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			s := grpc.NewServer()
			collector.RegisterTraceServiceServer(s, r)
			go func() { _ = s.Serve(l) }()
			t.Cleanup(s.Stop)
			return "http://" + l.Addr().String()
		},
		"http/protobuf": func(t *testing.T, r *receiver) string {
			s := httptest.NewServer(r)
			t.Cleanup(s.Close)
			return s.URL
		},
	} {
		t.Run(strings.ReplaceAll(name, "/", "-"), func(t *testing.T) {
			r := &receiver{}
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", start(t, r))
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", name)
			tr := open(t, time.Minute, io.Discard)
			s := enginetest.New()
			e := s.Engine(func(o *engine.Options) { o.Emit = tr.Event })
			defer e.Close()
			p, err := e.Plan(t.Context(), s.Document(t, map[string]string{"site/far.net/prod": `{"cidr": "10.0.0.0/16"}`, "site/far.subnet/a": `{"cidr": "10.0.1.0/24", "net": "prod"}`}), plan.Options{})
			if err != nil {
				t.Fatal(err)
			}
			res, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
			if err != nil {
				t.Fatal(err)
			}
			tr.Close()
			runs, nets, subnets := r.named("run apply"), r.named("create far.net"), r.named("create far.subnet")
			if len(runs) != 1 || len(nets) != 1 || len(subnets) != 1 || len(r.spans) != 3 {
				t.Fatalf("%d runs, %d nets and %d subnets in %d spans", len(runs), len(nets), len(subnets), len(r.spans))
			}
			run := runs[0]
			if got := hex.EncodeToString(run.GetParentSpanId()); got != caller {
				t.Errorf("the parent of the run is %s, want %s", got, caller)
			}
			for _, s := range r.spans {
				if got := hex.EncodeToString(s.GetTraceId()); got != trace {
					t.Errorf("%s is in trace %s, want %s", s.GetName(), got, trace)
				}
				if s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() || s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR {
					t.Errorf("%v", s)
				}
			}
			for _, step := range []*otlp.Span{nets[0], subnets[0]} {
				if !bytes.Equal(step.GetParentSpanId(), run.GetSpanId()) {
					t.Errorf("the parent of %s is not the run", step.GetName())
				}
			}
			has(t, run, map[string]string{traces.Run: res.Run.ID, traces.Site: "test", traces.Steps: "2", traces.Outcome: "applied"})
			has(t, nets[0], map[string]string{traces.Run: res.Run.ID, traces.Resource: "site/far.net/prod", traces.Kind: "far.net", traces.Action: "create", traces.Undo: "false", traces.Outcome: "done"})
			if r.of["service.name"] != "site-agent" || r.of["service.version"] != "1.2.3" {
				t.Errorf("resource %v", r.of)
			}
		})
	}
}

func has(t *testing.T, s *otlp.Span, want map[string]string) {
	t.Helper()
	got := attributes(s.GetAttributes())
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s: %s is %q, want %q", s.GetName(), name, got[name], value)
		}
	}
}

// What fails, what is undone, and what never ends is marked as that; secrets are in none of it.
func TestFailures(t *testing.T) {
	r := &receiver{}
	s := httptest.NewServer(r)
	defer s.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", s.URL+"/v1/traces")
	tr := open(t, time.Minute, io.Discard)
	step := func(id int) *plan.Step {
		return &plan.Step{ID: id, Action: plan.Update, Ref: schema.Ref{Scope: "site", Kind: "far.net", Name: "a"}}
	}
	bad := errors.New("refused " + canary)
	for _, e := range []event.Event{
		event.StepStarted{Step: step(9)}, // outside of a run
		event.RunStarted{Run: state.Run{ID: "r1", Op: "apply"}},
		event.StepStarted{Step: step(1)}, event.StepDone{Step: step(1)},
		event.StepStarted{Step: step(2)}, event.StepProgress{Step: step(2), Phase: event.Retrying, Detail: canary, Attempt: 2},
		event.StepFailed{Step: step(2), Class: providers.Denied, Err: bad},
		event.RevertStarted{Cause: bad, Steps: 1},
		event.StepStarted{Step: step(1), Undo: true}, event.StepDone{Step: step(1), Undo: true},
		event.RunEnded{Run: state.Run{ID: "r1", Status: state.RunReverted, Message: canary}},
		event.RunStarted{Run: state.Run{ID: "r2", Op: "rollback"}},
		event.RunEnded{Run: state.Run{ID: "r2", Status: state.RunReverted}, Asked: true},
		event.RunStarted{Run: state.Run{ID: "r3", Op: "destroy"}},
		event.StepStarted{Step: step(3)},
	} {
		tr.Event(e)
	}
	tr.Close()
	tr.Event(event.RunEnded{}) // too late, and harmless
	failed := func(s *otlp.Span) bool { return s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR }
	if len(r.spans) != 7 {
		t.Fatalf("%d spans: %v", len(r.spans), r.spans)
	}
	updates := r.named("update far.net")
	for _, s := range updates {
		a := attributes(s.GetAttributes())
		if want := map[string]string{"1": "done", "2": "failed", "3": "unknown"}[a[traces.Step]]; a[traces.Outcome] != want || failed(s) != (want != "done") {
			t.Errorf("%v: want %s", s, want)
		}
		if a[traces.Step] == "2" {
			if a[traces.Class] != string(providers.Denied) || s.GetStatus().GetMessage() != "refused ***" || len(s.GetEvents()) != 1 || s.GetEvents()[0].GetName() != "retrying" {
				t.Errorf("%v", s)
			}
		}
	}
	has(t, r.named("undo update far.net")[0], map[string]string{traces.Undo: "true", traces.Outcome: "done"})
	for name, want := range map[string]struct {
		outcome string
		failed  bool
	}{"run apply": {"reverted", true}, "run rollback": {"reverted", false}, "run destroy": {"unknown", true}} {
		s := r.named(name)[0]
		if has(t, s, map[string]string{traces.Outcome: want.outcome}); failed(s) != want.failed {
			t.Errorf("%v", s)
		}
	}
	if strings.Contains(r.raw.String(), canary) {
		t.Error("a secret was sent")
	}
}

// Where nothing says where to, there are no traces; what cannot be understood is an error.
func TestOpen(t *testing.T) {
	for _, c := range []struct {
		env    map[string]string
		wanted bool
		err    string
	}{
		{nil, false, ""},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, true, ""},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, true, ""},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}, false, ""},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, false, ""},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, true, "http/json"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "True"}, false, ""},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4318"}, true, "OTEL_EXPORTER_OTLP_ENDPOINT: want"},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "localhost:4318"}, true, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: want"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://"}, true, "OTEL_EXPORTER_OTLP_ENDPOINT: want"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS": "key"}, true, "OTEL_EXPORTER_OTLP_HEADERS: want"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS": "a b=c"}, true, "OTEL_EXPORTER_OTLP_HEADERS: want"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS": "a=b,"}, true, ""},
	} {
		tr, err := traces.Open(t.Context(), traces.Options{Env: func(name string) string { return c.env[name] }})
		if (tr != nil) != (c.wanted && c.err == "") || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v: %v, %v", c.env, tr, err)
		}
		if tr == nil { // as a command uses it
			tr.Event(event.RunStarted{})
			tr.Event(event.RunEnded{})
		}
		tr.Close()
	}
}

// A receiver that is down, or takes and never answers, holds nothing up: a run ends as without, and closing is bounded.
func TestDown(t *testing.T) {
	hangs, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		once.Do(func() { close(hangs) })
		<-release
	}))
	defer s.Close()
	defer close(release)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	var log bytes.Buffer
	tr := open(t, time.Millisecond, &log)
	for range 10_000 { // more than are kept
		tr.Event(event.RunStarted{Run: state.Run{ID: "r"}})
		tr.Event(event.RunEnded{Run: state.Run{Status: state.RunApplied}})
	}
	<-hangs
	closed := make(chan struct{})
	go func() { defer close(closed); tr.Close() }()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("it does not close")
	}
	if !strings.Contains(log.String(), "not sent in time") {
		t.Errorf("%s", log.String())
	}
}

// That spans are refused is told once.
func TestRefused(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer s.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
	var log bytes.Buffer
	tr := open(t, time.Minute, &log)
	for range 3 {
		tr.Event(event.RunStarted{Run: state.Run{ID: "r"}})
		tr.Event(event.RunEnded{Run: state.Run{Status: state.RunApplied}})
	}
	tr.Close()
	if !strings.Contains(log.String(), "spans=3") {
		t.Errorf("it does not say how many spans were not sent:\n%s", log.String())
	}
	if n := strings.Count(log.String(), "cannot be sent"); n != 1 {
		t.Errorf("told %d times:\n%s", n, log.String())
	}
}

// Sizes that the SDK cannot use do not end the program: there are no traces then.
func TestSizes(t *testing.T) {
	for _, name := range []string{"OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(name, "-1")
			var log bytes.Buffer
			if tr := open(t, time.Millisecond, &log); tr != nil || !strings.Contains(log.String(), "there are no traces") {
				t.Errorf("%v\n%s", tr, log.String())
			}
		})
	}
}

// What the environment keeps secret is in no log and in no error, whatever is wrong with it or with the collector.
func TestSecretsOfEnvironment(t *testing.T) {
	const secret = "canary-of-the-environment"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, canary+" "+r.Header.Get("Key")+" "+strings.Repeat("x", 4<<10))
	}))
	defer s.Close()
	at := strings.TrimPrefix(s.URL, "http://")
	for name, env := range map[string]map[string]string{
		"headers":       {"OTEL_EXPORTER_OTLP_ENDPOINT": s.URL, "OTEL_EXPORTER_OTLP_HEADERS": "key=" + secret},
		"pair":          {"OTEL_EXPORTER_OTLP_ENDPOINT": s.URL, "OTEL_EXPORTER_OTLP_HEADERS": secret},
		"header name":   {"OTEL_EXPORTER_OTLP_ENDPOINT": s.URL, "OTEL_EXPORTER_OTLP_HEADERS": "a b" + secret + "=x"},
		"encoding":      {"OTEL_EXPORTER_OTLP_ENDPOINT": s.URL, "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "key=" + secret + "%zz"},
		"user":          {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://ada:" + secret + "@" + at},
		"bad endpoint":  {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://ada:" + secret + "@[::1"},
		"other":         {"OTEL_EXPORTER_OTLP_ENDPOINT": s.URL, "OTEL_EXPORTER_OTLP_TIMEOUT": secret},
		"attributes":    {"OTEL_EXPORTER_OTLP_ENDPOINT": s.URL, "OTEL_RESOURCE_ATTRIBUTES": secret},
		"attribute":     {"OTEL_EXPORTER_OTLP_ENDPOINT": s.URL, "OTEL_RESOURCE_ATTRIBUTES": "a=" + secret + "%zz"},
		"sampler's arg": {"OTEL_EXPORTER_OTLP_ENDPOINT": s.URL, "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "x"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range env {
				t.Setenv(k, v)
			}
			stderr, err := os.Create(t.TempDir() + "/stderr")
			if err != nil {
				t.Fatal(err)
			}
			defer stderr.Close()
			was := os.Stderr
			os.Stderr = stderr
			defer func() { os.Stderr = was }()
			var log bytes.Buffer
			tr, err := traces.Open(t.Context(), traces.Options{
				Env: os.Getenv, Site: "test", Version: "1", Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug - 10})),
				Scrub: func(s string) string { return strings.ReplaceAll(s, canary, "***") }, Patience: time.Minute,
			})
			tr.Event(event.RunStarted{Run: state.Run{ID: "r"}})
			tr.Event(event.RunEnded{Run: state.Run{Status: state.RunApplied}})
			tr.Close()
			printed, rerr := os.ReadFile(stderr.Name())
			if rerr != nil {
				t.Fatal(rerr)
			}
			all := log.String() + string(printed)
			if err != nil {
				all += err.Error()
			}
			if strings.Contains(all, secret) || strings.Contains(all, canary) || strings.Contains(all, strings.Repeat("x", 2<<10)) || len(printed) > 0 {
				t.Errorf("%s", all)
			}
		})
	}
}
