package agent_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"converge.dev/converge/agent"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/remote"
	"converge.dev/converge/schema"
	"converge.dev/converge/trust"
)

// The clocks of the site and the node were ahead together, and are right again. The node says what is wrong, and believes its clock when it
// is told to; what it did is not forgotten, and what was signed before does not run.
func TestClockThatWasAhead(t *testing.T) {
	placed(t, trust.Options{NodeLife: 30 * 24 * time.Hour}, func(t *testing.T, p *place) {
		p.enrol()
		o, ahead := p.options(first), atomic.Int64{}
		now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		o.Now = now
		d := p.door(&o)
		p.run(o)
		r := p.remote(p.conn(first))
		r.Now = now
		beat := func() error {
			_, err := remote.Beat(t.Context(), r, 1)
			return err
		}
		create := func(name string) error {
			t.Helper()
			set, err := remote.Open(t.Context(), r, []providers.Need{{Scope: "n1", Provider: "lab"}})
			if err != nil {
				t.Fatal(err)
			}
			served, _, _ := set.Find("n1", "lab.switch")
			ref := schema.Ref{Scope: "n1", Kind: "lab.switch", Name: name}
			return served.Kind.Create(t.Context(), providers.Call{Ref: ref, ID: name, Want: schema.Object{}, Mark: providers.Mark{Site: siteID, Ref: ref, Incarnation: 1}, Key: name, Epoch: 1})
		}
		reset := func() (forgotten *time.Time) {
			t.Helper()
			text, code := d.ask("POST", "/reset-clock", nil)
			var answer struct{ Forgotten *time.Time }
			if err := json.Unmarshal([]byte(text), &answer); err != nil || code != http.StatusOK {
				t.Fatalf("%d %s: %v", code, text, err)
			}
			return answer.Forgotten
		}
		if err := beat(); err != nil {
			t.Fatal(err)
		}
		if err := create("s1"); err != nil {
			t.Fatal(err)
		}
		if s := d.status(); s.Ahead != nil || s.Health != agent.OK || reset() != nil {
			t.Errorf("nothing is wrong: %+v", s)
		}

		ahead.Store(int64(48 * time.Hour))
		if err := beat(); err != nil {
			t.Fatal(err)
		}
		wrong := now()
		ahead.Store(0)
		if err := beat(); err == nil || !strings.Contains(err.Error(), "compare the clocks") {
			t.Errorf("a head of before the newest is taken: %v", err)
		}
		if s := d.status(); s.Ahead == nil || !s.Ahead.Equal(wrong) || s.Health != agent.Degraded || !strings.Contains(s.Problems[0], "converge agent reset-clock") {
			t.Errorf("%+v", s)
		}

		if forgotten := reset(); forgotten == nil || !forgotten.Equal(wrong) {
			t.Errorf("%v, want %v", forgotten, wrong)
		}
		if s := d.status(); s.Ahead != nil || s.Health != agent.OK {
			t.Errorf("%+v", s)
		}
		if err := create("s2"); err == nil || !strings.Contains(err.Error(), "no head has said") {
			t.Errorf("before the next head: %v", err)
		}
		if err := beat(); err != nil {
			t.Fatal(err)
		}
		if err := create("s3"); err != nil {
			t.Error(err)
		}
		if text, code := d.ask("GET", "/reset-clock", nil); code != http.StatusMethodNotAllowed {
			t.Errorf("%d %s", code, text)
		}
	})
}
