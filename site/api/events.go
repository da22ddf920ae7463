package api

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// eventsLate is how long an event for the cloud may wait while all is well: a receiver that is started anew needs less.
const eventsLate = 5 * time.Minute

// eventsHealth returns how the events for the cloud stand: nothing, where it is told none.
func (a *API) eventsHealth(me standing, now time.Time) []Component {
	s := a.o.Events()
	if s == nil {
		return nil
	}
	c := Component{Name: "events", State: OK}
	switch {
	case !s.Sends:
		c.State, c.Detail = Unknown, "this replica does not keep the site, and sends no events"
	case s.Waiting > 0 && now.Sub(s.Oldest) > eventsLate:
		c.State, c.Since = Warn, at(s.Oldest)
		c.Detail = fmt.Sprintf("%d events wait for their delivery, the oldest one since %s", s.Waiting, clock(s.Oldest))
		if s.Error != "" {
			c.Detail += ": " + s.Error
		}
	case s.Waiting > 0:
		c.Detail = fmt.Sprintf("%d events wait for their delivery", s.Waiting)
	}
	return []Component{c}
}

// Node returns what is published about a node. One that the store does not know has no more than what is known of its connection.
func (a *API) Node(name string) NodeView {
	for _, v := range nodeViews(a.facts.get().nodes, a.nodes()) {
		if v.Name == name {
			for i := range v.Missing {
				v.Missing[i].Why = a.text(v.Missing[i].Why)
			}
			for i := range v.Unwell {
				v.Unwell[i].Why = a.text(v.Unwell[i].Why)
			}
			return v
		}
	}
	return NodeView{Name: name}
}

// eventMetrics are read when they are asked for. They are absent where the cloud is told nothing.
type eventMetrics struct {
	a *API

	delivered, failed, dropped, waiting, oldest *prometheus.Desc
}

func newEventMetrics(a *API) *eventMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &eventMetrics{
		a:         a,
		delivered: desc("converge_events_delivered_total", "Events that the cloud has got from this replica."),
		failed:    desc("converge_events_failed_total", "Tries of this replica to deliver an event that failed."),
		dropped:   desc("converge_events_dropped_total", "Events that this replica has given up: full, too many waited, or refused by the receiver.", "why"),
		waiting:   desc("converge_events_waiting", "Events that wait for their delivery. Absent when this replica does not keep the site."),
		oldest:    desc("converge_events_oldest_timestamp_seconds", "When the oldest event happened that waits for its delivery. Absent when none does."),
	}
}

// Describe implements [prometheus.Collector].
func (m *eventMetrics) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.delivered, m.failed, m.dropped, m.waiting, m.oldest} {
		c <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *eventMetrics) Collect(c chan<- prometheus.Metric) {
	s := m.a.o.Events()
	if s == nil {
		return
	}
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	count(m.delivered, s.Delivered)
	count(m.failed, s.Failed)
	count(m.dropped, s.Dropped, "full")
	count(m.dropped, s.Refused, "refused")
	if !s.Sends {
		return
	}
	c <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(s.Waiting))
	if s.Waiting > 0 {
		c <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, seconds(s.Oldest))
	}
}
