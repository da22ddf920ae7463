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
	{exitDone, "done", "The command did what it was asked to do. A plan with changes also ends so, unless -detailed-exitcode is given."},
	{exitError, "error before any change", "Something was wrong before anything was changed: the arguments, the document, the configuration, or the connection to the store; or what the command was to show could not be written. What the error says is wrong is to be mended; nothing is to be undone."},
	{exitDifferent, "differences", "There is a difference: plan -detailed-exitcode has changes, drift found some, diff or fmt -check did. Nothing failed."},
	{exitReverted, "failed and reverted", "A step failed, and all that the run had done was undone. That was verified by looking again at all that it touched. The serial is held, so that the same revision is not tried again by itself: write a new one, or let go with converge hold release."},
	{exitPartial, "partial", "A run failed and could not be undone whole, or has not ended: the site is in between. converge runs shows which; converge resume goes on with it, and converge rollback undoes it unless it did what cannot be undone exactly. Until then no other run begins while it is open, and what it could not undo is held: converge hold list."},
	{exitLocked, "locked", "Another command is changing this site. Wait for it with -lock-timeout, or see who it is with: converge lock status."},
	{exitStale, "plan stale or spent", "The saved plan does not fit any more: the site or the document is not as it was when it was made, or it was applied already. Nothing was changed. Plan again."},
	{exitRefused, "refused", "The plan may not be applied: another run that has not ended, a budget, a protection, a hold, a freeze, a missing signature, or an approval that was not given. Nothing was changed; the message says what is in the way, and what lets it through."},
	{exitUnknown, "a part is unknown or left out", "A part of the site could not be seen, or the server does not support a kind that the document has. Unknown is never taken for absent: nothing was decided about it. Mend the connection, or go on with the rest with -allow-partial."},
	{exitHungUp, "interrupted", "The terminal that it ran on is gone. The journal is intact: converge runs shows whether a run is open, converge resume goes on with it."},
	{exitInterrupted, "interrupted", "It was interrupted with Ctrl-C. The journal is intact: converge runs shows whether a run is open, converge resume goes on with it."},
	{exitQuit, "interrupted", "It was asked with SIGQUIT (Ctrl-\\) where it stands: it wrote the stacks of all that was under way and ended at once. The journal is intact: converge runs shows whether a run is open, converge resume goes on with it."},
	{exitTerminated, "interrupted", "It was told to end with SIGTERM. The journal is intact: converge runs shows whether a run is open, converge resume goes on with it."},
	{exitCrashed, "crashed", "A mistake in converge itself ended it, with SIGABRT; standard error says where: please report that. The journal is intact: converge runs shows whether a run is open, converge resume goes on with it. As the first process of a container, which that signal does not reach, it ends with 2 instead: give the container an init (docker run --init)."},
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
