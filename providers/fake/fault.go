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

// A Fault makes chosen calls go wrong. It counts the calls that it matches, in the world's file too, so that a fault
// that is over stays over when the world is opened again.
type Fault struct {
	Op string `json:"op"` // observe, create, update or delete

	// Ref chooses things: a ref, or a kind, where * stands for any text within a part: site/carbide.vpc/prod,
	// */ovs.bridge/br-*, carbide.*. Empty: everything. An observation matches when it would report such a thing;
	// without a name in Ref, always.
	Ref string `json:"ref,omitempty"`

	Nth   int             `json:"nth,omitempty"`   // the first matching call that fails; zero: 1, the very first
	Times int             `json:"times,omitempty"` // how many fail from there; zero: 1; negative: all
	Class providers.Class `json:"class,omitempty"` // of the error; empty: transient, or unknown when the effect comes

	Effect  Effect   `json:"effect,omitempty"`  // empty: EffectBefore
	Message string   `json:"message,omitempty"` // the cause, or the detail of the thing
	Delay   Duration `json:"delay,omitempty"`   // how long the answer, the late effect or the slow phase takes

	Seen int `json:"seen,omitempty"` // matching calls so far
}

// Effect says what becomes of a call that a fault hits.
type Effect string

// Effects of faults. Observations know only EffectBefore.
const (
	EffectBefore Effect = "before" // it fails before it has an effect
	EffectAfter  Effect = "after"  // it has its effect, then the reply is lost
	EffectLate   Effect = "late"   // it fails at once, and has its effect after the delay
	EffectSlow   Effect = "slow"   // it succeeds; the thing is pending, or leaving, for the delay
	EffectFailed Effect = "failed" // it succeeds; the thing has failed
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

// check finds what is wrong with a fault and fills in its defaults.
func (f *Fault) check() error {
	f.Effect = cmp.Or(f.Effect, EffectBefore)
	if f.Class == "" {
		f.Class = providers.Transient
		if f.Effect == EffectAfter || f.Effect == EffectLate {
			f.Class = providers.Unknown
		}
	}
	f.Nth, f.Times = cmp.Or(f.Nth, 1), cmp.Or(f.Times, 1)
	if !slices.Contains([]string{"observe", "create", "update", "delete"}, f.Op) {
		return fmt.Errorf("fault: op is %q, want observe, create, update or delete", f.Op)
	}
	effects := []Effect{EffectBefore, EffectAfter, EffectLate, EffectSlow, EffectFailed}
	if f.Op == "observe" {
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
	if f.Nth < 1 || f.Delay < 0 {
		return fmt.Errorf("fault of %s: nth and delay are not negative", f.Op)
	}
	return nil
}

// matches reports whether the fault is meant for a call on a kind whose names are known to any.
func (f *Fault) matches(op string, at place, anyName func(func(string) bool) bool) bool {
	if f.Op != op {
		return false
	}
	scope, rest, isRef := strings.Cut(f.Ref, "/")
	if !isRef {
		return f.Ref == "" || glob(f.Ref, at.kind)
	}
	kind, name, _ := strings.Cut(rest, "/")
	if !glob(scope, at.scope) || !glob(kind, at.kind) {
		return false
	}
	return name == "*" || anyName(func(s string) bool { return glob(name, s) })
}

func glob(pattern, s string) bool {
	ok, err := path.Match(pattern, s)
	return ok && err == nil
}

// cause is the error that the fault makes.
func (f *Fault) cause() error {
	if f.Message != "" {
		return errors.New(f.Message)
	}
	return fmt.Errorf("declared to fail with %s", f.Class)
}

// trip counts a call on all faults that match it and gives the first that hits it; nil when none does.
func (w *World) trip(op string, at place, anyName func(func(string) bool) bool) (*Fault, error) {
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
		if hit == nil && f.Seen >= f.Nth && (f.Times < 0 || f.Seen < f.Nth+f.Times) {
			hit = f
		}
	}
	if faults == nil {
		return nil, nil
	}
	return hit, w.commit(record{Faults: &faults})
}

// A late effect is a change whose caller was told something before it happened.
type late struct {
	Op      string        `json:"op"`
	Ref     schema.Ref    `json:"ref"`
	ID      string        `json:"id"`
	Mark    string        `json:"mark,omitempty"`
	Want    schema.Object `json:"want,omitempty"`
	Version string        `json:"version,omitempty"`
	Due     time.Time     `json:"due"`
}

func (l late) call() providers.Call {
	return providers.Call{Ref: l.Ref, ID: l.ID, Mark: providers.ParseMark(l.Mark), Want: l.Want, Version: l.Version}
}
