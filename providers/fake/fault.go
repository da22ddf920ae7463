package fake

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A Fault makes chosen calls fail. It counts the calls that it matches, also in the world's file, so that a fault
// that is over stays over when the world is opened again.
type Fault struct {
	Op string `json:"op"` // observe, create, update or delete; any: all four, counted together

	// Ref chooses things: a ref, or a kind, where * stands for any text within a part: site/carbide.vpc/prod,
	// */ovs.bridge/br-*, carbide.*. Empty: everything. An observation matches when it would report such a thing;
	// without a name in Ref, always.
	Ref string `json:"ref,omitempty"`

	Nth   int             `json:"nth,omitempty"`   // the first matching call that fails; zero: 1, the very first
	Times int             `json:"times,omitempty"` // how many fail from there; zero: 1; negative: all
	Every int             `json:"every,omitempty"` // from there, only every nth one fails; zero: 1, each
	Class providers.Class `json:"class,omitempty"` // of the error; empty: transient, or unknown when there is an effect

	Effect  Effect   `json:"effect,omitempty"`  // empty: EffectBefore
	Message string   `json:"message,omitempty"` // the cause, or the detail of the thing
	Delay   Duration `json:"delay,omitempty"`   // how long the answer, the late effect or the slow phase takes

	Seen int `json:"seen,omitempty"` // matching calls so far
}

// Effect says what happens to a call that a fault hits.
type Effect string

// The effects of faults. Observations support EffectBefore and, for a kind that is Eventual, EffectStale, which applies to
// changes made while the fault exists. The op any supports only EffectBefore.
const (
	EffectBefore Effect = "before" // it fails before it has an effect
	EffectAfter  Effect = "after"  // it has its effect, then the reply is lost
	EffectLate   Effect = "late"   // it fails at once, and has its effect after the delay
	EffectSlow   Effect = "slow"   // it succeeds; the thing is pending, or leaving, for the delay
	EffectFailed Effect = "failed" // it succeeds; the thing has failed
	EffectStale  Effect = "stale"  // after each change of a thing, the next Times observations still show it as it was before
)

// Duration is a time.Duration that is written as Go writes it: 1.5s.
type Duration time.Duration

// MarshalText writes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// check returns what is wrong with a fault, and fills in its defaults.
func (f *Fault) check() error {
	f.Effect = cmp.Or(f.Effect, EffectBefore)
	if f.Class == "" {
		f.Class = providers.Transient
		if f.Effect == EffectAfter || f.Effect == EffectLate {
			f.Class = providers.Unknown
		}
	}
	f.Nth, f.Times, f.Every = cmp.Or(f.Nth, 1), cmp.Or(f.Times, 1), cmp.Or(f.Every, 1)
	if !slices.Contains([]string{"observe", "create", "update", "delete", "any"}, f.Op) {
		return fmt.Errorf("fault: op is %q, want observe, create, update, delete or any", f.Op)
	}
	effects := []Effect{EffectBefore, EffectAfter, EffectLate, EffectSlow, EffectFailed}
	switch f.Op {
	case "observe":
		effects = []Effect{EffectBefore, EffectStale}
	case "any":
		effects = effects[:1]
	}
	if !slices.Contains(effects, f.Effect) {
		return fmt.Errorf("fault of %s: effect is %q, want one of %q", f.Op, f.Effect, effects)
	}
	classes := []providers.Class{providers.Transient, providers.Busy, providers.Conflict, providers.Exists, providers.Absent,
		providers.Denied, providers.Invalid, providers.Unsupported, providers.Unknown}
	if !slices.Contains(classes, f.Class) {
		return fmt.Errorf("fault of %s: class is %q, want one of %q", f.Op, f.Class, classes)
	}
	if _, err := path.Match(f.Ref, ""); err != nil || (strings.Contains(f.Ref, "/") && strings.Count(f.Ref, "/") != 2) {
		return fmt.Errorf("fault of %s: ref is %q, want SCOPE/KIND/NAME or a kind, with * for any text", f.Op, f.Ref)
	}
	if f.Nth < 1 || f.Every < 1 || f.Delay < 0 {
		return fmt.Errorf("fault of %s: nth, every and delay must not be negative", f.Op)
	}
	return nil
}

// matches reports whether the fault applies to a call on a kind; anyName reports whether a name of the call's things fits.
func (f *Fault) matches(op string, at schema.Place, anyName func(func(string) bool) bool) bool {
	if f.Op != op && f.Op != "any" {
		return false
	}
	scope, rest, isRef := strings.Cut(f.Ref, "/")
	if !isRef {
		return f.Ref == "" || glob(f.Ref, at.Kind)
	}
	kind, name, _ := strings.Cut(rest, "/")
	if !glob(scope, at.Scope) || !glob(kind, at.Kind) {
		return false
	}
	return name == "*" || anyName(func(s string) bool { return glob(name, s) })
}

func glob(pattern, s string) bool {
	ok, err := path.Match(pattern, s)
	return ok && err == nil
}

// hits reports whether the last counted call fails.
func (f *Fault) hits() bool {
	past := f.Seen - f.Nth
	every := max(f.Every, 1) // a fault from an older file has none
	return past >= 0 && past%every == 0 && (f.Times < 0 || past/every < f.Times)
}

// A lag is a change that observations do not show yet.
type lag struct {
	was   *thing // nil: nothing
	looks int    // for how many more; negative: all
}

// stale returns for how many observations after a change a thing is still shown as before.
func (w *World) stale(at target, name string) int {
	if !w.traits(at.Kind).Eventual {
		return 0
	}
	for i := range w.faults {
		f := &w.faults[i]
		if f.Effect == EffectStale && f.matches("observe", at.Place, func(match func(string) bool) bool { return match(name) }) {
			return f.Times
		}
	}
	return 0
}

// lagging returns what an observation shows of a thing whose current state is th (nil: absent), and counts the observation.
func (w *World) lagging(at target, th *thing) *thing {
	l := w.lags[at]
	if l == nil || l.looks == 0 {
		return th
	}
	if l.looks--; l.looks >= 0 {
		w.shows(at)
	}
	return l.was
}

// cause returns the error of the fault.
func (f *Fault) cause() error {
	if f.Message != "" {
		return errors.New(f.Message)
	}
	return fmt.Errorf("injected fault of class %s", f.Class)
}

// trip counts a call on all faults that match it and returns the first that hits it; nil when none does.
func (w *World) trip(op string, at schema.Place, anyName func(func(string) bool) bool) (*Fault, error) {
	var hit *Fault
	var faults []Fault
	for i := range w.faults {
		if !w.faults[i].matches(op, at, anyName) {
			continue
		}
		if faults == nil {
			faults = slices.Clone(w.faults)
		}
		f := &faults[i]
		f.Seen++
		if f.Effect == EffectStale { // it is counted by change, see [World.lagging]
			continue
		}
		if hit == nil && f.hits() {
			hit = f
		}
	}
	if faults == nil {
		return nil, nil
	}
	return hit, w.commit(record{Faults: &faults})
}

// A late effect is a change whose caller got an answer before it happened.
type late struct {
	Op      string        `json:"op"`
	Ref     schema.Ref    `json:"ref"`
	ID      string        `json:"id"`
	Name    string        `json:"name,omitempty"`
	Mark    string        `json:"mark,omitempty"`
	Want    schema.Object `json:"want,omitempty"`
	Version string        `json:"version,omitempty"`
	UID     string        `json:"uid,omitempty"`
	Epoch   int64         `json:"epoch,omitempty"`
	Due     time.Time     `json:"due"`
}

func (l late) call() providers.Call {
	return providers.Call{Ref: l.Ref, ID: l.ID, Name: l.Name, Mark: providers.ParseMark(l.Mark), Want: l.Want, Version: l.Version, UID: l.UID, Epoch: l.Epoch}
}
