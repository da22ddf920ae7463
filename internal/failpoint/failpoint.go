// Package failpoint names the moments at which a process may die, stall or fail, so that tests can make it do so there.
//
// A point is an edge of something that must survive a crash: just before and just after a journal record is written, a
// call to the outside is made, the lock is taken. Code passes a point by calling [At]; that costs nothing in a normal
// build, where the function is empty. Built with the tag failpoint, a program obeys CONVERGE_FAILPOINT:
//
//	CONVERGE_FAILPOINT='journal.intent.after:3=kill'      the third time: SIGKILL, like a power failure
//	CONVERGE_FAILPOINT='call.create.before=stop'          the first time: SIGSTOP; SIGCONT wakes it
//	CONVERGE_FAILPOINT='call.delete.after=delay(2s)'      continues after a while
//	CONVERGE_FAILPOINT='journal.end.before=fail'          At returns an error that wraps [ErrInjected]
//
// Several are separated by semicolons. CONVERGE_FAILPOINT_LOG names a file to which every point that is passed is
// appended, one per line, so that a test knows which were never reached.
package failpoint

import "errors"

// ErrInjected is wrapped by the error of a point that was told to fail.
var ErrInjected = errors.New("a failure was injected")

// Points are all points, in the order in which a run meets them.
var Points = []string{
	"lock.take.before", "lock.take.after", "lock.epoch.after",
	"document.put.before", "document.put.after", "plan.put.after", "run.open.before", "run.open.after",
	"call.observe.before", "call.observe.after",
	"journal.intent.before", "journal.intent.after",
	"call.create.before", "call.create.after", "call.update.before", "call.update.after", "call.delete.before", "call.delete.after",
	"journal.outcome.before", "journal.outcome.after",
	"journal.no-return.before", "journal.no-return.after",
	"journal.revert.before", "journal.revert.after",
	"settle.before", "settle.after",
	"undo.create.before", "undo.create.after", "undo.update.before", "undo.update.after", "undo.delete.before", "undo.delete.after",
	"verify.before", "verify.after",
	"journal.end.before", "journal.end.after",
	"lock.release.before",
}
