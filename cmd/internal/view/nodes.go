package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/schema/signed"
	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

// NodesText lists the nodes that the site knows.
func NodesText(nodes []state.Node, s Style) string {
	if len(nodes) == 0 {
		return "No nodes. Make a token for one with: converge agent token create NODE\n"
	}
	rows := [][]string{{"NODE", "STATUS", "CERTIFICATE UNTIL", "LABELS"}}
	for i := range nodes {
		n := &nodes[i]
		until := "-"
		if !n.Expires.IsZero() {
			until = at(n.Expires)
		}
		var labels []string
		for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
			labels = append(labels, clean(fmt.Sprintf("%s=%s", key, n.Labels[key])))
		}
		rows = append(rows, []string{clean(n.Name), string(n.Status()), until, strings.Join(labels, " ")})
	}
	return table(s, rows)
}

// A node is one node in JSON.
type node struct {
	Name    string            `json:"name"`
	Status  state.NodeStatus  `json:"status"`
	Expires *time.Time        `json:"certificate_not_after,omitempty"`
	Serial  string            `json:"certificate_serial,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Reason  string            `json:"reason,omitempty"` // why it is banned
}

// NodesJSON returns the nodes that the site knows, without what only their enrolment needs.
func NodesJSON(nodes []state.Node) any {
	list := make([]node, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		list[i] = node{Name: n.Name, Status: n.Status(), Serial: n.Serial, Labels: n.Labels}
		if !n.Expires.IsZero() {
			list[i].Expires = &n.Expires
		}
		if n.Ban != nil {
			list[i].Reason = n.Ban.Reason
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
