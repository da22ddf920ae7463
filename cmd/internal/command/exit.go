package command

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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
	exitUnknown     = 8 // a part of the site could not be observed, or is left out
	exitUnconfirmed = 9 // a run was not confirmed, or cut a node off: undone, verified
	exitHungUp      = 129
	exitInterrupted = 130
	exitQuit        = 131
	exitTerminated  = 143
	exitCrashed     = 134 // by Go, with SIGABRT; see crashByAbort
)

// statuses says what each exit status means: briefly, and in sentences. It is the only table of them.
var statuses = []struct {
	code         int
	brief, means string
}{
	{exitDone, "done", "The command succeeded. A plan with changes also exits with this status, unless -detailed-exitcode is given."},
	{exitError, "error before any change", "Something was wrong before anything was changed: the arguments, the document, the configuration, or the connection to the store; or the output could not be written. Fix what the error reports; there is nothing to undo."},
	{exitDifferent, "differences", "There is a difference: plan -detailed-exitcode has changes, or drift, diff or fmt -check found some. Nothing failed."},
	{exitReverted, "failed and reverted", "A step failed, and everything that the run had done was reverted. This was verified by observing again everything that it touched. The serial is put on hold, so the same revision is not retried automatically: write a new one, or release the hold with converge hold release."},
	{exitPartial, "partial", "A run failed and could not be fully reverted, or has not finished: the site is in an intermediate state. converge runs shows which run; converge resume continues it, and converge rollback rolls it back unless it did something that cannot be undone exactly. No other run starts while it is open, and whatever it could not revert is on hold: converge hold list."},
	{exitLocked, "locked", "Another command is changing this site. Wait for it with -lock-timeout, or see who holds the lock with: converge lock status."},
	{exitStale, "plan stale or already applied", "The saved plan no longer fits: the site or the document has changed since the plan was made, or the plan was already applied. Nothing was changed. Plan again."},
	{exitRefused, "refused", "The plan may not be applied because of another run that has not finished, a budget, a protection, a hold, a freeze, a missing signature, or a missing approval. Nothing was changed; the message says what blocks the plan, and how to allow it."},
	{exitUnknown, "a part is unknown or skipped", "A part of the site could not be observed, or the server does not support a kind that the document contains. Unknown is never treated as absent: nothing was decided about that part. Fix the connection, or continue with the rest with -allow-partial."},
	{exitUnconfirmed, "unconfirmed and reverted", "The run was not confirmed in time (apply -confirm), or a change cut a node off and was undone by the node's guard. Everything that the run had done was reverted, and this was verified by observing again. The serial is put on hold, as with status 3."},
	{exitHungUp, "interrupted", "The terminal that it ran in was closed. The journal is intact: converge runs shows whether a run is open, converge resume continues it."},
	{exitInterrupted, "interrupted", "It was interrupted with Ctrl-C. The journal is intact: converge runs shows whether a run is open, converge resume continues it."},
	{exitQuit, "interrupted", "It received SIGQUIT (Ctrl-\\): it wrote the stacks of everything in progress and exited at once. The journal is intact: converge runs shows whether a run is open, converge resume continues it."},
	{exitTerminated, "interrupted", "It was terminated with SIGTERM. The journal is intact: converge runs shows whether a run is open, converge resume continues it."},
	{exitCrashed, "crashed", "A bug in converge itself crashed it with SIGABRT; standard error says where: please report it. The journal is intact: converge runs shows whether a run is open, converge resume continues it. As the first process of a container, which that signal does not reach, it exits with 2 instead: run the container with an init (docker run --init)."},
}

// briefly lists the exit statuses; those with the same meaning are combined.
func briefly() []string {
	var list []string
	same := ""
	for i, s := range statuses {
		same += strconv.Itoa(s.code)
		if i+1 < len(statuses) && statuses[i+1].brief == s.brief {
			same += ", "
			continue
		}
		list = append(list, same+" "+s.brief)
		same = ""
	}
	return list
}

// An outcome ends a command with a status about which everything was already reported.
type outcome int

// Error implements error.
func (o outcome) Error() string { return fmt.Sprintf("exit status %d", int(o)) }

// said reports whether an error was already reported.
func said(err error) bool {
	var o outcome
	return errors.As(err, &o)
}

// status returns the exit status for what a command returned.
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

// interrupted returns the status for the signal that was received.
func (a *app) interrupted() int {
	if s := a.signal.Load(); s != nil {
		switch *s {
		case syscall.SIGTERM:
			return exitTerminated
		case syscall.SIGHUP:
			return exitHungUp
		case syscall.SIGQUIT:
			return exitQuit
		}
	}
	return exitInterrupted
}
