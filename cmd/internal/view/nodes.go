package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/schema/signed"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

// NodesText lists the nodes that the site knows, and what nothing is done on. Live is how they stand at the site agent, by name: nil when that
// is not known.
func NodesText(nodes []state.Node, live map[string]site.NodeStatus, holds []state.Hold, now time.Time, s Style) string {
	if len(nodes) == 0 {
		return "No nodes. Make a token for one with: converge agent token create NODE\n"
	}
	rows := [][]string{{"NODE", "STATUS", "CONTACT", "HEALTH", "VERSION", "TASKS", "CERTIFICATE UNTIL", "LEFT", "LABELS"}}
	details := ""
	for i := range nodes {
		n := &nodes[i]
		until, life := "-", "-"
		if !n.Expires.IsZero() {
			until, life = at(n.Expires), left(n.Expires, now)
		}
		contact, health, version, tasks := "-", "-", "-", "-"
		if x, ok := live[n.Name]; ok {
			word, why := x.Health()
			contact, health, version = ago(&x.Heard, now), word, cmp.Or(clean(x.Agent), "-")
			if x.Connected {
				tasks = fmt.Sprint(x.Running)
			}
			if x.Connected && !x.Hung {
				contact = "connected"
			}
			if word == site.NodeDegraded {
				details += clean(n.Name) + " is degraded: " + clean(why) + "\n"
			}
		} else if live != nil && n.Status() != state.NodePending {
			contact, health = "none yet", site.NodeAway // since the site agent has started
		}
		if n.Ban != nil {
			details += clean(n.Name) + " is banned: " + clean(n.Ban.Reason) + "\n"
		}
		for _, h := range holdsOn(n, holds) {
			details += clean(h.Text()) + "\n"
		}
		var labels []string
		for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
			labels = append(labels, clean(fmt.Sprintf("%s=%s", key, n.Labels[key])))
		}
		rows = append(rows, []string{clean(n.Name), string(n.Status()), contact, health, version, tasks, until, life, strings.Join(labels, " ")})
	}
	text := table(s, rows)
	if details != "" {
		text += "\n" + s.paint(yellow, details)
	}
	return text
}

// holdsOn returns those of the holds that are on the whole node.
func holdsOn(n *state.Node, holds []state.Hold) []state.Hold {
	return slices.DeleteFunc(slices.Clone(holds), func(h state.Hold) bool { return h.Scope != n.Name })
}

// A node is one node in JSON.
type node struct {
	Name    string            `json:"name"`
	Status  state.NodeStatus  `json:"status"`
	Expires *time.Time        `json:"certificate_not_after,omitempty"`
	Serial  string            `json:"certificate_serial,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Reason  string            `json:"reason,omitempty"` // why it is banned
	Holds   []state.Hold      `json:"holds,omitempty"`  // on the whole node, also that of a drain

	// As the site agent says; absent when it could not be asked, or the node has never been connected to it.
	Connected *bool      `json:"connected,omitempty"`
	Since     *time.Time `json:"since,omitempty"` // when it came, or went
	Heard     *time.Time `json:"heard,omitempty"` // when it last answered
	Health    string     `json:"health,omitempty"`
	Detail    string     `json:"health_detail,omitempty"` // why it is not ok
	Agent     string     `json:"agent,omitempty"`         // version of its agent
	Running   *int       `json:"running,omitempty"`       // tasks in progress
}

// NodesJSON returns the nodes that the site knows, without what only their enrolment needs. See [NodesText].
func NodesJSON(nodes []state.Node, live map[string]site.NodeStatus, holds []state.Hold) any {
	list := make([]node, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		list[i] = node{Name: n.Name, Status: n.Status(), Serial: n.Serial, Labels: n.Labels, Holds: holdsOn(n, holds)}
		if !n.Expires.IsZero() {
			list[i].Expires = &n.Expires
		}
		if n.Ban != nil {
			list[i].Reason = n.Ban.Reason
		}
		if x, ok := live[n.Name]; ok {
			list[i].Connected, list[i].Since, list[i].Heard, list[i].Agent = &x.Connected, &x.Since, &x.Heard, x.Agent
			if list[i].Health, list[i].Detail = x.Health(); x.Connected {
				list[i].Running = &x.Running
			}
		}
	}
	return list
}

// TrustText shows a trust document. Due is when its successor is due; zero: that is not shown.
func TrustText(d *trust.Document, due, now time.Time, s Style) string {
	rows := [][]string{
		{"Site", clean(d.Site.Name) + " " + d.Site.ID},
		{"Version", fmt.Sprint(d.Version)},
		{"Valid", at(d.NotBefore) + " until " + at(d.NotAfter)},
		{"Roots", fmt.Sprintf("%d of %d have to sign", d.Threshold, len(d.Roots))},
	}
	for _, r := range d.Roots {
		rows = append(rows, []string{"", signed.Name(r)})
	}
	for _, ca := range d.CAs {
		if cert, err := ca.Parse(); err == nil {
			rows = append(rows, []string{"Authority", at(cert.NotBefore) + " until " + at(cert.NotAfter)})
		}
	}
	for _, k := range d.Tasks {
		rows = append(rows, []string{"Task key", at(k.NotBefore) + " until " + at(k.NotAfter) + "  " + clean(k.ID)})
	}
	if !due.IsZero() {
		rows = append(rows, []string{"Next due", at(due)})
	}
	for _, alarm := range d.Alarms(now) {
		rows = append(rows, []string{"Warning", fmt.Sprintf("%d %% of the life of the %s have passed; it ends %s: converge trust rotate", alarm.Share, alarm.What, at(alarm.NotAfter))})
	}
	return table(s, rows)
}
