package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/site"
	"converge.dev/converge/site/api"
	"converge.dev/converge/site/outbox"
	"converge.dev/converge/state"
)

// How the events for the cloud stand is shown by the replica that sends them, and nowhere when there are none.
func TestEvents(t *testing.T) {
	b := newBed(t)
	b.keep()
	h, _ := into[api.Health](b, "/state")
	for _, c := range h.Components {
		if c.Name == "events" {
			t.Errorf("the cloud is told nothing, and there is %+v", c)
		}
	}
	none := map[string]string{
		"converge_events_delivered_total": "", "converge_events_failed_total": "", `converge_events_dropped_total{why="full"}`: "", "converge_events_waiting": "",
		"converge_events_oldest_timestamp_seconds": "",
	}
	b.samples(none)

	b.events = &outbox.Standing{Sends: true, Delivered: 7, Failed: 3, Dropped: 2, Refused: 1}
	if c := b.component("events"); c.State != api.OK || c.Critical {
		t.Errorf("%+v", c)
	}
	b.samples(map[string]string{
		"converge_events_delivered_total": "7", "converge_events_failed_total": "3", `converge_events_dropped_total{why="full"}`: "2",
		`converge_events_dropped_total{why="refused"}`: "1", "converge_events_waiting": "0", "converge_events_oldest_timestamp_seconds": "",
	})

	b.events.Waiting, b.events.Oldest, b.events.Error = 5, b.time(), "the receiver answers 503 with "+scrubed
	if c := b.component("events"); c.State != api.OK { // a minute later
		t.Errorf("%+v", c)
	}
	b.pass(5 * time.Minute)
	if c := b.component("events"); c.State != api.Warn || c.Since == nil || !c.Since.Equal(b.events.Oldest) || !strings.Contains(c.Detail, "5 events wait") ||
		!strings.Contains(c.Detail, "answers 503") || strings.Contains(c.Detail, scrubed) {
		t.Errorf("%+v", c)
	}
	b.samples(map[string]string{"converge_events_waiting": "5", "converge_events_oldest_timestamp_seconds": fmt.Sprint(float64(b.events.Oldest.UnixMilli()) / 1000)})

	b.events = &outbox.Standing{Delivered: 7}
	if c := b.component("events"); c.State != api.Unknown {
		t.Errorf("of a replica that sends nothing: %+v", c)
	}
	b.samples(map[string]string{"converge_events_delivered_total": "7", "converge_events_waiting": ""})
}

// What is told about a node is what is published about it.
func TestNodeOfAnEvent(t *testing.T) {
	b := newBed(t)
	b.enrol(state.Node{Name: "gpu-01"})
	b.nodes = []site.NodeStatus{{Name: "gpu-01", Connected: true, Since: b.time(), Standing: site.Standing{Agent: "1.2.3", Missing: []site.Missing{{Provider: "ovs", Why: "no " + scrubed}}}}}
	if v := b.Node("gpu-01"); !v.Connected || v.Agent != "1.2.3" || v.Status != state.NodeEnrolled || len(v.Missing) != 1 || v.Missing[0].Why != "no ***" {
		t.Errorf("%+v", v)
	}
	if v := b.Node("gpu-02"); v.Name != "gpu-02" || v.Connected {
		t.Errorf("%+v", v)
	}
}
