package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// SavePlan returns the plan as a file, and the digest of the plan in it. The file is authenticated with a key from the
// store of the site, which is created when there is none yet.
func (e *Engine) SavePlan(ctx context.Context, p *plan.Plan) (file []byte, digest string, err error) {
	if e.o.Looks {
		return nil, "", errLooks
	}
	if _, err := e.o.Store.SecretKey(ctx); err != nil {
		return nil, "", err
	}
	key, err := e.o.Store.PlanKey(ctx)
	if err != nil {
		return nil, "", err
	}
	return p.EncodeFile(key)
}

// VerifyFile fails with a *RefusedError unless the plan file was saved with this store, and is as it was saved. It writes
// nothing, so that a site which only the file names is not created.
func (e *Engine) VerifyFile(ctx context.Context, f *plan.File) error {
	key, err := e.o.Store.PlanKey(ctx)
	switch {
	case err == nil:
		err = f.Verify(key)
	case errors.Is(err, state.ErrNotFound):
		err = plan.ErrForeign
	}
	if errors.Is(err, plan.ErrForeign) {
		return &RefusedError{[]plan.Refusal{plan.Refuse(schema.Ref{}, err.Error(), "plan again, and apply the file unchanged, with the store it was planned with")}}
	}
	return err
}

// forbidden returns the reasons not to apply a plan that concern the plan as a whole: it is for another site than the one whose
// things are recorded, or it destroys more than it may. Live is how many things are recorded as existing, head that of the
// stored document.
func (e *Engine) forbidden(ctx context.Context, p *plan.Plan, live int, head state.Head) ([]plan.Refusal, error) {
	var refusals []plan.Refusal
	stored, err := e.storedHead(ctx, p, head)
	if err != nil {
		return nil, err
	}
	if id := stored.Site.ID; live > 0 && id != "" && id != p.Site.ID {
		refusals = append(refusals, plan.Refusal{
			Rule: plan.RuleSameSite, Reason: fmt.Sprintf("it is for the site with the id %s, but the records of %s belong to the site with the id %s", p.Site.ID, p.Site.Name, id),
			Remedies: []remedy.Remedy{remedy.Say("restore site.id, which never changes; a new site needs a new name")},
		})
	}
	refusals = append(refusals, plan.OverBudget(p, live)...)
	if (p.Destroy || p.Sweep) && !p.Asked && stored.Policy.MaxDestroy != p.MaxDestroy { // such a plan has no document of its own
		refusals = append(refusals, plan.Over(p, live, stored.Policy.MaxDestroy, plan.AllowDestroy)...)
	}
	return append(refusals, plan.Over(p, live, e.o.MaxDestroy, func(n int) remedy.Remedy {
		return remedy.Say(fmt.Sprintf("review the plan; if it is what you want, raise policy.max_destroy in the configuration to %d", n))
	})...), nil
}

// storedHead reads what the stored document says about the site as a whole; nothing when there is none. A damaged
// document proves nothing, and must not keep the document from being replaced.
func (e *Engine) storedHead(ctx context.Context, p *plan.Plan, head state.Head) (plan.Head, error) {
	if head.Serial == 0 {
		return plan.Head{}, nil
	}
	if head.Digest == p.Digest { // the plan says about the site what its document does
		return plan.Head{Site: p.Site}, nil
	}
	_, body, err := e.o.Store.Document(ctx, head.Serial)
	if ctx.Err() != nil {
		return plan.Head{}, err
	}
	var stored plan.Head
	if err == nil {
		stored, err = plan.HeadOf(body)
	}
	if err != nil {
		e.o.Logger.Warn("failed to read the stored document", "error", err)
	}
	return stored, nil
}

// honest refuses, as stale, a plan whose steps do not follow from the kinds and the records. That happens when a newer
// version of converge describes a kind differently, and when the plan was tampered with.
func (e *Engine) honest(set *providers.Set, p *plan.Plan, recorded []state.Record) error {
	records := make(map[schema.Ref]*state.Record, len(recorded))
	for i := range recorded {
		records[recorded[i].Ref] = &recorded[i]
	}
	var own waits // of steps whose kind waits otherwise
	for i := range p.Steps {
		s := &p.Steps[i]
		if served, _, _ := set.Find(s.Ref.Scope, s.Ref.Kind); s.Within != ownWait(s.Action, served.Traits) {
			own.of(s)
		}
	}
	if own.below != nil && len(p.Document) > 0 {
		if err := own.read(jsontext.NewDecoder(bytes.NewReader(p.Document))); err != nil {
			return fmt.Errorf("decode the plan's document: %w", err)
		}
	}
	var ds []event.Difference
	for i := range p.Steps {
		s := &p.Steps[i]
		served, _, _ := set.Find(s.Ref.Scope, s.Ref.Kind)
		why := dishonest(p, s, e.o.Kinds[s.Ref.Kind], served.Traits, records[s.Ref])
		if why == "" && s.Within != ownWait(s.Action, served.Traits) && s.Within != own.of(s).wait {
			why = fmt.Sprintf("the plan waits %v for it, but neither its kind nor the document says so", s.Within)
		}
		if why != "" {
			ds = append(ds, event.Difference{Ref: s.Ref, Detail: why})
		}
	}
	if len(ds) > 0 {
		return &StaleError{ds}
	}
	return nil
}

// dishonest returns how a step is not what it must be; empty when it is. Record is the one in the store, if any.
func dishonest(p *plan.Plan, s *plan.Step, k *schema.Kind, t providers.Traits, record *state.Record) string {
	if k == nil {
		return "the schema has no kind " + s.Ref.Kind
	}
	verb := map[plan.Action]providers.Mode{plan.Create: t.Create, plan.Update: t.Update, plan.Delete: t.Delete}[s.Action]
	undo, leaves := s.Consequence(k, t)
	switch {
	case verb == providers.Never:
		return fmt.Sprintf("a %s does not support %s", k.Name, s.Action)
	case undo != s.Undo:
		return fmt.Sprintf("reverting the %s means %s (%s), but the plan says %s", s.Action, undo, undo.Meaning(), s.Undo)
	case leaves != s.Leaves:
		return fmt.Sprintf("the plan is wrong about whether a %s can be deleted", k.Name)
	case s.Action == plan.Create && s.ExternalID != plan.ExternalID(p.Site.ID, t, s.Ref, s.Incarnation, s.Want):
		return "the plan has the wrong id for it"
	case s.Action == plan.Create && s.Prior != nil && s.Incarnation <= s.Prior.Incarnation:
		return fmt.Sprintf("incarnation %d already existed", s.Incarnation)
	case s.Action == plan.Delete && !p.Sweep && record != nil && !record.Gone && (record.Protect || !s.Replace && (record.OnRemove == schema.Refuse || record.OnRemove == schema.Forget)):
		return "it is protected from deletion"
	}
	for _, c := range s.Chosen {
		if f := k.Field(c.Field); f == nil || f.Choose == nil || f.Choose.Kind != c.Kind || s.After[c.Field] != c.ID {
			return fmt.Sprintf("its %s is not for the planner to choose", c.Field)
		}
	}
	return ""
}

// ownWait returns how long the kind itself lets a step wait for its result.
func ownWait(a plan.Action, t providers.Traits) time.Duration {
	switch a {
	case plan.Create, plan.Update:
		return t.ReadyWithin
	case plan.Delete:
		return t.GoneWithin
	}
	return 0
}

// waits are the timeouts that a document states for some steps. Reading them costs what lies on the way there, not the whole
// document.
type waits struct {
	below map[string]*waits
	wait  time.Duration // zero: the document says nothing
}

// of returns the place of the wait for the result of a step.
func (w *waits) of(s *plan.Step) *waits {
	provider, noun, _ := strings.Cut(s.Ref.Kind, ".")
	path := []string{provider, noun, s.Ref.Name, "timeouts", string(s.Action)}
	if s.Ref.Scope != schema.ScopeSite {
		path = append([]string{"nodes", s.Ref.Scope}, path...)
	}
	for _, name := range path {
		next := w.below[name]
		if next == nil {
			next = &waits{}
			if w.below == nil {
				w.below = map[string]*waits{}
			}
			w.below[name] = next
		}
		w = next
	}
	return w
}

// read reads the next value of a document, which was valid before, at the places that are known by then.
func (w *waits) read(d *jsontext.Decoder) error {
	switch kind := d.PeekKind(); {
	case kind == '"':
		text, err := d.ReadToken()
		w.wait, _ = time.ParseDuration(text.String())
		return err
	case kind != '{' || w.below == nil:
		return d.SkipValue()
	}
	_, err := d.ReadToken()
	for err == nil && d.PeekKind() == '"' {
		var name jsontext.Token
		if name, err = d.ReadToken(); err != nil {
			break
		}
		if next := w.below[name.String()]; next != nil {
			err = next.read(d)
		} else {
			err = d.SkipValue()
		}
	}
	if err == nil {
		_, err = d.ReadToken()
	}
	return err
}
