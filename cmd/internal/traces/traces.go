// Package traces shows runs as OpenTelemetry traces: one span for each run, below it one for each step, all of them below the span of
// whoever has asked for the run. They are sent by OTLP to where the standard environment variables say.
//
// A run never waits for that: what cannot be sent in time is dropped, and the log says so once.
package traces

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/state"
)

// The attributes of spans. Those of a run are on its steps, too.
const (
	Run      = "converge.run"      // its id
	Site     = "converge.site"     // its name
	Serial   = "converge.serial"   // of the document
	Steps    = "converge.steps"    // of the plan
	Step     = "converge.step"     // its number in the plan, as in the log
	Resource = "converge.resource" // SCOPE/KIND/NAME
	Kind     = "converge.kind"
	Action   = "converge.action"
	Undo     = "converge.undo"    // the step is undone
	Outcome  = "converge.outcome" // of a run its status; of a step done, failed or unknown
	Class    = "converge.class"   // of the error of a step
)

// unknown is the outcome of what had not ended when the traces were closed.
const unknown = "unknown"

// Names of environment variables; the exporters read more of them.
const (
	endpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	protocol       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	tracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	exporter       = "OTEL_TRACES_EXPORTER"
	disabled       = "OTEL_SDK_DISABLED"
	headers        = "OTEL_EXPORTER_OTLP_HEADERS"
	tracesHeaders  = "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
	resources      = "OTEL_RESOURCE_ATTRIBUTES"
	queueSize      = "OTEL_BSP_MAX_QUEUE_SIZE"
)

// queue is how many spans wait to be sent at most, unless the environment says otherwise: a run with very many steps has that many.
const queue = 64 << 10

// patience is how long Close waits at most for what has not been sent yet, unless options say otherwise.
const patience = 2 * time.Second

// Options configure [Open].
type Options struct {
	Env     func(name string) string // required: the environment. What the exporters read themselves is the one of the process
	Site    string                   // required: its name
	Version string                   // required: of converge
	Parent  string                   // optional: the W3C traceparent of whoever has asked for the runs
	Scrub   func(string) string      // optional: removes secrets from the text of an error
	Logger  *slog.Logger             // optional

	Patience time.Duration // optional: how long Close waits at most for what has not been sent yet; 2 s when zero
}

// Traces turn events into spans. A nil one ignores them.
type Traces struct {
	o        Options
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	parent   context.Context
	ended    *ended
	sent     *quiet
	log      *door // of what is logged

	mu    sync.Mutex
	run   trace.Span // nil while no run is in progress
	in    context.Context
	about []attribute.KeyValue // of the run
	steps map[key]trace.Span
}

// A key identifies a step that is in progress.
type key struct {
	step int
	undo bool
}

// Wanted reports whether the environment says where traces are sent.
func Wanted(env func(string) string) bool {
	return cmp.Or(env(tracesEndpoint), env(endpoint)) != "" && env(exporter) != "none" && !strings.EqualFold(env(disabled), "true")
}

// Open returns nil when the environment does not say where traces are sent, and fails when it cannot be understood. It connects to
// nothing yet.
func Open(ctx context.Context, o Options) (*Traces, error) {
	if !Wanted(o.Env) {
		return nil, nil
	}
	if o.Scrub == nil {
		o.Scrub = func(text string) string { return text }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := check(o.Env); err != nil {
		return nil, fmt.Errorf("traces cannot be sent: %w", err)
	}
	o.Scrub = without(o.Scrub, values(o.Env))
	t := &Traces{o: o, steps: map[key]trace.Span{}, log: &door{}}
	t.o.Logger = slog.New(gate{o.Logger.Handler(), t.log})
	otel.SetLogger(logr.FromSlogHandler(&valueless{t.o.Logger.Handler()}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.o.Logger.Warn("traces are not complete", "error", t.text(err)) }))
	again := struct {
		Enabled                                      bool
		InitialInterval, MaxInterval, MaxElapsedTime time.Duration
	}{true, time.Second, 5 * time.Second, 30 * time.Second}
	var to sdktrace.SpanExporter
	var err error
	switch p := cmp.Or(o.Env(tracesProtocol), o.Env(protocol), "http/protobuf"); p {
	case "http/protobuf":
		to, err = otlptracehttp.New(ctx, otlptracehttp.WithRetry(otlptracehttp.RetryConfig(again)))
	case "grpc":
		to, err = otlptracegrpc.New(ctx, otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig(again)))
	default:
		err = fmt.Errorf("%s is %q: want http/protobuf or grpc", protocol, p)
	}
	if err != nil {
		return nil, fmt.Errorf("traces cannot be sent: %s", t.text(err))
	}
	of, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "converge"), attribute.String("service.version", o.Version)), resource.WithFromEnv())
	if err != nil { // a part of it is not known
		o.Logger.Warn("the resource of traces is not complete: see "+resources, "error", t.text(err))
	}
	t.sent = &quiet{SpanExporter: to, t: t}
	if t.ended, err = batches(t.sent, o.Env); err != nil {
		o.Logger.Warn("there are no traces: the variables OTEL_BSP_… cannot be used", "error", t.text(err))
		return nil, nil
	}
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(of), sdktrace.WithSpanProcessor(t.ended))
	t.tracer = t.provider.Tracer("converge.dev/converge", trace.WithInstrumentationVersion(o.Version))
	t.parent = propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": o.Parent})
	return t, nil
}

// quiet is an exporter whose failures are logged here: the first, and then no other one until something was sent.
type quiet struct {
	sdktrace.SpanExporter
	t *Traces

	mu     sync.Mutex
	failed bool
	spans  int64 // that were sent
}

// ExportSpans implements [sdktrace.SpanExporter].
func (q *quiet) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := q.SpanExporter.ExportSpans(ctx, spans)
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil && !q.failed {
		q.t.o.Logger.Warn("traces cannot be sent, and are dropped", "error", q.t.text(err))
	}
	if err == nil {
		q.spans += int64(len(spans))
	}
	q.failed = err != nil
	return nil
}

// Event takes an event of the engine. It is an [event.Sink].
func (t *Traces) Event(e event.Event) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := e.(type) {
	case event.RunStarted:
		t.start(e)
		return
	case event.RunEnded:
		t.end(string(e.Run.Status), e.Run.Status != state.RunApplied && !e.Asked, e.Run.Message)
		return
	}
	if t.run == nil { // all others are about what happens in a run
		return
	}
	switch e := e.(type) {
	case event.StepStarted:
		t.step(e.Step, e.Undo)
	case event.StepProgress:
		if s := t.steps[key{e.Step.ID, e.Undo}]; s != nil && e.Phase != event.Acting {
			s.AddEvent(string(e.Phase), trace.WithAttributes(attribute.Int("converge.attempt", e.Attempt)))
		}
	case event.StepDone:
		t.stepped(e.Step, e.Undo, func(s trace.Span) { s.SetAttributes(attribute.String(Outcome, "done")) })
	case event.StepFailed:
		t.stepped(e.Step, e.Undo, func(s trace.Span) {
			s.SetAttributes(attribute.String(Outcome, "failed"), attribute.String(Class, string(e.Class)))
			s.SetStatus(codes.Error, t.text(e.Err))
		})
	case event.PointOfNoReturn:
		t.run.AddEvent("point of no return")
	case event.Interrupted:
		t.run.AddEvent("interrupted")
	case event.RevertStarted:
		t.run.AddEvent("reverting", trace.WithAttributes(attribute.String("converge.cause", t.text(e.Cause)), attribute.Int(Steps, e.Steps)))
	case event.Verified:
		t.run.AddEvent("verified", trace.WithAttributes(attribute.Int("converge.differences", len(e.Differences))))
	}
}

func (t *Traces) text(err error) string {
	if err == nil {
		return ""
	}
	return t.shown(err.Error())
}

// shown returns a text as it may be sent.
func (t *Traces) shown(text string) string {
	const most = 1 << 10
	if text = t.o.Scrub(text); len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func (t *Traces) start(e event.RunStarted) {
	t.end(unknown, true, "") // of a run that this process no longer carries out
	t.about = []attribute.KeyValue{attribute.String(Run, e.Run.ID), attribute.String(Site, t.o.Site)}
	t.in, t.run = t.tracer.Start(t.parent, "run "+e.Run.Op, trace.WithAttributes(t.about...),
		trace.WithAttributes(attribute.Int64(Serial, e.Run.Serial), attribute.Int(Steps, e.Run.Steps), attribute.Int("converge.done_before", e.Done)))
}

func (t *Traces) step(s *plan.Step, undo bool) {
	name := string(s.Action) + " " + s.Ref.Kind
	if undo {
		name = "undo " + name
	}
	_, t.steps[key{s.ID, undo}] = t.tracer.Start(t.in, name, trace.WithAttributes(t.about...), trace.WithAttributes(
		attribute.Int(Step, s.ID), attribute.String(Resource, s.Ref.String()), attribute.String(Kind, s.Ref.Kind),
		attribute.String(Action, string(s.Action)), attribute.Bool(Undo, undo)))
}

func (t *Traces) stepped(s *plan.Step, undo bool, how func(trace.Span)) {
	k := key{s.ID, undo}
	if span := t.steps[k]; span != nil {
		how(span)
		span.End()
		delete(t.steps, k)
	}
}

// end ends the run in progress, if there is one, and steps of it that have not ended.
func (t *Traces) end(outcome string, failed bool, message string) {
	if t.run == nil {
		return
	}
	for k, s := range t.steps {
		s.SetAttributes(attribute.String(Outcome, unknown))
		s.SetStatus(codes.Error, "its outcome is unknown")
		s.End()
		delete(t.steps, k)
	}
	t.run.SetAttributes(attribute.String(Outcome, outcome))
	if failed {
		t.run.SetStatus(codes.Error, t.shown(message))
	}
	t.run.End()
	t.run = nil
}

// Close sends what has not been sent yet, and waits for that, but no longer than the options say. It logs nothing once it has returned.
func (t *Traces) Close() {
	if t == nil {
		return
	}
	defer t.log.close()
	t.mu.Lock()
	t.end(unknown, true, "")
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(t.o.Patience, patience))
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.o.Logger.Warn("traces could not be closed", "error", t.text(err))
	} else if err != nil {
		t.o.Logger.Warn("traces were not sent in time, and are dropped")
	}
	t.sent.mu.Lock()
	defer t.sent.mu.Unlock()
	if lost := t.ended.spans.Load() - t.sent.spans; lost > 0 {
		t.o.Logger.Warn("the traces lack spans that were not sent", "spans", lost)
	}
}
