package command

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"converge.dev/converge/engine"
	"converge.dev/converge/state"
)

// Exit statuses. They are a promise to scripts.
const (
	exitDone        = 0
	exitError       = 1 // before any change
	exitDifferent   = 2 // plan -detailed-exitcode, drift, diff, fmt -check: there is a difference
	exitReverted    = 3 // failed and undone, verified
	exitPartial     = 4 // failed, and the site is in between: resume or rollback
	exitLocked      = 5
	exitStale       = 6 // the plan is stale or spent
	exitRefused     = 7 // by policy, protection, a hold, an open run or a missing approval
	exitUnknown     = 8 // a part of the site could not be seen, or is left out
	exitInterrupted = 130
	exitTerminated  = 143
)

// An outcome ends a command with a status of which everything was said already.
type outcome int

// Error implements error.
func (o outcome) Error() string { return fmt.Sprintf("exit status %d", int(o)) }

// said reports whether there is nothing to add to an error.
func said(err error) bool {
	var o outcome
	return errors.As(err, &o)
}

// status gives the exit status for what a command returned.
func (a *app) status(err error) int {
	var (
		o       outcome
		open    *openRun
		locked  *state.LockedError
		stale   *engine.StaleError
		spent   *engine.SpentError
		refused *engine.RefusedError
		held    *engine.HeldError
		approve *engine.ApprovalError
		unknown *engine.UnknownError
	)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &o):
		return int(o)
	case errors.As(err, &open):
		return exitPartial
	case errors.Is(err, engine.ErrInterrupted), errors.Is(err, context.Canceled) && a.signal.Load() != nil:
		return a.interrupted()
	case errors.As(err, &locked):
		return exitLocked
	case errors.As(err, &stale), errors.As(err, &spent):
		return exitStale
	case errors.As(err, &refused), errors.As(err, &held), errors.As(err, &approve), errors.As(err, new(refusal)):
		return exitRefused
	case errors.As(err, &unknown):
		return exitUnknown
	}
	return exitError
}

// interrupted gives the status for the signal that came.
func (a *app) interrupted() int {
	if s := a.signal.Load(); s != nil && *s == syscall.SIGTERM {
		return exitTerminated
	}
	return exitInterrupted
}
