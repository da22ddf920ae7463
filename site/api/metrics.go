package api

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
)

// metrics counts what this replica does. Its gauges are read from the store when they are asked for.
type metrics struct {
	registry *prometheus.Registry

	rounds, runs, steps *prometheus.CounterVec
	roundTook           prometheus.Histogram
	stepTook            *prometheus.HistogramVec
}

// undoing is the action of a step that is undone.
const undoing = "undo"

// results of rounds and steps
const (
	went   = "ok"
	failed = "error"
)

func result(err error) string {
	if err != nil {
		return failed
	}
	return went
}

func newMetrics(a *API) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		rounds:   counter("converge_rounds_total", "Rounds of the site agent: each looks at the whole site once.", "result"),
		runs:     counter("converge_runs_total", "Runs of this replica that ended, by how they ended.", "status"),
		steps:    counter("converge_steps_total", "Steps of runs of this replica that ended.", "kind", "action", "result"),
		roundTook: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "converge_round_duration_seconds", Help: "How long a round took, with the run that it may have made.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 9), // 10 ms to 11 min
		}),
		stepTook: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "converge_step_duration_seconds", Help: "How long a step took until its result was observed.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 9),
		}, []string{"kind", "action"}),
	}
	for _, r := range []string{went, failed} { // a rate needs a beginning
		m.rounds.WithLabelValues(r)
	}
	for _, s := range []state.RunStatus{state.RunApplied, state.RunReverted, state.RunRolledBack, state.RunPartial} {
		m.runs.WithLabelValues(string(s))
	}
	m.registry.MustRegister(m.rounds, m.runs, m.steps, m.roundTook, m.stepTook, newGauges(a), newCertificateMetrics(a), newEventMetrics(a), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// rounded counts a round.
func (m *metrics) rounded(took time.Duration, err error) {
	m.rounds.WithLabelValues(result(err)).Inc()
	m.roundTook.Observe(took.Seconds())
}

// event counts what ends.
func (m *metrics) event(e event.Event) {
	switch e := e.(type) {
	case event.StepDone:
		m.step(e.Step, e.Undo, went, e.Took)
	case event.StepFailed:
		m.step(e.Step, e.Undo, failed, e.Took)
	case event.RunEnded:
		if e.Run.Status != state.RunOpen { // it is resumed, and ends then
			m.runs.WithLabelValues(string(e.Run.Status)).Inc()
		}
	}
}

func (m *metrics) step(s *plan.Step, undo bool, result string, took time.Duration) {
	action := string(s.Action)
	if undo {
		action = undoing
	}
	m.steps.WithLabelValues(s.Ref.Kind, action, result).Inc()
	m.stepTook.WithLabelValues(s.Ref.Kind, action).Observe(took.Seconds())
}

// Metrics returns what is served to Prometheus, at /metrics.
func (a *API) Metrics() http.Handler {
	scrape := promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 8, Timeout: 10 * time.Second, ErrorHandling: promhttp.ContinueOnError,
	})
	return a.guard(map[string]map[string]http.Handler{
		"/metrics": {http.MethodGet: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			scrape.ServeHTTP(w, r)
		})},
	}, "/metrics")
}

// Registry returns the metrics as Prometheus gathers them.
func (a *API) Registry() prometheus.Gatherer { return a.metrics.registry }

// gauges are read when they are asked for.
type gauges struct {
	a *API

	build, info, keeper, round, phase, since, serial, drift, complete, provider, node, healthy, nodes, holds, cert, nodeCert, store *prometheus.Desc
}

func newGauges(a *API) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &gauges{
		a:        a,
		build:    desc("converge_build_info", "The program: always 1.", "version", "go_version"),
		info:     desc("converge_site_info", "The site, and what the site agent may do by itself: always 1.", "site", "mode"),
		keeper:   desc("converge_keeper", "1 when this replica keeps the site, 0 when it waits."),
		round:    desc("converge_round_last_timestamp_seconds", "When this replica, which keeps the site, last ended a round. Absent when it has not, or waits."),
		phase:    desc("converge_status_phase", "1 for the phase that the site is in, as published by whoever keeps it.", "phase"),
		since:    desc("converge_status_since_timestamp_seconds", "When the published status became what it is."),
		serial:   desc("converge_document_serial", "The serial of the newest document; 0 when there is none."),
		drift:    desc("converge_drift_objects", "Objects in the published drift report, by why they are in it; unknown are kinds.", "sort"),
		complete: desc("converge_drift_complete", "1 when the whole site was observed for the published drift report."),
		provider: desc("converge_provider_up", "1 when the provider could be observed last. Absent when it has not been, or not by this replica.", "scope", "provider"),
		node:     desc("converge_node_connected", "1 when the agent of an enrolled node is connected to this replica.", "node"),
		healthy:  desc("converge_node_healthy", "1 when the connected agent of a node answers, and all that it should serve and its guard are available.", "node"),
		nodes:    desc("converge_nodes", "Nodes by how they stand at this replica; silent: enrolled, and not connected.", "state"),
		holds:    desc("converge_holds", "Holds, and the freeze if there is one."),
		cert:     desc("converge_certificate_expiry_timestamp_seconds", "When the newest of what nodes trust ends.", "what"),
		nodeCert: desc("converge_node_certificate_expiry_timestamp_seconds", "When the newest certificate of a node ends.", "node"),
		store:    desc("converge_store_up", "1 when the store answers."),
	}
}

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		g.build, g.info, g.keeper, g.round, g.phase, g.since, g.serial, g.drift, g.complete, g.provider, g.node, g.healthy, g.nodes, g.holds, g.cert, g.nodeCert, g.store,
	} {
		c <- d
	}
}

// phases are all phases.
var phases = []site.Phase{site.NoDocument, site.InSync, site.Differs, site.Waiting, site.Refused, site.Applying, site.Held, site.Unknown, site.Failed}

// Collect implements [prometheus.Collector]. What is not known is left out: an alert for it asks whether it is there.
func (g *gauges) Collect(c chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, v float64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	a := g.a
	f, me := a.facts.get(), a.standing()
	put(g.build, 1, a.o.Version, runtime.Version())
	put(g.info, 1, a.o.Site.Name, a.o.Mode)
	put(g.keeper, number(me.role == keeping))
	put(g.store, number(f.store == nil))
	if me.round != nil {
		put(g.round, seconds(me.round.ended))
	}
	if f.store == nil {
		g.stored(f, put)
	}
	for _, p := range a.providers(f, a.o.Now()) {
		if p.known { // by this replica, while it keeps the site
			put(g.provider, number(p.err == ""), p.Scope, p.Provider)
		}
	}
	for what, until := range a.lifetimes() {
		put(g.cert, seconds(until), what)
	}
}

// stored puts what the store says.
func (g *gauges) stored(f *facts, put func(*prometheus.Desc, float64, ...string)) {
	if s := f.status; s != nil {
		known := false
		for _, p := range phases {
			put(g.phase, number(s.Phase == p), string(p))
			known = known || s.Phase == p
		}
		if !known { // of another version
			put(g.phase, 1, "other")
		}
		put(g.since, seconds(s.Since))
	}
	if f.headErr == nil {
		serial := int64(0)
		if f.head != nil {
			serial = f.head.Serial
		}
		put(g.serial, float64(serial))
	}
	if r := f.drift; r != nil {
		for sort, n := range map[string]int{
			"drifted": len(r.Drifted), "unstated": len(r.Unstated), "stray": len(r.Strays), "unmanaged": len(r.Unmanaged), "unknown": len(r.Unknown),
		} {
			put(g.drift, float64(n), sort)
		}
		put(g.complete, number(r.Complete))
	}
	if f.stopsErr == nil {
		put(g.holds, float64(len(f.stops)))
	}
	if f.nodesErr == nil {
		counts := map[string]int{nodeConnected: 0, nodeSilent: 0, nodeRefused: 0}
		for _, n := range nodeViews(f.nodes, g.a.nodes()) {
			as := n.standsAs()
			if as == "" {
				continue // it has not enrolled yet
			}
			counts[as]++
			if as == nodeRefused {
				continue
			}
			put(g.node, number(n.Connected), n.Name)
			if n.Connected {
				put(g.healthy, number(n.Health == site.NodeOK), n.Name)
			}
			if n.Expires != nil {
				put(g.nodeCert, seconds(*n.Expires), n.Name)
			}
		}
		for as, n := range counts {
			put(g.nodes, float64(n), as)
		}
	}
}

// lifetimes returns until when what nodes trust is valid: of several the newest, since the others have a successor.
func (a *API) lifetimes() map[string]time.Time {
	if a.o.Trust == nil {
		return nil
	}
	d := a.o.Trust()
	if d == nil {
		return nil
	}
	until := map[string]time.Time{"trust_document": d.NotAfter}
	latest := func(what string, t time.Time) {
		if t.After(until[what]) {
			until[what] = t
		}
	}
	for _, ca := range d.CAs {
		if cert, err := ca.Parse(); err == nil {
			latest("node_ca", cert.NotAfter)
		}
	}
	for _, k := range d.Tasks {
		latest("task_key", k.NotAfter)
	}
	return until
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
