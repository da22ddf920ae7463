package site

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Waits returns the plan of a site that waits for approval, nil when there is none, and the approvals of it that count.
func Waits(ctx context.Context, store *state.Store) (*state.Waiting, []state.Approval, error) {
	w, err := store.Waiting(ctx)
	if errors.Is(err, state.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if _, spent, err := store.Spent(ctx, w.Plan); err != nil || spent { // the site agent has not come to remove it
		return nil, nil, err
	}
	all, err := store.Approvals(ctx)
	var valid []state.Approval
	policy := schema.Approvals{By: w.By}
	for _, v := range all {
		if v.Approves == w.Approval && v.Valid(time.Now()) && policy.May(v.By) {
			valid = append(valid, v)
		}
	}
	return &w, valid, err
}

// WaitingPlan reads the plan that waits.
func WaitingPlan(ctx context.Context, store *state.Store, w *state.Waiting) (*plan.Plan, error) {
	body, err := store.WaitingPlan(ctx, *w)
	if err != nil {
		return nil, err
	}
	p, err := plan.Decode(body)
	if err == nil && p.Approval() != w.Approval {
		err = errors.New("it is not the plan with this digest")
	}
	return p, err
}

// A NotCountedError says that the approval of somebody would not count.
type NotCountedError struct {
	Who string
	By  []string // whose would
}

// Error implements error.
func (e *NotCountedError) Error() string {
	return fmt.Sprintf("the approval of %s would not count: the document's policy.approvals names %s", e.Who, strings.Join(e.By, ", "))
}

// ApprovePlan approves the plan that waits, as somebody, USER@HOST, and returns the approvals that it has from then on. It fails with a
// *[NotCountedError] when that would not count, and with [state.ErrGuard] when the plan no longer waits as it was read; nothing is approved then.
func ApprovePlan(ctx context.Context, store *state.Store, w *state.Waiting, who string) ([]state.Approval, error) {
	if err := MayApprove(w, who); err != nil {
		return nil, err
	}
	now := time.Now()
	given := []state.Approval{{Approves: w.Approval, By: who, At: now.UTC()}}
	_, approvals, err := Waits(ctx, store) // before: afterwards the plan may be applied already
	if err != nil {
		return nil, err
	}
	for _, v := range approvals {
		if v.Approves == w.Approval && schema.Person(v.By) != schema.Person(who) {
			given = append(given, v)
		}
	}
	return given, store.Approve(ctx, *w, who, now)
}

// MayApprove fails with a *[NotCountedError] when the approval of somebody would not count.
func MayApprove(w *state.Waiting, who string) error {
	if policy := (schema.Approvals{By: w.By}); !policy.May(who) {
		return &NotCountedError{who, w.By}
	}
	return nil
}

// UnapprovePlan takes back what somebody has approved, and reports whether that was there. It fails with [state.ErrGuard] when the plan no
// longer waits as it was read.
func UnapprovePlan(ctx context.Context, store *state.Store, w *state.Waiting, who string) (bool, error) {
	all, err := store.Approvals(ctx) // also what does not count by the clock here: it may elsewhere, or later
	if err != nil {
		return false, err
	}
	for _, v := range all {
		if v.Approves == w.Approval && schema.Person(v.By) == schema.Person(who) {
			return true, store.Unapprove(ctx, *w, who, time.Now())
		}
	}
	return false, nil
}
