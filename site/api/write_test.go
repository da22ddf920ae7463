package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/site/api"
	"converge.dev/converge/state"
	"converge.dev/converge/trust/certs"
)

// A sending is a request that writes, and what is right about it.
type sending struct {
	method, path string // with what stands for {id} and so on
	pattern      string
	body         string
	header       []string
	status       int
	role         certs.Role
}

const work = `{"reason": "the switch is replaced"}`

// sendings returns one of each, for a bed in which a plan waits and a run is carried out.
func sendings(w state.Waiting, run string) []sending {
	return []sending{
		{"PUT", "/v1/document", "", `{"site": {}}`, []string{"If-Match", `"1"`}, 201, certs.WriteDocument},
		{"PUT", "/v1/plans/" + w.Approval[:16] + "/approval", "/v1/plans/{digest}/approval", "", nil, 200, certs.Approve},
		{"DELETE", "/v1/plans/" + w.Approval + "/approval", "/v1/plans/{digest}/approval", "", nil, 200, certs.Approve},
		{"POST", "/v1/runs/" + run + "/cancel", "/v1/runs/{id}/cancel", "", nil, 202, certs.Cancel},
		{"PUT", "/v1/holds/n1", "/v1/holds/{scope}", work, nil, 200, certs.Hold},
		{"DELETE", "/v1/holds/n1?reason=done", "/v1/holds/{scope}", "", nil, 200, certs.Hold},
		{"PUT", "/v1/holds/site/far.net/prod", "/v1/holds/{scope}", work, nil, 200, certs.Hold},
		{"PUT", "/v1/freeze", "", work, nil, 200, certs.Hold},
		{"DELETE", "/v1/freeze", "", "", nil, 200, certs.Hold},
	}
}

// written is a bed whose site has a document, a plan that waits, and a run that ada carries out.
func written(t *testing.T) (b *bed, w state.Waiting, run string) {
	t.Helper()
	b = newBed(t)
	b.keep()
	b.put = func(context.Context, []byte, string, int64) (api.PutView, error) {
		return api.PutView{Serial: 2, Digest: "d", Revision: 9}, nil
	}
	lock, err := b.Store.Lock(t.Context(), state.LockInfo{Operation: "apply", Who: "ada@lab", PID: 7, Run: "r1"}, state.LockOptions{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	b.commit(b.Store.PutRunOp(state.Run{ID: "r1", Status: state.RunOpen, Started: time.Now()}))
	return b, b.waits(2), "r1"
}

// revision makes a commit, and returns its number.
func (b *bed) revision() int64 {
	b.t.Helper()
	n, err := b.KV.Commit(b.t.Context(), nil, []state.Op{{Key: "elsewhere", Value: []byte("x")}})
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// Each request needs its own role, and no other one will do; without any nothing is read of what was sent, and nothing is written.
func TestRoles(t *testing.T) {
	b, w, run := written(t)
	d := describe(b)
	all := sendings(w, run)
	b.roles = map[string][]certs.Role{}
	for _, role := range certs.AllRoles {
		b.roles["only-"+string(role)] = []certs.Role{role}
		b.roles["all-but-"+string(role)] = slices.DeleteFunc(slices.Clone(certs.AllRoles), func(r certs.Role) bool { return r == role })
	}
	described := map[string]bool{}
	for _, s := range all {
		path := s.pattern
		if path == "" {
			path = s.path
		}
		if got := d.Paths[path].Operations[strings.ToLower(s.method)].Role; got != string(s.role) {
			t.Errorf("%s %s is described with the role %q", s.method, path, got)
		}
		described[s.method+" "+strings.Replace(path, "{scope}", "{scope...}", 1)] = true
		before := b.revision()
		for _, client := range []string{"", "nobody", "all-but-" + string(s.role)} {
			r := httptest.NewRequest(s.method, s.path, unread{t})
			r.TLS = nil
			res, body := b.send(client, s.method, s.path, s.body, s.header...)
			if res.StatusCode != http.StatusForbidden || !strings.Contains(body, "role "+string(s.role)+" is required") {
				t.Errorf("%s %s by %q: %d %s", s.method, s.path, client, res.StatusCode, body)
			}
			d.checkOf(t, strings.ToLower(s.method), path, fmt.Sprint(res.StatusCode), res.Header.Get("Content-Type"), body)
			if s.body != "" && res.Header.Get("Connection") != "close" {
				t.Errorf("%s %s: the body is waited for", s.method, s.path)
			}
			out := httptest.NewRecorder()
			b.Handler().ServeHTTP(out, r)
			if out.Code != http.StatusForbidden {
				t.Errorf("%s %s: %d", s.method, s.path, out.Code)
			}
		}
		if b.revision() != before+1 {
			t.Errorf("%s %s has written without its role", s.method, s.path)
		}
		res, body := b.send("only-"+string(s.role), s.method, s.path, s.body, s.header...)
		if res.StatusCode != s.status || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s: %d %s", s.method, s.path, res.StatusCode, body)
		}
		d.checkOf(t, strings.ToLower(s.method), path, fmt.Sprint(res.StatusCode), res.Header.Get("Content-Type"), body)
	}
	for _, change := range api.Changes() {
		if !described[change] {
			t.Errorf("%s is not tried", change)
		}
	}
	if log := b.log.String(); strings.Count(log, "a request has written") != len(all) || !strings.Contains(log, "who=only-hold method=PUT path=/v1/freeze") ||
		!strings.Contains(log, "who=cn:nobody") || strings.Contains(log, "who=\"\"") { // strangers do not fill it
		t.Errorf("%s", log)
	}
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read before the role was known")
	return 0, fmt.Errorf("it is nobody's to read")
}

// Where nobody has a role everything that writes is forbidden, and it is said how that is changed.
func TestNoWrites(t *testing.T) {
	a := api.New(api.Options{})
	for _, change := range api.Changes() {
		method, path, _ := strings.Cut(change, " ")
		r := httptest.NewRequest(method, strings.NewReplacer("{scope...}", "n1", "{id}", "x", "{digest}", "x").Replace(path), nil)
		w := httptest.NewRecorder()
		a.Handler().ServeHTTP(w, r)
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "https.clients.roles") {
			t.Errorf("%s: %d %s", change, w.Code, w.Body)
		}
	}
}

// Requests that are not as they should be are refused by what is wrong with them, and nothing is written.
func TestBadWrites(t *testing.T) {
	b, w, run := written(t)
	b.roles = map[string][]certs.Role{"ada": certs.AllRoles}
	b.commit(b.Store.HoldOp(state.Hold{Scope: "serial:1", Reason: "it ended partial", Run: "r0"}), b.Store.PutRunOp(state.Run{ID: "r0", Status: state.RunPartial, Started: time.Now()}))
	b.commit(b.Store.HoldOp(state.Hold{Scope: "n2", Reason: "mine", By: "grace@lab"}))
	b.commit(b.Store.PutRunOp(state.Run{ID: "r2", Status: state.RunOpen, Started: time.Now()}))
	long := strings.Repeat("x", 1001)
	for name, c := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		says               string
	}{
		"no precondition":            {"PUT", "/v1/document", "{}", nil, 428, "If-Match"},
		"two preconditions":          {"PUT", "/v1/document", "{}", []string{"If-Match", `"1"`, "If-None-Match", "*"}, 400, "one of"},
		"a bare serial":              {"PUT", "/v1/document", "{}", []string{"If-Match", "1"}, 400, "quotation marks"},
		"a weak serial":              {"PUT", "/v1/document", "{}", []string{"If-Match", `W/"1"`}, 400, "quotation marks"},
		"any serial":                 {"PUT", "/v1/document", "{}", []string{"If-Match", "*"}, 400, "quotation marks"},
		"serial 0":                   {"PUT", "/v1/document", "{}", []string{"If-Match", `"0"`}, 400, "quotation marks"},
		"serial with a sign":         {"PUT", "/v1/document", "{}", []string{"If-Match", `"+1"`}, 400, "quotation marks"},
		"several serials":            {"PUT", "/v1/document", "{}", []string{"If-Match", `"1", "2"`}, 400, "quotation marks"},
		"not the first of something": {"PUT", "/v1/document", "{}", []string{"If-None-Match", `"1"`}, 400, "want *"},
		"a form":                     {"PUT", "/v1/document", "{}", []string{"If-Match", `"1"`, "Content-Type", "text/plain"}, 415, "application/json"},
		"no type":                    {"PUT", "/v1/document", "{}", []string{"If-Match", `"1"`, "Content-Type", ""}, 415, "application/json"},
		"a large document":           {"PUT", "/v1/document", strings.Repeat(" ", api.MaxDocument+1), []string{"If-Match", `"1"`}, 413, "more than"},
		"a page of another site":     {"PUT", "/v1/document", "{}", []string{"If-Match", `"1"`, "Sec-Fetch-Site", "cross-site"}, 403, "cross-origin"},
		"cancel by a page":           {"POST", "/v1/runs/" + run + "/cancel", "", []string{"Origin", "https://elsewhere.example"}, 403, "cross-origin"},

		"approval of another plan": {"PUT", "/v1/plans/" + strings.Repeat("0", 64) + "/approval", "", nil, 404, "no plan with this digest"},
		"approval of a few digits": {"PUT", "/v1/plans/" + w.Approval[:8] + "/approval", "", nil, 404, "first 16 digits"},
		"approval with a name":     {"PUT", "/v1/plans/" + w.Approval + "/approval", `{"by": "grace"}`, nil, 400, "takes no body"},

		"no such run":             {"POST", "/v1/runs/none/cancel", "", nil, 404, "no run none"},
		"a run that has ended":    {"POST", "/v1/runs/r0/cancel", "", nil, 409, "has ended: partial"},
		"a run that nobody makes": {"POST", "/v1/runs/r2/cancel", "", nil, 409, "no process is executing"},

		"a hold of nothing":            {"PUT", "/v1/holds/n7", work, nil, 404, "Did you mean n1?"},
		"a hold of no ref":             {"PUT", "/v1/holds/site/far.net", work, nil, 400, "SCOPE/KIND/NAME"},
		"a hold of a revision":         {"PUT", "/v1/holds/serial:1", work, nil, 400, "SCOPE/KIND/NAME"},
		"a hold of no scope":           {"PUT", "/v1/holds/", work, nil, 400, "SCOPE/KIND/NAME"},
		"no reason":                    {"PUT", "/v1/holds/n1", `{}`, nil, 400, "reason is missing"},
		"a blank reason":               {"PUT", "/v1/holds/n1", `{"reason": "  "}`, nil, 400, "reason is missing"},
		"a misspelt reason":            {"PUT", "/v1/holds/n1", `{"resaon": "x"}`, nil, 400, "nothing else"},
		"two reasons":                  {"PUT", "/v1/holds/n1", `{"reason": "x"}{"reason": "y"}`, nil, 400, "nothing else"},
		"a reason of several lines":    {"PUT", "/v1/holds/n1", `{"reason": "x\ny"}`, nil, 400, "one line"},
		"a reason for a terminal":      {"PUT", "/v1/holds/n1", `{"reason": "\u001b[2J"}`, nil, 400, "one line"},
		"a reason without end":         {"PUT", "/v1/freeze", `{"reason": "` + long + `"}`, nil, 400, "one line"},
		"a reason that is huge":        {"PUT", "/v1/freeze", `{"reason": "` + strings.Repeat("x", 9000) + `"}`, nil, 413, "more than"},
		"a parameter nobody knows":     {"PUT", "/v1/holds/n1?forced=true", work, nil, 400, "takes force, instead_of"},
		"a parameter twice":            {"DELETE", "/v1/holds/n1?reason=x&reason=y", "", nil, 400, "want one value"},
		"a parameter for a terminal":   {"DELETE", "/v1/holds/n1?reason=%1b", "", nil, 400, "one line"},
		"no hold":                      {"DELETE", "/v1/holds/n1", "", nil, 404, "not on hold"},
		"the hold of a run":            {"DELETE", "/v1/holds/serial:1", "", nil, 409, "of=r0"},
		"the hold of another run":      {"DELETE", "/v1/holds/serial:1?of=r9", "", nil, 409, "of=r0"},
		"the hold of somebody else":    {"DELETE", "/v1/holds/n2", "", nil, 409, "of=grace%40lab"},
		"of somebody else again":       {"DELETE", "/v1/holds/n2?of=eve@lab", "", nil, 409, "of=grace%40lab"},
		"a hold over somebody else's":  {"PUT", "/v1/holds/n2?force=true", work, nil, 409, "instead_of=grace%40lab"},
		"a query that is cut":          {"DELETE", "/v1/holds/n2?of=%zz", "", nil, 400, "cannot be understood"},
		"a query with a semicolon":     {"DELETE", "/v1/holds/n2?of=grace@lab;", "", nil, 400, "cannot be understood"},
		"a query without a value":      {"DELETE", "/v1/holds/n2?of=", "", nil, 400, "want one value"},
		"force that is no truth":       {"PUT", "/v1/holds/n1?force=1", work, nil, 400, "true or false"},
		"a query that nothing reads":   {"PUT", "/v1/document?force=true", "{}", []string{"If-Match", `"1"`}, 400, "takes none"},
		"a hold in the place of a run": {"PUT", "/v1/holds/run:site%2ffar.net%2fprod?force=true", work, nil, 400, "neither the site nor a node"},
		"a hold for a terminal":        {"PUT", "/v1/holds/%1b%5b2J?force=true", work, nil, 400, "control characters"},
		"a hold with a long name":      {"PUT", "/v1/holds/" + long + "?force=true", work, nil, 400, "512 bytes"},
		"packed":                       {"PUT", "/v1/holds/n1", work, []string{"Content-Encoding", "gzip"}, 415, "as it is"},
		"another encoding":             {"PUT", "/v1/holds/n1", work, []string{"Content-Type", "application/json; charset=utf-16"}, 415, "as it is"},
		"a reason that runs backwards": {"PUT", "/v1/holds/n1", `{"reason": "\u202ex"}`, nil, 400, "one line"},
		"what is not there":            {"PUT", "/v1/freeze/", work, nil, 404, "nothing at /v1/freeze/"},
		"reading with a body":          {"GET", "/v1/openapi.json", "{}", nil, 400, "takes no body"},
		"no freeze":                    {"DELETE", "/v1/freeze", "", nil, 404, "not frozen"},
		"reading what is only written": {"GET", "/v1/freeze", "", nil, 405, "DELETE or PUT"},
	} {
		before := b.revision()
		res, body := b.send("ada", c.method, c.path, c.body, c.header...)
		var p api.Problem
		if err := json.Unmarshal([]byte(body), &p); err != nil || res.StatusCode != c.status || p.Status != c.status || !strings.Contains(p.Detail, c.says) {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
		if b.revision() != before+1 {
			t.Errorf("%s: something was written", name)
		}
	}
	if res, body := b.send("ada", "DELETE", "/v1/holds/serial:1?of=r0", ""); res.StatusCode != 200 || !strings.Contains(body, "it ended partial") {
		t.Errorf("the hold of a run that is named: %d %s", res.StatusCode, body)
	}
	for _, path := range []string{"/v1/holds/n7?force=true", "/v1/holds/n2?force=true&instead_of=grace@lab"} {
		if res, body := b.send("ada", "PUT", path, work); res.StatusCode != 200 {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
	b.commit(b.Store.FreezeOp(state.Hold{Reason: "fire", By: "grace@lab"}))
	for path, want := range map[string]int{"/v1/freeze": 409, "/v1/freeze?of=eve": 409} {
		{
			if res, body := b.send("ada", "PUT", strings.Replace(path, "of=", "instead_of=", 1), work); res.StatusCode != want {
				t.Errorf("PUT %s: %d %s", path, res.StatusCode, body)
			}
			if res, body := b.send("ada", "DELETE", path, ""); res.StatusCode != want {
				t.Errorf("DELETE %s: %d %s", path, res.StatusCode, body)
			}
		}
	}
	if res, body := b.send("ada", "DELETE", "/v1/freeze?of=grace@lab", ""); res.StatusCode != 200 {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// What is written is what the commands write, in the name of the certificate.
func TestWrites(t *testing.T) {
	b, w, run := written(t)
	b.roles = map[string][]certs.Role{"ada": certs.AllRoles, "spiffe://cloud/grace": {certs.Approve}}
	var sent []string
	b.put = func(_ context.Context, body []byte, by string, after int64) (api.PutView, error) {
		sent = append(sent, fmt.Sprint(string(body), " ", by, " ", after))
		return api.PutView{Serial: after + 1, Unchanged: after == 7}, nil
	}
	must := func(client, method, path, body string, status int, header ...string) (*http.Response, string) {
		t.Helper()
		res, answer := b.send(client, method, path, body, header...)
		if res.StatusCode != status {
			t.Errorf("%s %s: %d %s", method, path, res.StatusCode, answer)
		}
		return res, answer
	}
	if _, body := must("ada", "PUT", "/v1/document", `{"a": 1}`, 201, "If-Match", `"41"`); !strings.Contains(body, `"serial":42`) {
		t.Errorf("%s", body)
	}
	must("ada", "PUT", "/v1/document", `{}`, 201, "If-None-Match", "*", "Content-Type", "application/json; charset=utf-8")
	must("ada", "PUT", "/v1/document", `{}`, 200, "If-Match", `"7"`)
	if want := []string{`{"a": 1} ada@https 41`, `{} ada@https 0`, `{} ada@https 7`}; !slices.Equal(sent, want) {
		t.Errorf("%q", sent)
	}
	b.put = func(context.Context, []byte, string, int64) (api.PutView, error) {
		return api.PutView{}, &api.Problem{Title: "x", Status: 422, Detail: "it is wrong", Problems: []state.InboxProblem{{Severity: "error", Summary: "bad"}}}
	}
	if _, body := must("ada", "PUT", "/v1/document", `{}`, 422, "If-Match", `"7"`); !strings.Contains(body, `"problems":[{"severity":"error","summary":"bad"}]`) {
		t.Errorf("%s", body)
	}

	must("ada", "PUT", "/v1/plans/"+w.Approval+"/approval", "", 200)
	_, body := must("ada", "PUT", "/v1/plans/"+w.Approval+"/approval", "", 200) // once more is still one
	var given api.ApprovedView
	if err := json.Unmarshal([]byte(body), &given); err != nil || len(given.Approvals) != 1 || given.By != "ada@https" || given.Needs != 2 {
		t.Errorf("%s", body)
	}
	_, body = must("spiffe://cloud/grace", "PUT", "/v1/plans/"+w.Approval+"/approval", "", 200)
	if err := json.Unmarshal([]byte(body), &given); err != nil || len(given.Approvals) != 2 {
		t.Errorf("%s", body)
	}
	must("ada", "DELETE", "/v1/plans/"+w.Approval+"/approval", "", 200)
	if _, body := must("ada", "DELETE", "/v1/plans/"+w.Approval+"/approval", "", 200); !strings.Contains(body, `"revoked":false`) {
		t.Errorf("%s", body)
	}
	if all, err := b.Store.Approvals(t.Context()); err != nil || len(all) != 1 || all[0].By != "spiffe://cloud/grace@https" {
		t.Errorf("%v, %+v", err, all)
	}
	w = b.waits(1, "grace", "ada@lab")
	if _, body := must("ada", "PUT", "/v1/plans/"+w.Approval+"/approval", "", 403); !strings.Contains(body, "would not count") {
		t.Errorf("%s", body)
	}

	if _, body := must("ada", "POST", "/v1/runs/"+run+"/cancel", "", 202); !strings.Contains(body, `"who":"ada@lab"`) {
		t.Errorf("%s", body)
	}
	must("ada", "PUT", "/v1/holds/site/far.net/prod", work, 200)
	if _, body := must("ada", "PUT", "/v1/holds/site/far.net/prod", `{"reason": "still"}`, 200); !strings.Contains(body, "the switch is replaced") {
		t.Errorf("what it replaces is not said: %s", body)
	}
	must("ada", "PUT", "/v1/freeze", work, 200)
	stops, err := b.Store.Stops(t.Context())
	if err != nil || len(stops.Holds) != 1 || stops.Holds[0].Reason != "still" || stops.Holds[0].By != "ada@https" || stops.Freeze == nil || stops.Freeze.By != "ada@https" {
		t.Errorf("%v, %+v", err, stops)
	}
	must("ada", "DELETE", "/v1/holds/site/far.net/prod?reason=done", "", 200)
	must("ada", "DELETE", "/v1/freeze", "", 200)
	audits, err := b.Store.Audits(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	actions := map[string]int{}
	for _, a := range audits {
		if strings.HasSuffix(a.By, "@https") {
			actions[a.Action]++
		}
	}
	if want := map[string]int{"approve": 3, "unapprove": 1, "cancel": 1, "hold": 2, "freeze": 1, "release": 1, "thaw": 1}; fmt.Sprint(actions) != fmt.Sprint(want) {
		t.Errorf("the audit log has %v", actions)
	}
}

// While the store does not answer nothing is written, or that is not known, and it is said which.
func TestWritesWithoutStore(t *testing.T) {
	b, w, run := written(t)
	b.roles = map[string][]certs.Role{"ada": certs.AllRoles}
	b.put = func(context.Context, []byte, string, int64) (api.PutView, error) {
		return api.PutView{}, fmt.Errorf("no reply: %s: %w", scrubed, state.ErrUnknown)
	}
	b.down.Store(true)
	for _, s := range sendings(w, run) {
		res, body := b.send("ada", s.method, s.path, s.body, s.header...)
		if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || strings.Contains(body, scrubed) {
			t.Errorf("%s %s: %d %s", s.method, s.path, res.StatusCode, body)
		}
		if unknown := strings.Contains(body, "may have been written"); unknown != (s.path == "/v1/document") {
			t.Errorf("%s %s: %s", s.method, s.path, body)
		}
	}
}

// Requests that write have places of their own: whoever sends them slowly keeps nobody from reading.
func TestSlowWrites(t *testing.T) {
	b := newBed(t)
	b.keep()
	b.roles = map[string][]certs.Role{"ada": certs.AllRoles}
	begun, end := make(chan struct{}), make(chan struct{})
	b.put = func(context.Context, []byte, string, int64) (api.PutView, error) {
		begun <- struct{}{}
		<-end
		return api.PutView{Serial: 2}, nil
	}
	h := b.Handler()
	put := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest("PUT", "/v1/document", strings.NewReader("{}"))
		r.TLS = b.client("ada")
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("If-Match", `"1"`)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	done := make(chan int, api.MaxWrites)
	for range api.MaxDocuments {
		go func() { done <- put().Code }()
	}
	for range api.MaxDocuments {
		<-begun
	}
	if w := put(); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "in progress already") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if res, body := b.sendTo(h, "ada", "PUT", "/v1/freeze", work); res.StatusCode != http.StatusOK {
		t.Errorf("documents keep others from a freeze: %d %s", res.StatusCode, body)
	}
	if res, body := ask(h, "GET", "/v1/runs"); res.StatusCode != http.StatusOK {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	close(end)
	for range api.MaxDocuments {
		if code := <-done; code != http.StatusCreated {
			t.Errorf("%d", code)
		}
	}
}
