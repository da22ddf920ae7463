package state

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"converge.dev/converge/schema"
)

// A Waiting is the plan that waits for people: what the site agent would do next, and may not do without their approval. There is at
// most one.
type Waiting struct {
	Approval string      `json:"approval"` // what identifies it to people, see [converge.dev/converge/engine/plan.Plan.Approval]
	Plan     string      `json:"plan"`     // digest of the saved plan, which is applied once
	Body     []string    `json:"body"`     // digests of its parts: see [Store.WaitingPlan]
	Site     schema.Site `json:"site"`
	Steps    int         `json:"steps"`
	Why      string      `json:"why"` // it waits
	Since    time.Time   `json:"since"`
	Lapsed   string      `json:"lapsed,omitempty"` // why the approvals of the plan that waited before do not count; empty: there were none
	Needs    int         `json:"needs"`            // how many people have to approve
	By       []string    `json:"by,omitempty"`     // who may; empty: anyone

	revision int64 // of the store
}

// An Approval is what one person has approved.
type Approval struct {
	Approves string    `json:"approval"` // the Approval of a [Waiting]
	By       string    `json:"by"`       // USER@HOST, as the process that wrote it says
	At       time.Time `json:"at"`

	revision int64 // of the store
}

// ApprovalLife is how long an approval is valid.
const ApprovalLife = 24 * time.Hour

// early is how far the clock of the process that writes an approval may be ahead.
const early = 5 * time.Minute

// Valid reports whether an approval is valid at a time.
func (a Approval) Valid(now time.Time) bool {
	age := now.Sub(a.At)
	return -early <= age && age < ApprovalLife
}

// Waiting reads the plan that waits; it fails with ErrNotFound when none does.
func (s *Store) Waiting(ctx context.Context) (Waiting, error) {
	w, it, err := read[Waiting](ctx, s, s.waitingKey())
	w.revision = it.Modified
	return w, err
}

// WaitingPlan reads the saved plan of w. It fails with ErrNotFound when another plan waits by now.
func (s *Store) WaitingPlan(ctx context.Context, w Waiting) ([]byte, error) {
	return s.chunks(ctx, s.waitingParts(), w.Body)
}

// SetWaiting makes a plan the one that waits, in place of another, and removes all approvals in the same transaction; Body is filled
// in. Nil: none waits. Only the process that keeps the site calls it.
func (s *Store) SetWaiting(ctx context.Context, w *Waiting, saved []byte) (err error) {
	op := Op{Key: s.waitingKey(), Delete: true}
	keep := map[string]bool{}
	if w != nil {
		if w.Body, err = s.putChunks(ctx, s.waitingParts(), saved, nil); err != nil {
			return fmt.Errorf("store the plan that waits: %w", err)
		}
		for _, part := range w.Body {
			keep[part] = true
		}
		op = s.put(op.Key, *w)
	}
	revision, err := s.kv.Commit(ctx, nil, []Op{op, {Key: s.approvals(), Delete: true, Prefix: true}})
	if err != nil {
		return fmt.Errorf("store which plan waits: %w", err)
	}
	if w != nil {
		w.revision = revision
	}
	parts, err := s.kv.Below(ctx, s.waitingParts())
	if err != nil {
		return fmt.Errorf("list the plans that waited: %w", err)
	}
	var ops []Op
	for _, part := range parts {
		if keep[part] {
			continue
		}
		if ops = append(ops, Op{Key: s.waitingParts() + part, Delete: true}); len(ops) == MaxOps {
			if _, err := s.kv.Commit(ctx, nil, ops); err != nil {
				return fmt.Errorf("remove a plan that waited: %w", err)
			}
			ops = nil
		}
	}
	if len(ops) > 0 {
		_, err = s.kv.Commit(ctx, nil, ops)
	}
	return err
}

// WaitingGuards hold while w waits as it was read or stored, and each of some approvals, as Approvals returned them, stands.
func (s *Store) WaitingGuards(w Waiting, counted []Approval) []Guard {
	guards := []Guard{{Key: s.waitingKey(), Revision: w.revision}}
	for _, a := range counted {
		guards = append(guards, Guard{Key: s.approvalKey(a), Revision: a.revision})
	}
	return guards
}

// Approve writes that somebody approves w, and enters it in the audit log. It replaces an earlier approval by the same person, at whatever
// host. It fails with ErrGuard when w no longer waits as it was read, or a run has begun to apply it.
func (s *Store) Approve(ctx context.Context, w Waiting, by string, at time.Time) error {
	a := Approval{Approves: w.Approval, By: by, At: at.UTC()}
	return s.decided(ctx, w, Audit{Action: "approve", Reason: fmt.Sprintf("serial %d, steps: %d", w.Site.Serial, w.Steps)}, a, s.put(s.approvalKey(a), a))
}

// Unapprove takes back what somebody has approved, and enters that in the audit log. It fails with ErrGuard when w no longer waits as it
// was read, or a run has begun to apply it: then it would be too late.
func (s *Store) Unapprove(ctx context.Context, w Waiting, by string, at time.Time) error {
	a := Approval{Approves: w.Approval, By: by, At: at.UTC()}
	return s.decided(ctx, w, Audit{Action: "unapprove"}, a, Op{Key: s.approvalKey(a), Delete: true})
}

func (s *Store) decided(ctx context.Context, w Waiting, entry Audit, a Approval, op Op) error {
	entry.At, entry.By, entry.Scope = a.At, a.By, a.Approves
	_, err := s.kv.Commit(ctx, []Guard{{Key: s.waitingKey(), Revision: w.revision}, s.UnspentGuard(w.Plan)}, []Op{op, s.put(s.key("audit", NewRunID(a.At)), entry)})
	if err != nil {
		return fmt.Errorf("%s %s: %w", entry.Action, a.Approves, err)
	}
	return nil
}

// Approvals reads what people have approved, of all plans, valid or not. What cannot be read approves nothing, and is left out.
func (s *Store) Approvals(ctx context.Context) ([]Approval, error) {
	items, err := s.kv.List(ctx, s.approvals())
	if err != nil {
		return nil, fmt.Errorf("list the approvals: %w", err)
	}
	var all []Approval
	for _, it := range items {
		var a Approval
		err := decode(it, &a)
		if errors.As(err, new(*DamagedError)) || err == nil && s.approvalKey(a) != it.Key {
			continue
		}
		if err != nil {
			return nil, err
		}
		a.revision = it.Modified
		all = append(all, a)
	}
	return all, nil
}

func (s *Store) waitingKey() string { return s.key("waiting/head") }

// waitingParts is where the parts of plans that wait are. They are not blobs, which are removed when no run has them.
func (s *Store) waitingParts() string { return s.key("waiting/plan") + "/" }

// approvals is where the approvals are.
func (s *Store) approvals() string { return s.key("approval") + "/" }

// approvalKey returns the key of an approval. A person has one for each plan.
func (s *Store) approvalKey(a Approval) string {
	return s.key("approval", a.Approves, url.PathEscape(schema.Person(a.By)))
}
