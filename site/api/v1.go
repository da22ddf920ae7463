package api

import (
	"context"
	_ "embed" // the description
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
)

// How long a request waits.
const (
	inTurn  = 2 * time.Second  // until it may read all records
	longest = 10 * time.Second // while all records are read
	brief   = 5 * time.Second  // while runs and their steps are read
)

// Pages.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// routes returns what is served besides the health of the process, by path.
func (a *API) routes() map[string]answer {
	return map[string]answer{
		"/state":             plainly(func(*http.Request) (any, int, error) { return a.Health(), 0, nil }),
		"/v1/site":           plainly(a.site),
		"/v1/resources":      a.resources,
		"/v1/runs":           a.listRuns,
		"/v1/runs/{id}":      a.oneRun,
		"/v1/drift":          plainly(a.drift),
		"/v1/nodes":          a.listNodes,
		"/v1/inventory":      a.inventory,
		"/v1/plans":          plainly(a.listPlans),
		"/v1/plans/{digest}": plainly(a.onePlan),
		"/v1/holds":          plainly(a.holds),
		"/v1/openapi.json":   plainly(func(*http.Request) (any, int, error) { return description() }),
	}
}

//go:embed openapi.yaml
var openAPI []byte

// description returns the OpenAPI description as JSON.
func description() (any, int, error) {
	var d any
	if err := yaml.Unmarshal(openAPI, &d); err != nil {
		return nil, 0, err
	}
	return d, 0, nil
}

// plainly answers requests that take no query.
func plainly(f answer) answer {
	return func(r *http.Request) (any, int, error) {
		if _, err := queried(r); err != nil {
			return nil, 0, err
		}
		return f(r)
	}
}

// A page is a part of a list that a request asks for. Of an inventory, since is the text of the revision after which it has changed.
type page struct {
	after string
	limit int
	since string
}

// pageOf returns the page that the query asks for; it may have more parameters than those of all pages.
func pageOf(r *http.Request, more ...string) (page, error) {
	q, err := queried(r, append([]string{"after", "limit"}, more...)...)
	p := page{after: q["after"], limit: DefaultPage, since: q["since"]}
	if err != nil {
		return p, err
	}
	if text, ok := q["limit"]; ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > MaxPage {
			return p, problem(http.StatusBadRequest, "limit: want a number from 1 to %d", MaxPage)
		}
		p.limit = n
	}
	return p, nil
}

// cut returns the elements of a page of a list that begins at from, and the name after which the next one begins; empty for none.
func cut[T any](list []T, from int, p page, name func(*T) string) (part []T, next string) {
	part = list[from:min(from+p.limit, len(list))]
	if from+len(part) < len(list) {
		next = name(&part[len(part)-1])
	}
	if part == nil {
		part = []T{} // as JSON a list, too
	}
	return part, next
}

// An awayError says that the store could not be read.
type awayError struct{ error }

// Error implements error.
func (e awayError) Error() string { return "the store does not answer: " + e.error.Error() }

// Unwrap returns what the store says.
func (e awayError) Unwrap() error { return e.error }

// away is the error for what the store could not say.
func away(err error) error { return awayError{err} }

// A SiteView is a site in a few numbers.
type SiteView struct {
	Site     string            `json:"site"`
	ID       string            `json:"id"`
	Mode     string            `json:"mode"` // of this replica
	Version  string            `json:"version"`
	Role     string            `json:"role"`
	Status   *site.Status      `json:"status"`   // as the keeper has published it
	Document *state.Head       `json:"document"` // its newest revision
	LastRun  *state.Run        `json:"last_run"`
	Holds    []state.Hold      `json:"holds"`
	Lock     *state.LockInfo   `json:"lock"`   // who works on the site
	Keeper   *state.KeeperInfo `json:"keeper"` // who keeps it
}

func (a *API) site(*http.Request) (any, int, error) {
	f, all := a.facts.get(), a.runs.get()
	if err := errors.Join(f.store, f.headErr, f.stopsErr, f.lockErr, all.err); err != nil {
		return nil, 0, away(err)
	}
	v := SiteView{
		Site: a.o.Site.Name, ID: a.o.Site.ID, Mode: a.o.Mode, Version: a.o.Version, Role: string(a.standing().role),
		Status: f.status, Document: f.head, Holds: stopped(f), Lock: f.lock, Keeper: f.keeper,
	}
	if f.status != nil {
		status := *f.status
		status.Detail = a.text(status.Detail)
		v.Status = &status
	}
	if len(all.list) > 0 {
		last := a.clean(all.list[0])
		v.LastRun = &last
	}
	return v, 0, nil
}

// A HoldsView lists what is on hold.
type HoldsView struct {
	Holds []state.Hold `json:"holds"` // and the freeze, if there is one
}

// stopped returns the holds, which a client gets as a list even if there are none.
func stopped(f *facts) []state.Hold {
	if f.stops == nil {
		return []state.Hold{}
	}
	return f.stops
}

func (a *API) holds(*http.Request) (any, int, error) {
	f := a.facts.get()
	if err := errors.Join(f.store, f.stopsErr); err != nil {
		return nil, 0, away(err)
	}
	return HoldsView{stopped(f)}, 0, nil
}

// A ResourcesPage is a part of the recorded resources.
type ResourcesPage struct {
	Resources []state.Record `json:"resources"` // sorted by ref
	Next      string         `json:"next,omitempty"`
}

// alone waits until no other request reads what takes much memory.
func (a *API) alone(r *http.Request) (done func(), err error) {
	queue := time.NewTimer(inTurn)
	defer queue.Stop()
	select {
	case a.turn <- struct{}{}:
		return func() { <-a.turn }, nil
	case <-queue.C:
		return nil, problem(http.StatusServiceUnavailable, "something large is being read for other requests, one at a time")
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
}

func (a *API) resources(r *http.Request) (any, int, error) {
	p, err := pageOf(r)
	if err != nil {
		return nil, 0, err
	}
	var after schema.Ref
	if p.after != "" {
		if after, err = schema.ParseRef(p.after); err != nil {
			return nil, 0, problem(http.StatusBadRequest, "after: %v", err)
		}
	}
	done, err := a.alone(r)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(r.Context(), longest)
	defer cancel()
	records, err := a.o.Store.Records(ctx)
	if err != nil {
		return nil, 0, away(err)
	}
	records = slices.DeleteFunc(records, func(r state.Record) bool { return r.Gone })
	from := 0
	if p.after != "" {
		at, found := slices.BinarySearchFunc(records, after, func(r state.Record, ref schema.Ref) int { return r.Ref.Compare(ref) })
		if from = at; found {
			from++
		}
	}
	part, next := cut(records, from, p, func(r *state.Record) string { return r.Ref.String() })
	masked := make([]state.Record, len(part)) // a page must not keep all others in memory
	for i := range part {
		masked[i] = a.o.MaskRecord(part[i])
	}
	return ResourcesPage{masked, next}, 0, nil
}

// A RunsPage is a part of the runs.
type RunsPage struct {
	Runs []state.Run `json:"runs"` // newest first
	Next string      `json:"next,omitempty"`
}

func (a *API) listRuns(r *http.Request) (any, int, error) {
	p, err := pageOf(r)
	if err != nil {
		return nil, 0, err
	}
	all := a.runs.get()
	if all.err != nil {
		return nil, 0, away(all.err)
	}
	from := 0
	if p.after != "" {
		if from = slices.IndexFunc(all.list, func(r state.Run) bool { return r.ID == p.after }) + 1; from == 0 {
			return nil, 0, problem(http.StatusBadRequest, "after: there is no run %s", p.after)
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), brief)
	defer cancel()
	part, next := cut(all.list, from, p, func(r *state.Run) string { return r.ID })
	part = slices.Clone(part)
	for i := range part {
		part[i] = a.clean(part[i])
		if part[i].Done, err = engine.Finished(ctx, a.o.Store, part[i]); err != nil {
			return nil, 0, away(err)
		}
	}
	return RunsPage{part, next}, 0, nil
}

// A RunView is a run with a part of its steps.
type RunView struct {
	state.Run
	Each []engine.StepReport `json:"each_step"`
	Next string              `json:"next,omitempty"` // the number of a step
}

func (a *API) oneRun(r *http.Request) (any, int, error) {
	p, err := pageOf(r)
	if err != nil {
		return nil, 0, err
	}
	from := 0
	if p.after != "" {
		if from, err = strconv.Atoi(p.after); err != nil || from < 0 || from >= math.MaxInt32 {
			return nil, 0, problem(http.StatusBadRequest, "after: want the number of a step")
		}
		from++
	}
	done, err := a.alone(r) // all steps are read for a page of them
	if err != nil {
		return nil, 0, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(r.Context(), brief)
	defer cancel()
	id := r.PathValue("id")
	run, err := a.o.Store.Run(ctx, id)
	if errors.Is(err, state.ErrNotFound) {
		return nil, 0, problem(http.StatusNotFound, "there is no run %s", id)
	}
	if err != nil {
		return nil, 0, away(err)
	}
	steps, err := engine.Steps(ctx, a.o.Store, run)
	if err == nil {
		run.Done, err = engine.Finished(ctx, a.o.Store, run)
	}
	if err != nil {
		return nil, 0, away(err)
	}
	part, next := cut(steps, min(from, len(steps)), p, func(s *engine.StepReport) string { return strconv.Itoa(s.Step) })
	part = slices.Clone(part)
	for i := range part {
		s := &part[i]
		if s.Message = a.text(s.Message); s.Undo != nil {
			s.Undo.Message = a.text(s.Undo.Message)
		}
	}
	return RunView{a.clean(run), part, next}, 0, nil
}

// clean returns a run whose texts may be shown.
func (a *API) clean(r state.Run) state.Run {
	r.Message = a.text(r.Message)
	return r
}

func (a *API) drift(*http.Request) (any, int, error) {
	f := a.facts.get()
	if err := errors.Join(f.store, f.driftErr); err != nil {
		return nil, 0, away(err)
	}
	if f.drift == nil {
		return nil, 0, problem(http.StatusNotFound, "the site has not been compared yet")
	}
	stored := *f.drift
	r := a.o.MaskDrift(&stored) // again: an older program may have published it
	r.Unknown = slices.Clone(r.Unknown)
	for i := range r.Unknown {
		r.Unknown[i].Error = a.text(r.Unknown[i].Error)
	}
	if r.Drifted == nil {
		r.Drifted = []drift.Item{}
	}
	if r.Unstated == nil {
		r.Unstated = []drift.Item{}
	}
	return r, 0, nil
}

// A NodesPage is a part of the nodes.
type NodesPage struct {
	Nodes []NodeView `json:"nodes"` // sorted by name
	Next  string     `json:"next,omitempty"`
}

func (a *API) listNodes(r *http.Request) (any, int, error) {
	p, err := pageOf(r)
	if err != nil {
		return nil, 0, err
	}
	f := a.facts.get()
	if err := errors.Join(f.store, f.nodesErr); err != nil {
		return nil, 0, away(err)
	}
	all := nodeViews(f.nodes, a.nodes())
	from := 0
	if p.after != "" {
		at, found := slices.BinarySearchFunc(all, p.after, func(n NodeView, name string) int { return strings.Compare(n.Name, name) })
		if from = at; found {
			from++
		}
	}
	part, next := cut(all, from, p, func(n *NodeView) string { return n.Name })
	for i := range part {
		for j := range part[i].Missing {
			part[i].Missing[j].Why = a.text(part[i].Missing[j].Why)
		}
		for j := range part[i].Unwell {
			part[i].Unwell[j].Why = a.text(part[i].Unwell[j].Why)
		}
	}
	return NodesPage{part, next}, 0, nil
}

// A WaitingView is a plan that waits for approval.
type WaitingView struct {
	Approval  string           `json:"approval"` // its digest
	Serial    int64            `json:"serial"`   // of its document
	Steps     int              `json:"steps"`
	Why       string           `json:"why"`
	Since     time.Time        `json:"since"`
	Needs     int              `json:"needs"`        // approvals of different people
	By        []string         `json:"by,omitempty"` // whose count; empty: anyone's
	Approvals []state.Approval `json:"approvals"`    // that count
}

// A PlansView lists what waits for approval.
type PlansView struct {
	Waiting []WaitingView `json:"waiting"` // at most one
}

// ViewPlans returns what waits, as [site.Waits] returns it.
func ViewPlans(w *state.Waiting, approvals []state.Approval) PlansView {
	v := PlansView{[]WaitingView{}}
	if w != nil {
		if approvals == nil {
			approvals = []state.Approval{}
		}
		v.Waiting = append(v.Waiting, WaitingView{w.Approval, w.Site.Serial, w.Steps, w.Why, w.Since, w.Needs, w.By, approvals})
	}
	return v
}

func (a *API) listPlans(r *http.Request) (any, int, error) {
	ctx, cancel := context.WithTimeout(r.Context(), brief)
	defer cancel()
	w, approvals, err := site.Waits(ctx, a.o.Store)
	if err != nil {
		return nil, 0, away(err)
	}
	v := ViewPlans(w, approvals)
	for i := range v.Waiting {
		v.Waiting[i].Why = a.text(v.Waiting[i].Why)
	}
	return v, 0, nil
}

func (a *API) onePlan(r *http.Request) (any, int, error) {
	ctx, cancel := context.WithTimeout(r.Context(), brief)
	defer cancel()
	w, err := a.planThatWaits(r.WithContext(ctx))
	if err != nil {
		return nil, 0, err
	}
	p, err := site.WaitingPlan(ctx, a.o.Store, w)
	if err != nil {
		return nil, 0, away(err)
	}
	return a.o.ShowPlan(p, w), 0, nil
}

// Paths returns what [API.Handler] serves to be read, as patterns of package net/http, sorted.
func Paths() []string {
	paths := []string{"/healthz", "/readyz"}
	for path := range (*API)(nil).routes() {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// Changes returns what [API.Handler] lets clients change, as METHOD PATH, sorted.
func Changes() (list []string) {
	for path, methods := range (*API)(nil).writers() {
		for method := range methods {
			list = append(list, method+" "+path)
		}
	}
	slices.Sort(list)
	return list
}
