package api_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
)

// sample returns the value of a metric as scraped; empty when it is not there.
func sample(body, name string) string {
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (b *bed) scrape() string {
	b.t.Helper()
	b.pass(5 * time.Second)
	_, body := ask(b.Metrics(), "GET", "/metrics")
	return body
}

func (b *bed) samples(want map[string]string) {
	b.t.Helper()
	body := b.scrape()
	for name, value := range want {
		if got := sample(body, name); got != value {
			b.t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
}

// Every metric is there under its name, and says what is so.
func TestMetrics(t *testing.T) {
	b := newBed(t)
	b.samples(map[string]string{
		"converge_keeper": "0", "converge_store_up": "1", `converge_rounds_total{result="ok"}`: "0", `converge_rounds_total{result="error"}`: "0",
		`converge_runs_total{status="partial"}`: "0", "converge_document_serial": "0", `converge_provider_up{provider="far",scope="site"}`: "",
		`converge_status_phase{phase="in-sync"}`: "", "converge_drift_complete": "",
	})
	b.keep()
	b.enrol(state.Node{Name: "gpu-01"})
	b.enrol(state.Node{Name: "gpu-02"})
	b.enrol(state.Node{Name: "gpu-03", Ban: &state.NodeBan{Reason: "stolen"}})
	b.nodes = []site.NodeStatus{{Name: "gpu-01", Connected: true, Since: b.time()}, {Name: "n1", Connected: true}, {Name: "stranger", Connected: true, Since: b.time()}}
	ends := fmt.Sprint(float64(b.trust.NotAfter.UnixMilli()) / 1000)
	b.samples(map[string]string{
		`converge_site_info{mode="observe",site="test"}`: "1",
		"converge_keeper": "1", `converge_status_phase{phase="in-sync"}`: "1", `converge_status_phase{phase="failed"}`: "0", "converge_document_serial": "1",
		`converge_rounds_total{result="ok"}`: "1", "converge_round_duration_seconds_count": "1", "converge_round_duration_seconds_sum": "0.02",
		`converge_drift_objects{sort="drifted"}`: "0", "converge_drift_complete": "1", `converge_runs_total{status="applied"}`: "1",
		`converge_steps_total{action="create",kind="far.net",result="ok"}`: "2", `converge_step_duration_seconds_count{action="create",kind="near.bridge"}`: "1",
		`converge_provider_up{provider="far",scope="site"}`: "1", `converge_provider_up{provider="near",scope="n1"}`: "1",
		`converge_node_connected{node="gpu-01"}`: "1", `converge_node_connected{node="gpu-02"}`: "0", `converge_node_connected{node="gpu-03"}`: "",
		`converge_node_healthy{node="gpu-01"}`: "1", `converge_node_healthy{node="gpu-02"}`: "",
		`converge_node_connected{node="stranger"}`: "", `converge_nodes{state="connected"}`: "1", `converge_nodes{state="silent"}`: "1", `converge_nodes{state="refused"}`: "1",
		"converge_holds": "0",
	})
	b.nodes[0].Unwell = []site.Missing{{Provider: "guard", Why: "it does not answer"}}
	b.samples(map[string]string{`converge_node_healthy{node="gpu-01"}`: "0", `converge_node_connected{node="gpu-01"}`: "1"})
	for _, name := range []string{
		"converge_status_since_timestamp_seconds", `converge_certificate_expiry_timestamp_seconds{what="node_ca"}`, `converge_certificate_expiry_timestamp_seconds{what="task_key"}`,
		`converge_node_certificate_expiry_timestamp_seconds{node="gpu-01"}`, "go_goroutines", "process_open_fds",
	} {
		if sample(b.scrape(), name) == "" {
			t.Errorf("%s is not there", name)
		}
	}
	var got float64
	if _, err := fmt.Sscan(sample(b.scrape(), `converge_certificate_expiry_timestamp_seconds{what="trust_document"}`), &got); err != nil || fmt.Sprint(got) != ends {
		t.Errorf("the trust document ends %v, want %s: %v", got, ends, err)
	}
	if _, body := ask(b.Metrics(), "GET", "/metrics"); !strings.Contains(body, `converge_build_info{go_version="go`) || !strings.Contains(body, `version="1.2.3"} 1`) {
		t.Error("converge_build_info is not there")
	}

	// Something is wrong everywhere.
	b.Rounded(time.Second, errors.New("x"))
	last := fmt.Sprint(float64(b.time().UnixMilli()) / 1000)
	b.publish("status", site.Status{Phase: site.Failed})
	b.publish("drift/latest", drift.Report{Drifted: make([]drift.Item, 3), Unstated: make([]drift.Item, 2), Strays: make([]plan.Unmanaged, 4), Unmanaged: make([]plan.Unmanaged, 5), Unknown: []plan.Unknown{{Scope: "n1", Kind: "near.bridge", Error: "away"}}})
	b.commit(b.Store.HoldOp(state.Hold{Scope: "site", Reason: "x"}), b.Store.FreezeOp(state.Hold{Reason: "x", By: "ada"}))
	step := &plan.Step{Action: plan.Update, Ref: schema.Ref{Scope: "site", Kind: "far.net", Name: "a"}}
	b.API.Event(event.StepFailed{Step: step, Took: time.Second})
	b.API.Event(event.StepDone{Step: step, Undo: true})
	b.API.Event(event.RunEnded{Run: state.Run{Status: state.RunReverted}})
	b.API.Event(event.RunEnded{Run: state.Run{Status: state.RunOpen}}) // it is resumed later
	b.samples(map[string]string{
		`converge_rounds_total{result="error"}`: "1", `converge_status_phase{phase="in-sync"}`: "0", `converge_status_phase{phase="failed"}`: "1",
		`converge_drift_objects{sort="drifted"}`: "3", `converge_drift_objects{sort="unstated"}`: "2", `converge_drift_objects{sort="stray"}`: "4",
		`converge_drift_objects{sort="unmanaged"}`: "5", `converge_drift_objects{sort="unknown"}`: "1", "converge_drift_complete": "0", "converge_holds": "2",
		`converge_provider_up{provider="near",scope="n1"}`: "0", `converge_steps_total{action="update",kind="far.net",result="error"}`: "1",
		`converge_steps_total{action="undo",kind="far.net",result="ok"}`: "1", `converge_runs_total{status="reverted"}`: "1",
		`converge_runs_total{status="open"}`: "", "converge_round_last_timestamp_seconds": last,
	})

	// On standby the counters stand still, what is in the store is shown, and what only the keeper knows is not.
	b.Waits(state.KeeperInfo{Who: "ada@lab"})
	b.samples(map[string]string{
		"converge_keeper": "0", `converge_status_phase{phase="failed"}`: "1", `converge_provider_up{provider="near",scope="n1"}`: "", "converge_round_last_timestamp_seconds": "", `converge_rounds_total{result="error"}`: "1",
	})
	b.down.Store(true)
	b.samples(map[string]string{"converge_store_up": "0", "converge_holds": "", `converge_status_phase{phase="failed"}`: "", "converge_keeper": "0"})
}

// Prometheus' own linter has nothing to say, and all names are ours.
func TestMetricNames(t *testing.T) {
	b := newBed(t)
	b.keep()
	b.enrol(state.Node{Name: "gpu-01"})
	b.pass(time.Minute)
	families, err := b.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, f := range families {
		if prefix, _, _ := strings.Cut(f.GetName(), "_"); !slices.Contains([]string{"converge", "go", "process"}, prefix) {
			t.Errorf("%s", f.GetName())
		}
	}
}
