package outside

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

// The trace of whoever asks for the runs.
const (
	callersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	callersSpan  = "00f067aa0ba902b7"
)

// traces: the OpenTelemetry collector's own receiver takes the traces of runs, by both of its protocols, and they are whole.
func traces(t *testing.T, program string) {
	for _, c := range []struct{ config, protocol string }{{"grpc", "grpc"}, {"http", "http/protobuf"}} {
		t.Run(c.config, func(t *testing.T) {
			sink, endpoint := receive(t, c.config)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+endpoint)
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", c.protocol)
			t.Setenv("TRACEPARENT", "00-"+callersTrace+"-"+callersSpan+"-01")
			s := openSite(t, program)
			s.run("apply", "-auto-approve", "site.json")
			applied(t, one(t, sink))
			sink.Reset()
			s.write("fail.json", []byte(document(`"prod": {"tenant": "acme", "labels": {"env": "test"}}, "old": {"tenant": "acme"}, "new": {"tenant": "apex"}`)))
			s.write("world.json", []byte(strings.Replace(s.read("world.json"), "{", `{"faults": [{"op": "create", "ref": "site/carbide.vpc/new", "class": "invalid"}],`, 1)))
			s.ended(3, "apply", "-auto-approve", "fail.json")
			undone(t, one(t, sink))
		})
	}
}

// receive starts a receiver of the collector for one protocol, configured as in its file, and returns what it passes on.
func receive(t *testing.T, protocol string) (*consumertest.TracesSink, string) {
	t.Helper()
	factory, sink, endpoint := otlpreceiver.NewFactory(), &consumertest.TracesSink{}, free(t)
	config := factory.CreateDefaultConfig()
	err := confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{protocol: map[string]any{"endpoint": endpoint}}}).Unmarshal(config)
	if err != nil {
		t.Fatal(err)
	}
	r, err := factory.CreateTraces(t.Context(), receivertest.NewNopSettings(factory.Type()), config, sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return sink, endpoint
}

// free returns an address on which nothing listens: the receiver does not say which port it has got.
func free(t *testing.T) string {
	t.Helper()
	for range 10 { // hosts of 127.0.0.0/8 that nobody else uses, and a port that the kernel does not hand out
		l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:7378", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return l.Addr().String()
	}
	t.Fatal("no address of 127.0.0.0/8 can be listened on")
	return ""
}

// A run is what was received of one.
type run struct {
	resource pcommon.Map
	span     ptrace.Span
	steps    map[string]ptrace.Span // by their names and resources
}

// one returns the only run that was received.
func one(t *testing.T, sink *consumertest.TracesSink) run {
	t.Helper()
	r := run{steps: map[string]ptrace.Span{}}
	found := false
	for _, td := range sink.AllTraces() {
		for _, rs := range td.ResourceSpans().All() {
			r.resource = rs.Resource().Attributes()
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					if strings.HasPrefix(s.Name(), "run ") {
						if found {
							t.Fatalf("there is another run: %s", s.Name())
						}
						r.span, found = s, true
						continue
					}
					name := s.Name() + " " + of(s, "converge.resource")
					if _, twice := r.steps[name]; twice {
						t.Errorf("%s has two spans", name)
					}
					r.steps[name] = s
				}
			}
		}
	}
	if !found {
		t.Fatalf("no run was received, but %d spans", sink.SpanCount())
	}
	if r.span.ParentSpanID().String() != callersSpan {
		t.Errorf("the parent of the run is %s, want %s", r.span.ParentSpanID(), callersSpan)
	}
	for name, s := range r.steps {
		if s.ParentSpanID() != r.span.SpanID() || s.TraceID() != r.span.TraceID() || s.TraceID().String() != callersTrace {
			t.Errorf("%s is below %s in trace %s, want below %s in %s", name, s.ParentSpanID(), s.TraceID(), r.span.SpanID(), callersTrace)
		}
		if s.StartTimestamp() < r.span.StartTimestamp() || s.EndTimestamp() > r.span.EndTimestamp() || s.EndTimestamp() < s.StartTimestamp() {
			t.Errorf("%s is not within the time of its run", name)
		}
		if id := of(s, "converge.run"); id == "" || id != of(r.span, "converge.run") {
			t.Errorf("%s is of run %q, want %q", name, id, of(r.span, "converge.run"))
		}
	}
	return r
}

// of returns an attribute as text; empty when the span does not have it.
func of(s ptrace.Span, name string) string {
	v, ok := s.Attributes().Get(name)
	if !ok {
		return ""
	}
	return v.AsString()
}

// applied: a span for the run, and one for each of its steps.
func applied(t *testing.T, r run) {
	t.Helper()
	if name, ok := r.resource.Get("service.name"); !ok || name.Str() != "converge" {
		t.Errorf("the resource is %v", r.resource.AsRaw())
	}
	if r.span.Name() != "run apply" || of(r.span, "converge.outcome") != "applied" || of(r.span, "converge.steps") != "4" || of(r.span, "converge.site") != "fra1" ||
		r.span.Status().Code() == ptrace.StatusCodeError {
		t.Errorf("the run is %s %v %v", r.span.Name(), r.span.Attributes().AsRaw(), r.span.Status().Code())
	}
	if len(r.steps) != 4 {
		t.Errorf("%d steps have spans, want 4", len(r.steps))
	}
	for _, name := range []string{"tenant site/carbide.tenant/acme", "tenant site/carbide.tenant/apex", "vpc site/carbide.vpc/prod", "vpc site/carbide.vpc/old"} {
		s, ok := r.steps["create carbide."+name]
		if !ok {
			t.Errorf("the creation of the %s has no span: %v", name, r.steps)
			continue
		}
		if of(s, "converge.action") != "create" || of(s, "converge.outcome") != "done" || of(s, "converge.undo") != "false" || of(s, "converge.step") == "" {
			t.Errorf("%s: %v", name, s.Attributes().AsRaw())
		}
	}
}

// undone: the step that failed says so, and what was undone has a span of its own.
func undone(t *testing.T, r run) {
	t.Helper()
	if of(r.span, "converge.outcome") != "reverted" || r.span.Status().Code() != ptrace.StatusCodeError {
		t.Errorf("the run is %v %v", r.span.Attributes().AsRaw(), r.span.Status().Code())
	}
	failed, ok := r.steps["create carbide.vpc site/carbide.vpc/new"]
	if !ok || of(failed, "converge.outcome") != "failed" || of(failed, "converge.class") != "invalid" || failed.Status().Code() != ptrace.StatusCodeError {
		t.Errorf("the step that failed: %v", r.steps)
	}
	undo, ok := r.steps["undo update carbide.vpc site/carbide.vpc/prod"]
	if !ok || of(undo, "converge.undo") != "true" || of(undo, "converge.outcome") != "done" {
		t.Errorf("the step that was undone: %v", r.steps)
	}
}
