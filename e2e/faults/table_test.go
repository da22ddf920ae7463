package faults

import (
	"fmt"
	"slices"
	"strings"

	"converge.dev/converge/providers"
)

// An ending is the whole result of a cell.
type ending struct {
	status string // of the run
	step   string // of x, as in the journal: done, refused, partial, open; after > that of its undo
	world  string // what exists of the kind: as wanted, as before
	holds  string // serial: the revision is not tried again; site: nothing is done until an operator has checked
	waited bool   // for the late bound
	next   string // the result of resume, where the run is open or partial, and of applying the document again
}

func (e ending) String() string {
	return fmt.Sprintf("run %s, step %s, %q is there, holds %q, waited %t, next %q", e.status, e.step, e.world, e.holds, e.waited, e.next)
}

// endings are the ends by name, as in engine/grid_table_test.go. A + means that the late bound was waited for.
var endings = map[string]ending{
	// It is as wanted.
	"done": {"applied", "done", "wanted", "", false, "clean"},
	// The same, after a wait until no call could arrive any more.
	"done+": {"applied", "done", "wanted", "", true, "clean"},
	// Nothing was changed.
	"refused": {"reverted", "refused", "before", "serial", false, "again applied, clean"},
	// What was done was undone.
	"undone": {"reverted", "done>done", "before", "serial", false, "again applied, clean"},
	// The same, after a wait.
	"undone+": {"reverted", "done>done", "before", "serial", true, "again applied, clean"},
	// Its result was wrong, and was undone.
	"failed": {"reverted", "partial>done", "before", "serial", false, "again applied, clean"},
	// The same, after a wait: the rest could still have come.
	"failed+": {"reverted", "partial>done", "before", "serial", true, "again applied, clean"},
	// The unknown was waited for, then undone.
	"settled+": {"reverted", "open>done", "before", "serial", true, "again applied, clean"},
	// The undo was refused.
	"stuck": {"partial", "done>refused", "wanted", "serial+site", false, "resume reverted, again applied, clean"},
	// No reply to the undo, after a wait: held.
	"stuck?+": {"partial", "done>open", "wanted", "serial+site", true, "resume reverted, again applied, clean"},
	// No reply beyond the point of no return: held, and finished forward.
	"forward": {"partial", "open", "before", "serial+site", false, "resume applied, clean"},
	// Created but not seen, beyond the point of no return: held, and finished forward.
	"forward?": {"partial", "open", "wanted", "serial+site", false, "resume applied, clean"},
	// Undone by forgetting it: its kind cannot be deleted.
	"left": {"reverted", "done>done", "wanted", "serial", false, "again applied, clean"},
	// The same, after a wait.
	"left+": {"reverted", "open>done", "wanted", "serial", true, "again applied, clean"},
	// A part of it could not be done, and what was done was undone.
	"settled": {"reverted", "open>done", "before", "serial", false, "again applied, clean"},
	// The same, but the rest could not be undone either: held.
	"half": {"partial", "partial>refused", "between", "serial+site", false, "resume reverted, again applied, clean"},
	// The same, after a wait: what came late was not seen in time.
	"half+": {"partial", "open>partial", "between", "serial+site", true, "resume reverted, again applied, clean"},
	// A part of the undo was refused: held.
	"half~": {"partial", "done>refused", "between", "serial+site", false, "resume reverted, again applied, clean"},
	// The same, after a wait: what came late was not seen in time.
	"half~+": {"partial", "done>partial", "between", "serial+site", true, "resume reverted, again applied, clean"},
	// The same, and it is unknown whether more will come.
	"half~?": {"partial", "done>open", "between", "serial+site", false, "resume reverted, again applied, clean"},
	// The same, after a wait.
	"half~?+": {"partial", "done>open", "between", "serial+site", true, "resume reverted, again applied, clean"},
	// Nothing of the undo is visible, and it is unknown whether anything will come: held.
	"stuck?": {"partial", "done>open", "wanted", "serial+site", false, "resume reverted, again applied, clean"},
	// A part of it is done beyond the point of no return: held, and finished forward.
	"forward/": {"partial", "open", "between", "serial+site", false, "resume applied, clean"},
	// Open: the undo could neither be observed nor begun.
	"unseen": {"open", "done>refused", "wanted", "", false, "resume reverted, again applied, clean"},
	// Open: created but not seen, and the undo could not be observed.
	"unseen?": {"open", "open>refused", "wanted", "", false, "resume reverted, again applied, clean"},
	// The same, after a wait.
	"unseen?+": {"open", "open>refused", "wanted", "", true, "resume reverted, again applied, clean"},
	// Open: undone but not seen.
	"unseen~": {"open", "done>open", "before", "", false, "resume reverted, again applied, clean"},
	// Open: it is unknown whether it was created (again), and nothing could be observed.
	"adrift~+": {"open", "done>open", "wanted", "", true, "resume reverted, again applied, clean"},
	// The same, but every call was answered: there is nothing to wait for.
	"adrift": {"open", "open>refused", "before", "", false, "resume reverted, again applied, clean"},
	// Open: nothing could be observed until the step timed out, and nothing was undone.
	"away+": {"open", "", "before", "", true, "resume applied, clean"},
	// The same, after a call that was not carried out.
	"away!+": {"open", "refused", "before", "", true, "resume applied, clean"},
	// The same, after a call without a reply.
	"away?+": {"open", "open", "before", "", true, "resume applied, clean"},
	// The same in the middle of several calls.
	"away/+": {"open", "open", "between", "", true, "resume applied, clean"},
	// The same for an undo.
	"away~/+": {"open", "done>open", "between", "", true, "resume reverted, again applied, clean"},
	// Open, as above, for an undo.
	"away~+": {"open", "done", "wanted", "", true, "resume reverted, again applied, clean"},
	// The same for an undo, after a call that was not carried out.
	"away~!+": {"open", "done>refused", "wanted", "", true, "resume reverted, again applied, clean"},
}

// A case of the table: a call that meets a fault.
type met struct {
	traits   providers.Traits
	verb     string // create, update, delete: of the call
	undo     bool   // it undoes what was done
	exact    bool   // the step can be undone, so that it comes before the point of no return
	later    bool   // the verb has already made another call, which had its effect
	sooner   bool   // the verb makes another call afterwards
	token    bool   // things have a version that visibly changes
	itself   bool   // the far side does by itself what is left of the verb after this call
	unproven bool   // what is seen does not prove that the call has arrived, because the far side may have done it by itself
	looks    bool   // a create that reads something first
	refusal  string // what INTERNAL means to the verb when reading shows that it had no effect
}

// answers are the faults in which the service answers a call with a code that shows that it had no effect.
var answers = []string{
	"refused", "busy", "busy for good", "there, said absent", "not there, said exists", "done, said invalid", "done, said exhausted",
}

// expected returns the end that docs/reliability.md requires, "Ids and unknown outcomes", read as follows.
//
// A refusal is believed only when an observation does not contradict it (promise 1): what was done although it was refused is
// done. What only said "not yet" is tried again (S2). A refusal of a later call of several is no refusal of the verb:
// something was changed, which is observed, and finished; at once, unless the far side may still do by itself what it was
// asked for before.
//
// A call of unknown outcome without a visible effect is made again, and so is the rest of several calls of which not all are
// visible. Before that it is waited for when it could change something that comes after it (S1): a create of an id that is
// used again, a blind update, a delete of such an id. An undo without a reply waits as well: only then the observation is final.
//
// When no reply comes at all, a step before the point of no return is settled and undone; one beyond it is held, to be
// finished forward. An undo without a reply is held.
//
// What cannot be seen is not reported as done, undone or absent (promise 3): the run stays open.
func expected(f fault, m met) string {
	ok, no := "done", "refused"
	if m.undo {
		ok, no = "undone", "stuck"
	}
	waits := m.traits.Eventual
	switch m.verb {
	case "create":
		waits = waits || !m.traits.IDsNotReusable
	case "update":
		waits = waits || m.traits.Update != providers.Versioned
	case "delete":
		waits = waits || m.traits.ID != "" || m.traits.UndoDelete.Reversible()
	}
	again := ok
	if waits {
		again += "+"
	}
	if m.later && m.verb == "update" && len(m.traits.SelfChanging) == 0 && slices.Contains(answers, f.name) {
		return ok
	}
	if m.later {
		no = again
	}
	effect := slices.Contains([]string{"reply lost", "replies lost", "cut", "done, said invalid", "done, said internal", "done, said exhausted"}, f.name)
	if m.itself && (effect || m.later && (len(f.inject) == 1 && f.inject[0].Method == "" || f.name == "flapping")) {
		if f.patient || f.name == "slow" || !m.later && strings.HasPrefix(f.name, "done, said ") {
			return ok
		}
		return again
	}
	if m.unproven && (effect && (m.later || !strings.HasPrefix(f.name, "done, said ")) || (m.later || m.itself) && f.name == "partial list") {
		return again
	}
	if m.verb == "create" && (m.later || m.sooner) { // it exists, and not as wanted: the rest is a change of it
		switch {
		case m.later && f.patient:
			return "failed"
		case !m.later && strings.HasPrefix(f.name, "done, said "):
			return ok
		case m.later && f.name == "not there, said exists", f.name == "partial list":
			return again
		}
	}
	if effect && m.sooner {
		return again
	}
	switch f.name {
	case "refused", "busy for good":
		return no
	case "not done, said internal":
		switch {
		case m.later, m.verb == "update" && !m.token: // nothing shows that it had no effect
			return again
		case m.refusal == "refused":
			return no
		}
	case "busy", "there, said absent":
		if m.later {
			return again
		}
	case "late, then undone":
		if m.traits.Delete == providers.Never && m.verb == "delete" {
			return "left"
		}
	case "not there, said exists":
		switch {
		case m.refusal == "exists is busy", m.traits.IDsNotReusable && m.traits.ID == "": // the next incarnation
			return ok
		}
		return no
	case "request lost", "no answer", "late", "flapping":
		return again
	case "requests lost": // which is a service that reads, and accepts no changes
		between := m.later && !m.unproven // of power nothing is seen before it exists
		switch {
		case m.undo && between:
			return "away~/+"
		case m.undo:
			return "adrift~+"
		case between:
			return "away/+"
		}
		return "away?+"
	case "late each time":
		switch {
		case m.undo:
			return "undone+"
		case waits:
			return "done+"
		case m.exact:
			return "settled+"
		}
		return "forward"
	case "no list":
		switch {
		case m.undo && m.verb == "create":
			return "unseen~"
		case m.undo:
			return "unseen"
		case m.verb != "create":
			return "refused"
		case !m.exact:
			return "forward?"
		case m.traits.Delete == providers.Never:
			return "left+"
		case m.looks:
			return "adrift"
		case m.traits.IDsNotReusable: // which is requested by creating it again
			return "unseen?"
		}
		return "unseen?+"
	case "lost server":
		switch {
		case m.undo && m.verb == "create":
			return "away~!+"
		case m.undo:
			return "away~+"
		case m.verb == "create":
			return "away!+"
		}
		return "away+"
	case "deaf server":
		switch {
		case m.undo && m.verb == "create":
			return "adrift~+"
		case m.undo:
			return "away~+"
		case m.verb != "create":
			return "away+"
		case m.looks:
			return "away!+"
		}
		return "away?+"
	}
	return ok
}
