package engine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// secretSite is a site with an environment. When forgetful, its far side never returns a password.
type secretSite struct {
	*testing.T
	*enginetest.Site
	env       map[string]string
	forgetful bool
}

const accountRef = "site/far.account/a"

func newSecretSite(t *testing.T, forgetful bool) *secretSite {
	return &secretSite{t, enginetest.New(), map[string]string{"PW": "canary-first"}, forgetful}
}

func (s *secretSite) engine() *engine.Engine {
	return s.Engine(func(o *engine.Options) {
		o.Parallelism = 1 // in the order of the plan
		o.Secrets = secret.Options{Source: secret.Source{Lookup: func(n string) (string, bool) { v, ok := s.env[n]; return v, ok }}}
		open := o.Open
		o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
			set, err := open(ctx, site, needs)
			if err == nil && s.forgetful {
				set.Wrap(func(_ string, k providers.Served) providers.Kind { return forgetful{k.Kind} })
			}
			return set, err
		}
	})
}

// forgetful is a kind that accepts a password and never returns it.
type forgetful struct{ providers.Kind }

func (f forgetful) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providertest.Look(f.Get).List(ctx)
}

func (f forgetful) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	things, err := providertest.Of(f.Kind)(ctx, ids)
	for i := range things {
		delete(things[i].Spec, "password")
	}
	return things, err
}

// document returns an account and a net beside it, which refers to nothing and is created or changed as well.
func (s *secretSite) document(login string, size int) *schema.Document {
	return s.Document(s, map[string]string{
		accountRef:        fmt.Sprintf(`{"login": %q, "password": {"from": "env:PW"}}`, login),
		"site/far.net/n1": fmt.Sprintf(`{"cidr": "10.0.0.0/8", "size": %d}`, size),
	})
}

func (s *secretSite) plan(d *schema.Document) *plan.Plan {
	s.Helper()
	e := s.engine()
	defer e.Close()
	p, err := e.Plan(context.Background(), d, plan.Options{})
	if err != nil {
		s.Fatal(err)
	}
	return p
}

func (s *secretSite) apply(p *plan.Plan) (engine.Result, error) {
	e := s.engine()
	defer e.Close()
	return e.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()})
}

func (s *secretSite) converge(d *schema.Document) {
	s.Helper()
	res, err := s.apply(s.plan(d))
	if err != nil || res.Run.Status != state.RunApplied {
		s.Fatalf("%v %s %s", err, res.Run.Status, res.Run.Message)
	}
}

// password returns what the far side has, and how often it was sent.
func (s *secretSite) password() (value string, sent int) {
	for _, e := range s.World.Log() {
		if p, ok := e.Call.Want["password"]; ok && e.Call.Ref.String() == accountRef {
			value, sent = fmt.Sprint(p), sent+1
		}
	}
	return value, sent
}

func (s *secretSite) wantPassword(want string) {
	s.Helper()
	if got, _ := s.password(); got != want || !strings.Contains(s.World.Dump(), fmt.Sprintf("%q: %q", "password", want)) {
		s.Errorf("the far side got %q, want %q, and has %s", got, want, s.World.Dump())
	}
}

// clean fails when a value is in what is stored, or in what was reported.
func (s *secretSite) clean() {
	s.Helper()
	items, err := s.KV.List(context.Background(), "/converge/")
	if err != nil || len(items) == 0 {
		s.Fatal(len(items), err)
	}
	for _, it := range items {
		if strings.Contains(string(it.Value), "canary") {
			s.Errorf("%s holds a secret: %s", it.Key, it.Value)
		}
	}
	for _, e := range s.Events() {
		if strings.Contains(fmt.Sprintf("%+v", e), "canary") {
			s.Errorf("an event tells a secret: %+v", e)
		}
	}
}

func both(t *testing.T, test func(*secretSite)) {
	for _, forgets := range []bool{false, true} {
		t.Run(fmt.Sprintf("forgetful=%v", forgets), func(t *testing.T) { test(newSecretSite(t, forgets)) })
	}
}

// TestSecretLife: created, left alone, changed beside, rotated, moved to another place, unset; each plan after it is empty.
func TestSecretLife(t *testing.T) {
	both(t, func(s *secretSite) {
		empty := func(d *schema.Document) {
			s.Helper()
			if p := s.plan(d); !p.Empty() || len(p.Drift) > 0 {
				s.Errorf("the second plan is not empty: %s", enginetest.Text(p))
			}
			e := s.engine()
			defer e.Close()
			if r, err := e.Drift(context.Background(), d.Site); err != nil || !r.Clean() {
				s.Errorf("drift: %+v, %v", r, err)
			}
			s.clean()
		}
		d := s.document("bob", 1)
		s.converge(d)
		s.wantPassword("canary-first")
		empty(d)

		d = s.document("eve", 1)
		if p := s.plan(d); p.NoReturn != len(p.Steps) || len(p.Steps) != 1 {
			s.Errorf("a change beside a secret can be undone: %s", enginetest.Text(p))
		}
		s.converge(d)
		s.wantPassword("canary-first")
		empty(d)

		s.env["PW"] = "canary-second"
		p := s.plan(d)
		if len(p.Steps) != 1 || len(p.Steps[0].Changes) != 1 || !p.Steps[0].Changes[0].Secret || p.Steps[0].Changes[0].Path != "password" || p.Steps[0].Undo != providers.NoUndo {
			s.Fatalf("rotation: %s %+v", enginetest.Text(p), p.Steps)
		}
		s.converge(d)
		s.wantPassword("canary-second")
		empty(d)

		s.env["PW2"] = "canary-second"
		moved := s.Document(s, map[string]string{accountRef: `{"login": "eve", "password": {"from": "env:PW2"}}`, "site/far.net/n1": `{"cidr": "10.0.0.0/8", "size": 1}`})
		if p := s.plan(moved); len(p.Steps) != 1 || p.Steps[0].Action != plan.Adopt {
			s.Errorf("another place of the same secret is only remembered: %s", enginetest.Text(p))
		}
		s.converge(moved)
		empty(moved)

		unset := s.Document(s, map[string]string{accountRef: `{"login": "eve"}`, "site/far.net/n1": `{"cidr": "10.0.0.0/8", "size": 1}`})
		s.converge(unset)
		if strings.Contains(s.World.Dump(), "canary") {
			s.Errorf("the secret was not unset: %s", s.World.Dump())
		}
		empty(unset)
	})
}

// TestSecretDrift: a secret that others changed is drift where the far side returns it, and is corrected.
func TestSecretDrift(t *testing.T) {
	s := newSecretSite(t, false)
	d := s.document("bob", 1)
	s.converge(d)
	id := s.World.Log()[0].Call.ID
	for _, e := range s.World.Log() {
		if e.Call.Ref.String() == accountRef {
			id = e.Call.ID
		}
	}
	for _, strange := range []string{"canary-stranger", ""} {
		mark := providers.Mark{Site: enginetest.SiteID, Ref: schema.Ref{Scope: "site", Kind: "far.account", Name: "a"}, Incarnation: 1}
		if err := s.World.Put("site", "far.account", providers.Thing{ID: id, Name: "a", Mark: mark, Spec: schema.Object{"login": "bob", "password": strange}}); err != nil {
			t.Fatal(err)
		}
		e := s.engine()
		r, err := e.Drift(context.Background(), d.Site)
		if err != nil || len(r.Drifted) != 1 || len(r.Drifted[0].Changes) != 1 || !r.Drifted[0].Changes[0].Secret {
			t.Errorf("drift: %+v, %v", r, err)
		}
		_ = e.Close()
		s.converge(d)
		s.wantPassword("canary-first")
	}
	s.clean()
}

// TestSecretChangedMeanwhile: a plan whose secret has changed by now, or is unreadable, is refused before anything is done.
func TestSecretChangedMeanwhile(t *testing.T) {
	for now, want := range map[string]string{"canary-second": "the secret changed since the plan was made", "": "the variable is not set"} {
		both(t, func(s *secretSite) {
			d := s.document("bob", 1)
			p := s.plan(d)
			s.env["PW"] = now
			if now == "" {
				delete(s.env, "PW")
			}
			res, err := s.apply(p)
			var stale *engine.StaleError
			if err == nil || !strings.Contains(err.Error(), want) || errors.As(err, &stale) != (now != "") || res.Run.ID != "" {
				s.Errorf("%v, run %s %s", err, res.Run.ID, res.Run.Status)
			}
			if log := s.World.Log(); len(log) != 0 {
				s.Errorf("calls were made: %v", log)
			}
			s.env["PW"] = "canary-first"
			if res, err := s.apply(p); err != nil || res.Run.Status != state.RunApplied {
				s.Errorf("with the secret that was planned: %v %s", err, res.Run.Status)
			}
			s.clean()
		})
	}
}

// TestSecretMissing: a plan names everything that is missing; to destroy, nothing needs to exist.
func TestSecretMissing(t *testing.T) {
	both(t, func(s *secretSite) {
		d := s.document("bob", 1)
		s.converge(d)
		delete(s.env, "PW")
		e := s.engine()
		defer e.Close()
		if _, err := e.Plan(context.Background(), d, plan.Options{}); err == nil || !strings.Contains(err.Error(), accountRef+": password: env:PW: the variable is not set") {
			s.Errorf("%v", err)
		}
		p, err := e.Plan(context.Background(), d, plan.Options{Destroy: true})
		if err != nil {
			s.Fatal(err)
		}
		for _, st := range p.Steps {
			if st.Ref.String() == accountRef && st.Undo != providers.NoUndo {
				s.Errorf("what holds a secret cannot be made again, yet undoing is %s", st.Undo)
			}
		}
	})
}

// TestSecretUnknownOutcome: a rotation whose reply was lost, or that never arrived, is repeated: its effect is invisible.
func TestSecretUnknownOutcome(t *testing.T) {
	for _, effect := range []fake.Effect{fake.EffectAfter, fake.EffectBefore} {
		both(t, func(s *secretSite) {
			d := s.document("bob", 1)
			s.converge(d)
			s.env["PW"] = "canary-second"
			if err := s.World.Fail(fake.Fault{Op: "update", Class: providers.Unknown, Effect: effect, Message: "lost; the request was canary-second"}); err != nil {
				s.Fatal(err)
			}
			s.converge(d)
			s.wantPassword("canary-second")
			if _, sent := s.password(); s.forgetful && sent != 3 || !s.forgetful && effect == fake.EffectAfter && sent != 2 {
				s.Errorf("sent %d times", sent)
			}
			s.clean()
		})
	}
}

// TestSecretResume: a create or a rotation that a dead process began is finished by another, from what is stored alone.
func TestSecretResume(t *testing.T) {
	for _, op := range []string{"create", "update"} {
		for _, at := range []fake.Moment{fake.Before, fake.After} {
			both(t, func(s *secretSite) {
				d := s.document("bob", 1)
				if op == "update" {
					s.converge(d)
					s.env["PW"] = "canary-second"
				}
				e := s.engine()
				p := s.plan(d)
				ctx, die := context.WithCancelCause(context.Background())
				s.World.Hook = func(o string, m fake.Moment, c providers.Call) {
					if o == op && m == at && c.Ref.String() == accountRef {
						die(errors.New("killed"))
						panic("killed while the password was " + fmt.Sprint(c.Want["password"]))
					}
				}
				_, err := e.Apply(ctx, p, engine.ApplyOptions{OnFailure: apply.Stop, Approve: p.Approval()})
				_ = e.Close()
				s.World.Hook = nil
				s.clean()
				e = s.engine()
				defer e.Close()
				res, rerr := e.Resume(context.Background(), "", engine.ApplyOptions{})
				if rerr != nil || res.Run.Status != state.RunApplied {
					s.Fatalf("%s %s: %v, then %v %s %s", op, at, err, rerr, res.Run.Status, res.Run.Message)
				}
				s.wantPassword(s.env["PW"])
				if p := s.plan(d); !p.Empty() {
					s.Errorf("%s", enginetest.Text(p))
				}
				s.clean()
			})
		}
	}
}

// TestSecretUndo: undoing a change beside a secret sends the secret again, to a far side that replaces everything.
func TestSecretUndo(t *testing.T) {
	both(t, func(s *secretSite) {
		s.converge(s.document("bob", 1))
		// The account changes first, and then the net cannot.
		d := s.Document(s, map[string]string{
			accountRef:        `{"login": "eve", "password": {"from": "env:PW"}}`,
			"site/far.net/n1": `{"cidr": "10.0.0.0/8", "size": 2}`,
		})
		if err := s.World.Fail(fake.Fault{Op: "update", Ref: "far.net", Class: providers.Invalid, Message: "no", Times: -1}); err != nil {
			s.Fatal(err)
		}
		res, err := s.apply(s.plan(d))
		if err != nil || res.Run.Status != state.RunReverted {
			s.Fatalf("%v %s %v", err, res.Run.Status, res.Differences)
		}
		changed := 0
		for _, l := range s.World.Log() {
			if l.Op == "update" && l.Call.Ref.String() == accountRef {
				changed++
			}
		}
		if changed != 2 {
			s.Errorf("the account was changed %d times, want there and back", changed)
		}
		s.wantPassword("canary-first")
		s.clean()
	})
}

// TestForeign: a third-party document names only secrets that are listed, when it is planned and when its plan is
// applied; none is read before.
func TestForeign(t *testing.T) {
	s := newSecretSite(t, false)
	d := s.document("bob", 1)
	d.Author = schema.Author{By: "inbox", Signer: "cloud"} // a signature opens nothing
	read := 0
	engineWith := func(names ...string) *engine.Engine {
		return s.Engine(func(o *engine.Options) {
			o.Secrets = secret.Options{Source: secret.Source{Names: names, Lookup: func(n string) (string, bool) { read++; v, ok := s.env[n]; return v, ok }}}
		})
	}
	var refused *engine.RefusedError
	for _, names := range [][]string{nil, {}, {"OTHER"}} {
		_, err := engineWith(names...).Plan(t.Context(), d, plan.Options{})
		if !errors.As(err, &refused) || len(refused.Refusals) != 1 || refused.Refusals[0].Ref.String() != accountRef || !strings.Contains(err.Error(), "password: env:PW") || !strings.Contains(err.Error(), "secrets: {env: [PW]}") || read > 0 {
			t.Errorf("%q: %v, %d read", names, err, read)
		}
	}
	p, err := engineWith("PW").Plan(t.Context(), d, plan.Options{})
	if err != nil || p.Author != d.Author {
		t.Fatalf("%+v, %v", p, err)
	}
	p = fromFile(t, p)
	read = 0
	if _, err := engineWith().Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()}); !errors.As(err, &refused) || read > 0 {
		t.Errorf("applied with a shorter list: %v, %d read", err, read)
	}
	if value, _ := s.password(); value != "" {
		t.Errorf("the far side got %q", value)
	}
	if res, err := engineWith("PW").Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()}); err != nil || res.Run.Status != state.RunApplied {
		t.Errorf("%v %s", err, res.Run.Status)
	}
	s.wantPassword("canary-first")
	s.clean()
}

// TestLooks: an engine that only looks writes nothing, not even a key for secrets; what it plans has no approval as long as
// there is none, and the engine carries nothing out.
func TestLooks(t *testing.T) {
	s := newSecretSite(t, false)
	doc := s.document("root", 1)
	looking := func() (*engine.Engine, *plan.Plan) {
		e := s.Engine(func(o *engine.Options) {
			o.Looks = true
			o.Secrets = secret.Options{Source: secret.Source{Lookup: func(string) (string, bool) { return "canary-first", true }}}
		})
		p, err := e.Plan(t.Context(), doc, plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()}); err == nil || res.Run.ID != "" {
			t.Errorf("it was applied: %+v", res)
		}
		if _, _, err := e.SavePlan(t.Context(), p); err == nil {
			t.Error("it was saved")
		}
		return e, p
	}
	e, p := looking()
	defer e.Close()
	if len(p.Steps) != 2 || !p.Passing || p.Approval() != "" || plan.Approves(strings.Repeat("0", plan.ShortApproval), p.Approval()) {
		t.Errorf("a plan without a key: %d steps, passing %t, approval %q", len(p.Steps), p.Passing, p.Approval())
	}
	if items, err := s.KV.List(t.Context(), "/converge/"); err != nil || len(items) > 0 {
		t.Errorf("looking left %v: %v", items, err)
	}
	s.converge(doc)
	doc = s.document("root", 2)
	e, p = looking()
	defer e.Close()
	if want := s.plan(doc).Approval(); p.Passing || p.Approval() != want {
		t.Errorf("a plan with the key of the site is passing: %t, with the approval %q, want %q", p.Passing, p.Approval(), want)
	}
}
