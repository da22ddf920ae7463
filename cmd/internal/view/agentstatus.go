package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"converge.dev/converge/agent"
	"converge.dev/converge/cmd/internal/config"
)

// At shows a time as all texts do.
func At(t time.Time) string { return at(t) + " UTC" }

// AgentHealth says in one line whether an agent is well, and what is wrong.
func AgentHealth(a *agent.Status, s Style) string {
	if a.Health == agent.OK {
		return fmt.Sprintf("Node %s is well.\n", clean(a.Node))
	}
	text := fmt.Sprintf("Node %s is not well: %s", clean(a.Node), clean(a.Problems[0]))
	if more := len(a.Problems) - 1; more > 0 {
		text += fmt.Sprintf(" (and %s more)", count(more, "problem"))
	}
	return s.paint(yellow, text) + "\n"
}

// AgentText shows how an agent stands: what is wrong first.
func AgentText(a *agent.Status, s Style) string {
	var b strings.Builder
	for _, p := range a.Problems {
		b.WriteString(s.paint(red, "Problem: "+clean(p)) + "\n")
	}
	if len(a.Problems) > 0 {
		b.WriteString("\n")
	}
	cert := a.Certificate
	rows := [][]string{
		{"Node", clean(a.Node)},
		{"Site", clean(a.Site) + " " + clean(a.SiteID)},
		{"Health", string(a.Health)},
		{"Agent", fmt.Sprintf("version %s, since %s", clean(a.Version), At(a.Started))},
		{"Last contact", ago(a.Contact, a.Now)},
		{"Certificate", fmt.Sprintf("%s, valid until %s (%s left), is renewed from %s", clean(cert.Serial), At(cert.NotAfter), left(cert.NotAfter, a.Now), At(cert.Renewal))},
	}
	add := func(name, value string) { rows = append(rows, []string{name, value}) }
	if cert.Error != "" && cert.Failed != nil {
		add("Last error", clean(cert.Error)+" ("+ago(cert.Failed, a.Now)+")")
	}
	add("Trust", fmt.Sprintf("version %d, valid until %s", a.Trust.Version, At(a.Trust.NotAfter)))
	add("Guard", guardText(a))
	for _, armed := range a.Guard.Armed {
		for _, c := range armed.Of {
			add("", clean(c.Op+" "+c.Ref))
		}
	}
	add("Tasks", fmt.Sprintf("%d open, %d done, %d failed", len(a.Tasks.Open), a.Tasks.Done, a.Tasks.Failed))
	b.WriteString(table(Style{}, rows))

	section := func(rows [][]string) {
		if len(rows) > 1 {
			b.WriteString("\n" + table(s, rows))
		}
	}
	rows = [][]string{{"SERVER", "STATE", "LAST CONTACT", "ERROR"}}
	for _, r := range a.Servers {
		rows = append(rows, []string{clean(r.Address), connection(&r, a.Now), ago(r.Contact, a.Now), cmp.Or(clean(r.Error), "-")})
	}
	section(rows)
	rows = [][]string{{"PROVIDER", "HEALTH", "SINCE", "DETAIL"}}
	for _, p := range a.Providers {
		since := "-"
		if p.Since != nil {
			since = At(*p.Since)
		}
		rows = append(rows, []string{clean(p.Scope + "/" + p.Provider), string(p.Health), since, cmp.Or(clean(p.Detail), "-")})
	}
	section(rows)
	rows = [][]string{{"TASK", "ACTION", "SINCE", "RESOURCE"}}
	for _, t := range a.Tasks.Open {
		rows = append(rows, []string{clean(t.Key), clean(t.Action), At(t.Since), clean(t.Ref)})
	}
	section(rows)
	return b.String()
}

// connection says how a server is connected.
func connection(r *agent.Server, now time.Time) string {
	switch {
	case r.Connected && r.Since != nil:
		return "connected since " + At(*r.Since)
	case r.Next != nil && r.Next.After(now):
		return "away, tried again in " + took(r.Next.Sub(now).Round(time.Second))
	}
	return "connecting"
}

func guardText(a *agent.Status) string {
	switch a.Guard.State {
	case agent.ArmedGuard:
		var each []string
		for _, g := range a.Guard.Armed {
			each = append(each, fmt.Sprintf("%s until %s", clean(g.ID), At(g.Until)))
		}
		return "armed: " + strings.Join(each, ", ")
	case agent.AbsentGuard, agent.FailedGuard:
		return string(a.Guard.State) + ": " + clean(a.Guard.Error)
	}
	return string(a.Guard.State)
}

// ago says how long ago something was; "never" when it was not.
func ago(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return "never"
	}
	return took(max(0, now.Sub(*t)).Round(time.Second)) + " ago"
}

// left says how long it is until a time.
func left(until, now time.Time) string {
	if !until.After(now) {
		return "expired"
	}
	switch d := until.Sub(now); {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	default:
		return fmt.Sprintf("%ds", d/time.Second)
	}
}

// SettingsText lists settings, and where their values come from.
func SettingsText(settings []config.Setting, s Style) string {
	rows := [][]string{{"SETTING", "SOURCE", "VALUE"}}
	for _, x := range settings {
		rows = append(rows, []string{x.Name, string(x.Source), cmp.Or(clean(x.Value), "-")})
	}
	return table(s, rows)
}
