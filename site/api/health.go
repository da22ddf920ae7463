package api

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

// A State says how a component stands.
type State string

// The states, from the best to the worst. What is not known is worse than a warning: it may be anything.
const (
	OK       State = "ok"
	Warn     State = "warn"     // it works, and somebody should look at it
	Unknown  State = "unknown"  // it has not been looked at, or not by this replica
	Error    State = "error"    // it does not do what it should
	Critical State = "critical" // the site cannot be kept
)

var severity = map[State]int{OK: 0, Warn: 1, Unknown: 2, Error: 3, Critical: 4}

// worse returns the worse of two states.
func worse(a, b State) State {
	if severity[b] > severity[a] {
		return b
	}
	return a
}

// A Component is a part of the site.
type Component struct {
	Name     string     `json:"name"` // store, provider/SCOPE/PROVIDER, node/NAME, …
	State    State      `json:"state"`
	Critical bool       `json:"critical"`         // it counts for the state of the whole
	Detail   string     `json:"detail,omitempty"` // why, in words
	Since    *time.Time `json:"since,omitempty"`  // when that became so; omitted where it is not known
}

// A Health says how a site stands, as one replica knows it.
type Health struct {
	Site       string      `json:"site"`
	Version    string      `json:"version"`
	Role       string      `json:"role"`  // of the replica: keeper, standby or starting
	State      State       `json:"state"` // the worst of the critical components
	Components []Component `json:"components"`
	Omitted    int         `json:"omitted,omitempty"` // nodes and their providers that are left out: the least bad ones
}

// mostOfNodes is how many nodes, and providers of nodes, are listed.
const mostOfNodes = 200

// Health returns how the site stands.
func (a *API) Health() Health {
	f, me, now := a.facts.get(), a.standing(), a.o.Now()
	h := Health{Site: a.o.Site.Name, Version: a.o.Version, Role: string(me.role)}
	h.Components = []Component{
		storeHealth(f), keeperHealth(f, me), a.roundHealth(f, me, now), documentHealth(f), statusHealth(f), a.driftHealth(f, me, now), inventoryHealth(me, a.stale(), now),
		runHealth(a, f), lockHealth(f), holdsHealth(f),
	}
	h.Components = append(h.Components, a.trustHealth(now)...)
	h.Components = append(h.Components, a.certificatesHealth(now)...)
	h.Components = append(h.Components, a.eventsHealth(me, now)...)
	var many []Component
	for _, c := range a.providersHealth(f, me, now) {
		if c.Critical || strings.HasPrefix(c.Name, "provider/"+schema.ScopeSite+"/") {
			h.Components = append(h.Components, c)
		} else {
			many = append(many, c)
		}
	}
	sum, each := nodesHealth(f, a.nodes())
	h.Components, many = append(h.Components, sum), append(many, each...)
	slices.SortStableFunc(many, func(a, b Component) int {
		return cmp.Or(severity[b.State]-severity[a.State], strings.Compare(a.Name, b.Name))
	})
	h.Omitted = max(0, len(many)-mostOfNodes)
	h.Components = append(h.Components, many[:len(many)-h.Omitted]...)
	h.State = OK
	for i := range h.Components {
		c := &h.Components[i]
		c.Detail = a.text(c.Detail)
		if c.Critical {
			h.State = worse(h.State, c.State)
		}
	}
	return h
}

// at returns a time for Since.
func at(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// unread is a component that could not be read from the store.
func unread(name string, critical bool, f *facts, err error) (Component, bool) {
	c := Component{Name: name, Critical: critical}
	switch {
	case f.store != nil:
		c.State, c.Detail = Unknown, "the store does not answer"
	case err != nil:
		c.State, c.Detail = Error, err.Error()
	default:
		return c, false
	}
	return c, true
}

func storeHealth(f *facts) Component {
	if f.store != nil {
		return Component{Name: "store", State: Critical, Critical: true, Detail: f.store.Error()}
	}
	return Component{Name: "store", State: OK, Critical: true}
}

func keeperHealth(f *facts, me standing) Component {
	c, bad := unread("keeper", true, f, nil)
	switch {
	case bad:
	case me.role == keeping:
		c.State, c.Detail, c.Since = OK, "this replica keeps the site", at(me.since)
	case f.keeper == nil:
		c.State, c.Detail = Error, "nobody keeps the site"
	case me.role == waiting:
		c.State, c.Detail, c.Since = OK, "kept by "+f.keeper.Who+fmt.Sprintf(" (PID %d); this replica is on standby", f.keeper.PID), at(f.keeper.Since)
	default:
		c.State, c.Detail = Unknown, "this replica is starting"
	}
	return c
}

// looks reports whether this replica, which keeps the site, looks at it: a round has ended not long ago, or one lasts because of the run
// that it makes, or there is no document yet, and so nothing to look at until one comes. Last is when a round ended.
func (a *API) looks(f *facts, me standing, last, now time.Time) bool {
	return me.run != "" || now.Sub(last) <= a.stale() || f.store == nil && f.headErr == nil && f.head == nil
}

func (a *API) roundHealth(f *facts, me standing, now time.Time) Component {
	c := Component{Name: "round", Critical: me.role != waiting, State: Unknown}
	switch {
	case me.role == waiting:
		c.Detail = "this replica is on standby and looks at nothing"
	case me.round == nil:
		c.Detail = "this replica has not looked at the site yet"
	case !a.looks(f, me, me.round.ended, now):
		c.Detail, c.Since = "this replica has not looked at the site since "+clock(me.round.ended), at(me.round.ended)
	case me.round.err != "":
		c.State, c.Detail, c.Since = Error, me.round.err, at(me.round.ended)
	default:
		c.State, c.Since = OK, at(me.round.ended)
	}
	return c
}

func documentHealth(f *facts) Component {
	c, bad := unread("document", true, f, f.headErr)
	switch {
	case bad:
	case f.head == nil:
		c.State, c.Detail = Warn, "the site has no document yet"
	default:
		c.State, c.Since = OK, at(f.head.At)
		c.Detail = fmt.Sprintf("serial %d by %s", f.head.Serial, f.head.By)
	}
	return c
}

// phaseStates says how good each phase is.
var phaseStates = map[site.Phase]State{
	site.InSync: OK, site.Applying: OK, site.NoDocument: Warn, site.Differs: Warn, site.Waiting: Warn, site.Refused: Warn, site.Held: Warn,
	site.Unknown: Unknown, site.Failed: Error,
}

func statusHealth(f *facts) Component {
	c, bad := unread("status", true, f, f.statusErr)
	switch {
	case bad:
	case f.status == nil:
		c.State, c.Detail = Unknown, "no site agent has reported yet"
	default:
		c.State, c.Since = cmp.Or(phaseStates[f.status.Phase], Warn), at(f.status.Since)
		c.Detail = string(f.status.Phase)
		if f.status.Detail != "" {
			c.Detail += ": " + f.status.Detail
		}
	}
	return c
}

// clock returns a time as it is written in a detail.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func (a *API) driftHealth(f *facts, me standing, now time.Time) Component {
	c, bad := unread("drift", false, f, f.driftErr)
	if bad {
		return c
	}
	r := f.drift
	if r == nil {
		c.State, c.Detail = Unknown, "the site has not been compared yet"
		return c
	}
	c.Since = at(r.At)
	counted := func(format string, counts ...any) string {
		text := fmt.Sprintf(format, counts...)
		if r.Omitted > 0 { // the report would have been too large for the store
			text = fmt.Sprintf("at least %s; %d more entries are left out of the report", text, r.Omitted)
		}
		return text
	}
	last := me.looked // the report is not published again while it is the same
	if last.IsZero() {
		last = me.since
	}
	switch {
	case me.role == keeping && !a.looks(f, me, last, now):
		c.State, c.Detail = Unknown, "the site has not been compared since "+clock(last)
	case !r.Complete:
		c.State, c.Detail = Unknown, counted("%d kinds could not be observed", len(r.Unknown))
	case r.Clean():
		c.State, c.Detail = OK, fmt.Sprintf("%d resources are as they were left", r.Recorded)
	default:
		c.State = Warn
		c.Detail = counted("%d drifted, %d changed in fields that the document does not state, %d stray", len(r.Drifted), len(r.Unstated), len(r.Strays))
	}
	return c
}

func runHealth(a *API, f *facts) Component {
	c, bad := unread("run", false, f, nil)
	if bad {
		return c
	}
	runs := a.runs.get()
	switch {
	case runs.err != nil:
		c.State, c.Detail = Error, runs.err.Error()
		return c
	case len(runs.list) == 0:
		c.State, c.Detail = OK, "there was no run yet"
		return c
	}
	r := runs.list[0]
	c.Detail, c.Since = r.ID+" "+r.Stands(), at(r.Started)
	if r.Ended != nil {
		c.Since = at(*r.Ended)
	}
	switch {
	case r.Status == state.RunApplied, r.Status == state.RunOpen && f.lock != nil && f.lock.Run == r.ID:
		c.State = OK
	case r.Status == state.RunOpen:
		c.State, c.Detail = Error, r.ID+" is open, and no process carries it out"
	case r.Status == state.RunPartial:
		c.State = Error
	default:
		c.State = Warn
	}
	return c
}

func lockHealth(f *facts) Component {
	c, bad := unread("lock", false, f, f.lockErr)
	switch {
	case bad:
	case f.lock == nil:
		c.State, c.Detail = OK, "nobody works on the site"
	default:
		c.State, c.Since = OK, at(f.lock.Created)
		c.Detail = fmt.Sprintf("%s by %s", f.lock.Operation, f.lock.Who)
	}
	return c
}

func holdsHealth(f *facts) Component {
	c, bad := unread("holds", false, f, f.stopsErr)
	switch {
	case bad:
	case len(f.stops) == 0:
		c.State = OK
	default:
		c.State, c.Detail, c.Since = Warn, f.stops[0].Text(), at(f.stops[0].At)
		if more := len(f.stops) - 1; more > 0 {
			c.Detail += fmt.Sprintf(" (and %d more)", more)
		}
	}
	return c
}

// trustHealth returns one component for all lifetimes, and one for each that needs attention.
func (a *API) trustHealth(now time.Time) []Component {
	all := Component{Name: "trust", State: OK, Critical: true}
	var d *trust.Document
	if a.o.Trust != nil {
		d = a.o.Trust()
	}
	if d == nil {
		all.State, all.Detail = Unknown, "the keys of the site are not known"
		return []Component{all}
	}
	all.Detail = fmt.Sprintf("version %d of the trust document, until %s", d.Version, d.NotAfter.UTC().Format(time.RFC3339))
	list := []Component{all}
	for _, alarm := range d.Alarms(now) {
		c := Component{Name: "trust/" + alarm.What, State: OK, Critical: true}
		switch {
		case !now.Before(alarm.NotAfter):
			c.State, c.Since = Critical, at(alarm.NotAfter)
		case alarm.Share >= 90:
			c.State = Error
		case alarm.Share >= 75:
			c.State = Warn
		}
		c.Detail = fmt.Sprintf("%d %% of its life have passed; it ends %s", alarm.Share, alarm.NotAfter.UTC().Format(time.RFC3339))
		list = append(list, c)
		list[0].State = worse(list[0].State, c.State)
	}
	return list
}

// A provider is how one is reached.
type provider struct {
	providers.Need
	known bool      // it was observed, and not long ago; and it is one of the site, or its node is connected
	gone  bool      // its node is not connected
	last  time.Time // when it was last observed; zero: never
	err   string
	since time.Time
}

// stale is how old an observation may be until it says nothing any more: everything is observed again with each sweep.
func (a *API) stale() time.Duration { return 2*a.o.Sweep + time.Minute }

// providers returns how each provider is reached, by scope and name. What could not be opened is in the drift report only, since nothing
// there is observed.
func (a *API) providers(f *facts, now time.Time) []provider {
	all := map[providers.Need]*provider{}
	get := func(n providers.Need) *provider {
		if all[n] == nil {
			all[n] = &provider{Need: n}
		}
		return all[n]
	}
	for _, n := range a.o.Needs() {
		get(n)
	}
	a.mu.Lock()
	keeps := a.role == keeping
	for at, seen := range a.observed {
		p := get(providers.Need{Scope: at.Scope, Provider: schema.Ref{Kind: at.Kind}.Provider()})
		if seen.at.After(p.last) {
			p.last = seen.at
		}
		if now.Sub(seen.at) > a.stale() { // it says nothing any more, except that there is such a provider
			continue
		}
		switch {
		case !p.known, p.err == "" && seen.err != "":
			p.err, p.since = seen.err, seen.since
		case (p.err == "") == (seen.err == "") && seen.since.After(p.since):
			p.since = seen.since
		}
		p.known = true
	}
	a.mu.Unlock()
	if keeps && f.drift != nil {
		for _, u := range f.drift.Unknown {
			p := get(providers.Need{Scope: u.Scope, Provider: schema.Ref{Kind: u.Kind}.Provider()})
			if !p.known || p.err == "" {
				p.known, p.err, p.since = true, u.Error, f.drift.At
			}
		}
	}
	connected := map[string]bool{schema.ScopeSite: true}
	for _, n := range a.nodes() {
		connected[n.Name] = n.Connected
	}
	list := make([]provider, 0, len(all))
	for _, p := range all {
		if !connected[p.Scope] { // what it was when its node was last there says nothing about now
			p.known, p.gone = false, true
		}
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b provider) int {
		return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Provider, b.Provider))
	})
	return list
}

func (a *API) providersHealth(f *facts, me standing, now time.Time) []Component {
	var list []Component
	for _, p := range a.providers(f, now) {
		c := Component{Name: "provider/" + p.Scope + "/" + p.Provider, Critical: p.Scope == schema.ScopeSite && me.role != waiting, State: Unknown}
		switch {
		case me.role == waiting:
			c.Detail = "this replica is on standby and looks at nothing"
		case p.gone:
			c.Detail = "its node is not connected to this replica"
		case !p.known && !p.last.IsZero():
			c.Detail, c.Since = "it has not been observed since "+clock(p.last), at(p.last)
		case !p.known:
			c.Detail = "it has not been observed, or nothing of the document is in it"
		case p.err != "":
			c.State, c.Detail, c.Since = Error, p.err, at(p.since)
		default:
			c.State, c.Since = OK, at(p.since)
		}
		list = append(list, c)
	}
	return list
}

// A NodeView is a node: what the site knows of its identity, and how its agent is connected to this replica.
type NodeView struct {
	Name    string            `json:"name"`
	Status  state.NodeStatus  `json:"status"`
	Expires *time.Time        `json:"certificate_not_after,omitempty"`
	Serial  string            `json:"certificate_serial,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Reason  string            `json:"reason,omitempty"` // why it is banned

	Connected bool          `json:"connected"`
	Health    string        `json:"health,omitempty"` // ok, degraded, hung or away; empty: it has never come to this replica
	Since     *time.Time    `json:"since,omitempty"`  // when it came, or went
	Heard     *time.Time    `json:"heard,omitempty"`  // when it last answered
	Agent     string        `json:"agent,omitempty"`  // version of its agent
	Trust     int64         `json:"trust,omitempty"`  // version of its trust document
	Running   int           `json:"running,omitempty"`
	Providers []string      `json:"providers,omitempty"`
	Missing   []MissingView `json:"missing,omitempty"`
	Unwell    []MissingView `json:"unwell,omitempty"` // what it serves and whose far side is unavailable
}

// A MissingView is a provider of a node that could not be opened, or whose far side is unavailable.
type MissingView struct {
	Provider string `json:"provider"`
	Why      string `json:"why"`
}

// nodeViews joins what the store knows with what is connected, by name. A node that connects without the store knowing it is none.
func nodeViews(stored []state.Node, live []site.NodeStatus) []NodeView {
	at := func(t time.Time) *time.Time { return at(t) }
	list := make([]NodeView, len(stored))
	for i := range stored {
		n := &stored[i]
		v := NodeView{Name: n.Name, Status: n.Status(), Expires: at(n.Expires), Serial: n.Serial, Labels: n.Labels}
		if n.Ban != nil {
			v.Reason = n.Ban.Reason
		}
		if j, ok := slices.BinarySearchFunc(live, n.Name, func(s site.NodeStatus, name string) int { return strings.Compare(s.Name, name) }); ok {
			s := live[j]
			v.Connected, v.Since, v.Heard = s.Connected, at(s.Since), at(s.Heard)
			v.Agent, v.Trust, v.Providers = s.Agent, s.Trust, s.Providers
			if v.Health, _ = s.Health(); s.Connected {
				v.Running = s.Running
			}
			for _, m := range s.Missing {
				v.Missing = append(v.Missing, MissingView{m.Provider, m.Why})
			}
			for _, m := range s.Unwell {
				v.Unwell = append(v.Unwell, MissingView{m.Provider, m.Why})
			}
		}
		list[i] = v
	}
	return list
}

// node states for counting
const (
	nodeConnected = "connected"
	nodeSilent    = "silent"
	nodeRefused   = "refused"
)

// standsAs returns which of those a node is; empty while it has no certificate.
func (n *NodeView) standsAs() string {
	switch {
	case n.Status == state.NodeBanned:
		return nodeRefused
	case n.Connected:
		return nodeConnected
	case n.Status == state.NodePending:
		return ""
	}
	return nodeSilent
}

func nodesHealth(f *facts, live []site.NodeStatus) (sum Component, each []Component) {
	sum, bad := unread("nodes", false, f, f.nodesErr)
	if bad {
		return sum, nil
	}
	sum.State = OK
	counts := map[string]int{}
	for _, n := range nodeViews(f.nodes, live) {
		c := Component{Name: "node/" + n.Name, State: OK, Since: n.Since}
		as := n.standsAs()
		counts[as]++
		switch {
		case as == nodeRefused:
			c.State, c.Detail = Warn, "it is banned: "+n.Reason
		case as == nodeSilent && n.Since == nil:
			c.State, c.Detail = Error, "it was never connected to this replica"
		case as == nodeSilent:
			c.State, c.Detail = Error, "it is not connected"
		case as == "":
			c.State, c.Detail = Unknown, "it has not enrolled yet"
		case n.Status == state.NodeContested:
			c.State, c.Detail = Warn, "its token was presented by two keys"
		case len(n.Missing) > 0:
			c.State, c.Detail = Warn, n.Agent+"; "+n.Missing[0].Provider+" could not be opened: "+n.Missing[0].Why
		case n.Health == site.NodeHung:
			c.State, c.Detail = Error, "it is connected, and does not answer"
		case len(n.Unwell) > 0:
			c.State, c.Detail = Warn, n.Agent+"; "+n.Unwell[0].Provider+" is unavailable: "+n.Unwell[0].Why
		default:
			c.Detail = n.Agent + "; " + strings.Join(n.Providers, ", ")
		}
		if as == nodeSilent || c.State == Error {
			sum.State = worse(sum.State, Error)
		} else if c.State == Warn && as != nodeRefused {
			sum.State = worse(sum.State, Warn)
		}
		each = append(each, c)
	}
	sum.Detail = fmt.Sprintf("%d connected, %d silent, %d refused", counts[nodeConnected], counts[nodeSilent], counts[nodeRefused])
	return sum, each
}

// A Readiness says whether a replica does what it is for.
type Readiness struct {
	Ready   bool     `json:"ready"`
	Role    string   `json:"role"`
	Holder  string   `json:"holder,omitempty"`  // who keeps the site instead
	Reasons []string `json:"reasons,omitempty"` // why it is not ready
}

// Ready reports whether the store answers and the replica keeps the site and has looked at it once, or is on standby.
func (a *API) Ready() Readiness {
	f, me := a.facts.get(), a.standing()
	r := Readiness{Role: string(me.role)}
	if f.store != nil {
		r.Reasons = append(r.Reasons, a.text("the store does not answer: "+f.store.Error()))
	}
	switch {
	case me.role == starting:
		r.Reasons = append(r.Reasons, "the replica neither keeps the site nor is on standby yet")
	case me.role == keeping && me.round == nil:
		r.Reasons = append(r.Reasons, "the replica has not looked at the site yet")
	case me.role == waiting && me.holder != nil:
		r.Holder = me.holder.Who
	}
	r.Ready = len(r.Reasons) == 0
	return r
}

func (r Readiness) code() int {
	if r.Ready {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}
