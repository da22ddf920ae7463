package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/encoding/jsonschema"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/site"
	"converge.dev/converge/site/api"
	"converge.dev/converge/state"
	"converge.dev/converge/trust/certs"
)

// operations are those of a path, by method in lower case.
type operations struct {
	Operations map[string]operation
}

// An operation is described.
type operation struct {
	Role      string `json:"x-role"`
	Responses map[string]struct {
		Ref     string `json:"$ref"`
		Content map[string]struct {
			Schema struct {
				Ref string `json:"$ref"`
			} `json:"schema"`
		} `json:"content"`
	} `json:"responses"`
}

// UnmarshalJSON leaves out what the operations of a path share.
func (o *operations) UnmarshalJSON(text []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	o.Operations = map[string]operation{}
	for method, body := range all {
		var one operation
		if method == "parameters" {
			continue
		}
		if err := json.Unmarshal(body, &one); err != nil {
			return err
		}
		o.Operations[method] = one
	}
	return nil
}

// A description is the OpenAPI description as it is served.
type description struct {
	OpenAPI    string                `json:"openapi"`
	Paths      map[string]operations `json:"paths"`
	Components struct {
		Schemas map[string]map[string]any `json:"schemas"`
	} `json:"components"`

	schemas cue.Value // those of Components, closed: they name every field
}

func describe(b *bed) *description {
	b.t.Helper()
	d, status := into[description](b, "/v1/openapi.json")
	if status != http.StatusOK || d.OpenAPI != "3.1.0" {
		b.t.Fatalf("status %d, version %s", status, d.OpenAPI)
	}
	var closed func(v any)
	closed = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, e := range v {
				closed(e)
			}
			if _, ok := v["properties"].(map[string]any); ok && v["type"] == "object" {
				v["additionalProperties"] = false
			}
		case []any:
			for _, e := range v {
				closed(e)
			}
		}
	}
	defs := map[string]any{}
	for name, s := range d.Components.Schemas {
		closed(s)
		defs[name] = s
	}
	text, err := json.Marshal(map[string]any{"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": defs})
	if err != nil {
		b.t.Fatal(err)
	}
	text = []byte(strings.ReplaceAll(string(text), "#/components/schemas/", "#/$defs/"))
	ctx := cuecontext.New()
	file, err := jsonschema.Extract(ctx.CompileBytes(text), &jsonschema.Config{StrictFeatures: true})
	if err != nil {
		b.t.Fatal(err)
	}
	d.schemas = ctx.BuildFile(file)
	if err := d.schemas.Err(); err != nil {
		b.t.Fatal(err)
	}
	return &d
}

// check fails the test unless a body is as the description says.
func (d *description) check(t *testing.T, path, status, kind, body string) {
	t.Helper()
	d.checkOf(t, "get", path, status, kind, body)
}

func (d *description) checkOf(t *testing.T, method, path, status, kind, body string) {
	t.Helper()
	operation, ok := d.Paths[path].Operations[method]
	if !ok {
		t.Errorf("%s is not described", path)
		return
	}
	response, ok := operation.Responses[status]
	if !ok {
		response = operation.Responses["default"]
	}
	if strings.HasSuffix(response.Ref, "/Problem") {
		response.Content = map[string]struct {
			Schema struct {
				Ref string `json:"$ref"`
			} `json:"schema"`
		}{"application/problem+json": {Schema: struct {
			Ref string `json:"$ref"`
		}{"#/components/schemas/Problem"}}}
	}
	content, ok := response.Content[kind]
	if !ok {
		t.Errorf("%s: status %s with %q is not described", path, status, kind)
		return
	}
	name := strings.TrimPrefix(content.Schema.Ref, "#/components/schemas/")
	if name == "" {
		return
	}
	if err := d.valid(name, body); err != nil {
		t.Errorf("%s: status %s is not a %s: %v\n%s", path, status, name, err, body)
	}
}

func (d *description) valid(name, body string) error {
	s := d.schemas.LookupPath(cue.MakePath(cue.Def(name)))
	if err := s.Err(); err != nil {
		return err
	}
	v := cuecontext.New().CompileString(body)
	return s.Unify(v).Validate(cue.Concrete(true), cue.Final())
}

// Every route is described, every described path is a route, and what they answer is what the description says.
func TestDescription(t *testing.T) {
	b := newBed(t)
	b.keep()
	d := describe(b)
	if d.valid("Problem", `{"title": "x", "status": 1, "other": true}`) == nil || d.valid("Problem", `{"title": "x"}`) == nil || d.valid("Component", `{"name": "x", "state": "fine", "critical": true}`) == nil {
		t.Fatal("the description allows anything")
	}
	b.enrol(state.Node{Name: "gpu-01", Labels: map[string]string{"rack": "7"}})
	b.nodes = []site.NodeStatus{{Name: "gpu-01", Connected: true, Since: b.time(), Standing: site.Standing{
		Agent: "1.2.3", Trust: 1, Running: 1, Providers: []string{"ovs"}, Missing: []site.Missing{{Provider: "libvirt", Why: "no socket"}}, Heard: b.time()}}}
	b.commit(b.Store.HoldOp(state.Hold{Scope: "site", Reason: "work", By: "ada"}))
	b.publish("drift/latest", drift.Report{Site: schema.Site{Name: "test"}, Drifted: []drift.Item{{ID: "1", Missing: true}}, Unknown: []plan.Unknown{{Scope: "n1", Kind: "k", Error: "away"}}})
	b.pass(time.Minute)
	w := b.waits(1)
	runs, _ := into[api.RunsPage](b, "/v1/runs")
	asked := strings.NewReplacer("{id}", runs.Runs[0].ID, "{digest}", w.Approval).Replace
	for _, path := range api.Paths() {
		res, body := b.get(asked(path))
		if res.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
		kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
		d.check(t, path, fmt.Sprint(res.StatusCode), kind, body)
		if res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("X-Content-Type-Options") != "nosniff" || res.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: header %v", path, res.Header)
		}
	}
	served := api.Changes()
	for _, path := range api.Paths() {
		served = append(served, "GET "+path)
	}
	for path, all := range d.Paths {
		for method, o := range all.Operations {
			name := strings.ToUpper(method) + " " + strings.ReplaceAll(path, "{scope}", "{scope...}")
			if !slices.Contains(served, name) {
				t.Errorf("%s is described, and is not served", name)
			}
			served = slices.DeleteFunc(served, func(s string) bool { return s == name })
			if role := certs.Role(o.Role); (method == "get") != (role == "") || role != "" && !slices.Contains(certs.AllRoles, role) {
				t.Errorf("%s has the role %q", name, role)
			}
		}
	}
	if len(served) > 0 {
		t.Errorf("%v are not described", served)
	}
	// What goes wrong is described, too.
	for _, asked := range []string{"/v1/runs/none", "/v1/resources?limit=0", "/v1/resources?limit=1001", "/v1/resources?after=x", "/v1/runs?after=x", "/v1/nodes?limit=x",
		"/v1/nodes?limit=", "/v1/nodes?limit=%zz", "/v1/nodes?since=1", "/v1/resources?kind=ovs.port", "/v1/site?after=x", "/v1/runs?limit=1&limit=2"} {
		res, body := b.get(asked)
		if res.StatusCode != http.StatusBadRequest && res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", asked, res.StatusCode)
		}
		path, _, _ := strings.Cut(asked, "?")
		d.check(t, strings.Replace(path, "none", "{id}", 1), fmt.Sprint(res.StatusCode), res.Header.Get("Content-Type"), body)
	}
	b.down.Store(true)
	b.pass(time.Minute)
	for _, path := range api.Paths() {
		res, body := b.get(asked(path))
		if strings.Contains(body, scrubed) {
			t.Errorf("%s: %s", path, body)
		}
		kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
		d.check(t, path, fmt.Sprint(res.StatusCode), kind, body)
		if strings.HasPrefix(path, "/v1/") && path != "/v1/openapi.json" && res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("without a store %s: %d", path, res.StatusCode)
		}
	}
	b = newBed(t) // nothing is known yet
	for _, path := range []string{"/readyz", "/state", "/v1/site", "/v1/resources", "/v1/runs", "/v1/drift", "/v1/nodes", "/v1/plans", "/v1/holds", "/v1/inventory"} {
		res, body := b.get(path)
		d.check(t, path, fmt.Sprint(res.StatusCode), res.Header.Get("Content-Type"), body)
	}
}

// The description names the fields of the types that are served, all of them and no others.
func TestDescribedFields(t *testing.T) {
	d := describe(newBed(t))
	for name, v := range map[string]any{
		"Problem": api.Problem{}, "Readiness": api.Readiness{}, "Health": api.Health{}, "Component": api.Component{}, "SiteView": api.SiteView{}, "Status": site.Status{},
		"Head": state.Head{}, "Hold": state.Hold{}, "Lock": state.LockInfo{}, "Keeper": state.KeeperInfo{}, "Record": state.Record{}, "Left": state.Left{},
		"ResourcesPage": api.ResourcesPage{}, "Run": state.Run{}, "RunsPage": api.RunsPage{}, "RunView": api.RunView{}, "Step": engine.StepReport{}, "Report": drift.Report{},
		"Item": drift.Item{}, "Change": diff.Change{}, "Unmanaged": plan.Unmanaged{}, "UnknownPlace": plan.Unknown{}, "NodesPage": api.NodesPage{}, "NodeView": api.NodeView{},
		"MissingView": api.MissingView{}, "Site": schema.Site{},
		"DocumentProblem": state.InboxProblem{}, "PutView": api.PutView{}, "ReplacedView": api.ReplacedView{}, "ReleasedView": api.ReleasedView{}, "CancelView": api.CancelView{},
		"Approval": state.Approval{}, "ApprovedView": api.ApprovedView{}, "UnapprovedView": api.UnapprovedView{}, "PlansView": api.PlansView{}, "HoldsView": api.HoldsView{}, "WaitingView": api.WaitingView{},
		"InventoryPage": api.InventoryPage{}, "InventoryItem": survey.Item{},
		"Step/undo": engine.StepResult{}, "Head/signature": signed.Signature{}, "Report/marked": drift.Marked{}, "Report/remarks": plan.Remark{}, "Item/taken_by": providers.Mark{},
	} {
		s := d.Components.Schemas[name]
		if outer, field, ok := strings.Cut(name, "/"); ok {
			s = d.Components.Schemas[outer]["properties"].(map[string]any)[field].(map[string]any)
			if items, ok := s["items"].(map[string]any); ok {
				s = items
			}
		}
		properties, _ := s["properties"].(map[string]any)
		want, got := fields(reflect.TypeOf(v)), slices.Sorted(maps.Keys(properties))
		if !slices.Equal(got, want) {
			t.Errorf("openapi.yaml: %s has the fields %v, and %T has %v", name, got, v, want)
		}
	}
}

// fields returns the names of the fields of a type in JSON, sorted.
func fields(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			names = append(names, fields(f.Type)...)
		case name != "-" && f.IsExported():
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Nothing but GET and HEAD is allowed anywhere, and what does not exist is a problem, too.
func TestReadOnly(t *testing.T) {
	b := newBed(t)
	b.keep()
	for name, h := range map[string]http.Handler{"http": b.Handler(), "metrics": b.Metrics()} {
		paths := api.Paths()
		if name == "metrics" {
			paths = []string{"/metrics"}
		}
		for _, path := range paths {
			for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} {
				res, body := ask(h, method, path)
				if res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") != "GET, HEAD" || res.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("%s %s: %d %s", method, path, res.StatusCode, body)
				}
			}
		}
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "OPTIONS"} {
			if res, body := ask(h, method, "/none"); res.StatusCode != http.StatusNotFound || res.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s: %d %s", method, res.StatusCode, body)
			}
		}
	}
}

// What has not changed is not sent again.
func TestTag(t *testing.T) {
	b := newBed(t)
	b.keep()
	for _, path := range []string{"/state", "/v1/site", "/v1/resources", "/v1/runs", "/v1/drift", "/v1/nodes", "/v1/openapi.json"} {
		b.pass(time.Minute)
		res, _ := b.get(path)
		tag := res.Header.Get("ETag")
		b.pass(time.Minute)
		for _, header := range []string{tag, `"x", W/` + tag, "*"} {
			if res, body := b.get(path, "If-None-Match", header); res.StatusCode != http.StatusNotModified || body != "" || tag == "" {
				t.Errorf("%s with %s: %d %q", path, header, res.StatusCode, body)
			}
		}
		if res, _ := b.get(path, "If-None-Match", `"x"`); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
	res, _ := b.get("/v1/site")
	b.commit(b.Store.HoldOp(state.Hold{Scope: "site", Reason: "work", By: "ada"}))
	b.pass(time.Minute)
	if again, _ := b.get("/v1/site", "If-None-Match", res.Header.Get("ETag")); again.StatusCode != http.StatusOK {
		t.Errorf("after a change: %d", again.StatusCode)
	}
	if res, _ := b.get("/v1/runs/none", "If-None-Match", "*"); res.StatusCode != http.StatusNotFound {
		t.Errorf("%d", res.StatusCode)
	}
}

// Pages together are the whole list, in order, each element once.
func TestPages(t *testing.T) {
	b := newBed(t)
	b.keep()
	var want []string
	for i := range 7 {
		name := fmt.Sprintf("gpu-%d", i)
		b.enrol(state.Node{Name: name})
		want = append(want, name)
	}
	b.commit(b.Store.RecordOp(state.Record{Ref: schema.Ref{Scope: "site", Kind: "far.net", Name: "past"}, Gone: true}))
	for i := range 4 {
		b.commit(b.Store.PutRunOp(state.Run{ID: fmt.Sprintf("r%d", i), Status: state.RunApplied}))
	}
	b.pass(time.Minute)
	walk := func(path string, page func(path string) (names []string, next string)) []string {
		t.Helper()
		var all []string
		for after := ""; ; {
			names, next := page(path + "?limit=2&after=" + after)
			if len(names) > 2 || next != "" && len(names) != 2 {
				t.Errorf("%s: a page of %d, next %q", path, len(names), next)
			}
			if all = append(all, names...); next == "" {
				return all
			}
			after = next
		}
	}
	nodes := walk("/v1/nodes", func(path string) (names []string, next string) {
		p, _ := into[api.NodesPage](b, path)
		for _, n := range p.Nodes {
			names = append(names, n.Name)
		}
		return names, p.Next
	})
	if !slices.Equal(nodes, want) {
		t.Errorf("%v", nodes)
	}
	resources := walk("/v1/resources", func(path string) (names []string, next string) {
		p, _ := into[api.ResourcesPage](b, path)
		for _, r := range p.Resources {
			names = append(names, r.Ref.String())
		}
		return names, p.Next
	})
	if want := []string{"site/far.net/prod", "site/far.net/test", "n1/near.bridge/br"}; !slices.Equal(resources, want) {
		t.Errorf("%v", resources)
	}
	runs, _ := into[api.RunsPage](b, "/v1/runs")
	first := runs.Runs[len(runs.Runs)-1].ID
	ids := walk("/v1/runs", func(path string) (names []string, next string) {
		p, _ := into[api.RunsPage](b, path)
		for _, r := range p.Runs {
			names = append(names, r.ID)
		}
		return names, p.Next
	})
	if want := []string{"r3", "r2", "r1", "r0", first}; !slices.Equal(ids, want) {
		t.Errorf("%v", ids)
	}
	steps := walk("/v1/runs/"+first, func(path string) (names []string, next string) {
		p, _ := into[api.RunView](b, path)
		for _, s := range p.Each {
			names = append(names, fmt.Sprint(s.Step, " ", s.Result))
		}
		return names, p.Next
	})
	if want := []string{"0 done", "1 done", "2 done"}; !slices.Equal(steps, want) {
		t.Errorf("%v", steps)
	}
	// Where it goes on has been removed meanwhile.
	if p, _ := into[api.NodesPage](b, "/v1/nodes?after=gpu-33"); len(p.Nodes) != 3 || p.Nodes[0].Name != "gpu-4" {
		t.Errorf("%+v", p)
	}
}

// Secrets appear nowhere.
func TestSecrets(t *testing.T) {
	b := newBed(t)
	b.keep()
	b.commit(b.Store.RecordOp(state.Record{Ref: schema.Ref{Scope: "site", Kind: "far.account", Name: "x"}, ID: "1", Spec: schema.Object{"login": "ada", "password": canary}}))
	b.publish("drift/latest", drift.Report{Complete: true, Drifted: []drift.Item{{Ref: schema.Ref{Scope: "site", Kind: "far.account", Name: "x"}, Changes: []diff.Change{{Path: "password", Before: canary, After: canary}}}}, Unknown: []plan.Unknown{{Scope: "site", Kind: "far.net", Error: scrubed}}})
	b.Rounded(time.Second, fmt.Errorf("cannot log in with %s", scrubed))
	b.publish("status", site.Status{Phase: site.Failed, Detail: "cannot log in with " + scrubed})
	b.commit(b.Store.PutRunOp(state.Run{ID: "r1", Status: state.RunPartial, Message: scrubed}))
	b.enrol(state.Node{Name: "gpu-01"})
	b.nodes = []site.NodeStatus{{Name: "gpu-01", Connected: true, Since: b.time(), Standing: site.Standing{Missing: []site.Missing{{Provider: "x", Why: scrubed}}}}}
	w := b.waits(1)
	b.pass(time.Minute)
	for _, path := range api.Paths() {
		if _, body := b.get(strings.ReplaceAll(path, "{digest}", w.Approval)); strings.Contains(body, canary) || strings.Contains(body, scrubed) {
			t.Errorf("%s: %s", path, body)
		}
	}
	if _, body := ask(b.Metrics(), "GET", "/metrics"); strings.Contains(body, canary) || strings.Contains(body, scrubed) {
		t.Errorf("metrics: %s", body)
	}
	if _, body := b.get("/v1/resources"); !strings.Contains(body, `"login":"ada"`) || !strings.Contains(body, `(sensitive)`) {
		t.Errorf("the rest is not shown: %s", body)
	}
}

// serve serves on an address of this machine, and returns it.
func (b *bed) serve(h http.Handler) (address string, stop func()) {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Serve(ctx, l, h) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-ended; err != nil {
				b.t.Errorf("serve: %v", err)
			}
		}
	}
	b.t.Cleanup(stop)
	return l.Addr().String(), stop
}

// A request that is too large, or that was meant for another host, is refused; the server ends when it is told to.
func TestServe(t *testing.T) {
	b := newBed(t)
	address, stop := b.serve(b.Handler())
	do := func(change func(*http.Request)) int {
		t.Helper()
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/v1/openapi.json", nil)
		change(r)
		res, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	for host, want := range map[string]int{
		"Localhost.:7480": 200, "127.0.0.1.": 200,
		address: 200, "localhost:7480": 200, "localhost": 200, "127.0.0.1": 200, "[::1]:7480": 200,
		"evil.example": 421, "evil.example:7480": 421, "127.0.0.1.evil.example": 421, "10.0.0.1:7480": 421,
	} {
		if got := do(func(r *http.Request) { r.Host = host }); got != want {
			t.Errorf("host %s: %d, want %d", host, got, want)
		}
	}
	if got := do(func(r *http.Request) { r.Host, r.URL.Path = "converge.example", "/healthz" }); got != 200 { // as a probe asks
		t.Errorf("/healthz of another host: %d", got)
	}
	if got := do(func(r *http.Request) { r.Header.Set("X", strings.Repeat("x", 2*api.MaxHeader)) }); got != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a large header: %d", got)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	stop()
	if c, err := net.Dial("tcp", address); err == nil {
		c.Close()
		t.Error("it still listens")
	}
}

// While as many requests wait for the store as are allowed, one more is refused at once, and the process is still alive.
func TestManyRequests(t *testing.T) {
	b := newBed(t)
	b.block = make(chan struct{})
	h := b.Handler()
	results := make(chan int, api.MaxRequests+1)
	for range api.MaxRequests + 1 {
		go func() {
			res, _ := ask(h, "GET", "/v1/runs")
			results <- res.StatusCode
		}()
	}
	if got := <-results; got != http.StatusServiceUnavailable { // the others are held up
		t.Errorf("%d", got)
	}
	if res, _ := ask(h, "GET", "/healthz"); res.StatusCode != http.StatusOK {
		t.Errorf("%d", res.StatusCode)
	}
	close(b.block)
	for range api.MaxRequests {
		if got := <-results; got != http.StatusOK {
			t.Errorf("%d", got)
		}
	}
}
