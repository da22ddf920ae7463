package engine_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// A gridEnd is the whole result of a cell.
type gridEnd struct {
	status      string // of the run
	step        string // of x, as in the journal: done, refused, partial, open; after > that of its undo
	world       string // what exists of x: as wanted, as before, theirs, nothing; +edit: with the label that others changed
	holds       string // serial: the revision is not tried again; site: nothing is done until an operator has checked
	waited      bool   // for the late bound
	next        string // the result of resume, where the run is open or partial, and of applying the document again
	incarnation int    // that is remembered in the very end; 0: none
}

func (e gridEnd) String() string {
	return fmt.Sprintf("run %s, step %s, %q is there, holds %q, waited %t, next %q, incarnation %d", e.status, e.step, e.world, e.holds, e.waited, e.next, e.incarnation)
}

// gridEnds are the ends by the names that the tables use. A + means that the late bound was waited for; /N in a table that
// the last incarnation is not 1 but N.
var gridEnds = map[string]gridEnd{
	// It is as wanted.
	"done": {"applied", "done", "wanted", "", false, "clean", 1},
	// The same, after a wait until no call could arrive any more.
	"done+": {"applied", "done", "wanted", "", true, "clean", 1},
	// Nothing was changed.
	"refused": {"reverted", "refused", "before", "serial", false, "again applied, clean", 1},
	// What was done was undone.
	"undone": {"reverted", "done>done", "before", "serial", false, "again applied, clean", 1},
	// The same, after a wait.
	"undone+": {"reverted", "done>done", "before", "serial", true, "again applied, clean", 1},
	// Its result was wrong, and was undone.
	"failed": {"reverted", "partial>done", "before", "serial", false, "again applied, clean", 1},
	// The unknown was waited for, then undone.
	"settled+": {"reverted", "open>done", "before", "serial", true, "again applied, clean", 1},
	// Refused, and what others changed stays.
	"edited": {"reverted", "refused", "before+edit", "serial", false, "again applied, clean", 1},
	// Refused: others had removed it.
	"gone": {"reverted", "refused", "nothing", "serial", false, "again applied, clean", 1},
	// Refused, and what others created stays.
	"theirs": {"reverted", "refused", "theirs", "serial", false, "refused", 1},
	// What was created is not undone, because others have changed it since: held.
	"kept~": {"partial", "done>partial", "wanted+edit", "serial+site", false, "resume partial, later partial", 1},
	// The same: it bears the mark of another site by now.
	"taken~": {"partial", "done>partial", "theirs", "serial+site", false, "resume partial, later partial", 1},
	// The undo was refused.
	"stuck": {"partial", "done>refused", "wanted", "serial+site", false, "resume reverted, again applied, clean", 1},
	// No reply to the undo, after a wait: held.
	"stuck?+": {"partial", "done>open", "wanted", "serial+site", true, "resume reverted, again applied, clean", 1},
	// It cannot be known whether it was created: held.
	"blind+": {"partial", "open>partial", "before", "serial+site", true, "resume partial, later partial", 1},
	// It cannot be known whether it was created again: held.
	"blind~+": {"partial", "done>partial", "wanted", "serial+site", true, "resume reverted, again applied, clean", 1},
	// It cannot be known whether it was created, others hold its place: held.
	"clash+": {"partial", "open>partial", "theirs", "serial+site", true, "resume partial, later partial", 1},
	// The same for an undo.
	"clash~?": {"partial", "done>open", "theirs", "serial+site", false, "resume partial, later partial", 1},
	// Others hold the place that the undo needs: held.
	"clash~": {"partial", "done>refused", "theirs", "serial+site", false, "resume partial, later partial", 1},
	// Undone, but others changed more than we did: held.
	"mixed": {"partial", "done>done", "before+edit", "serial+site", false, "resume partial, later partial", 1},
	// Others removed what was to be undone: held.
	"lost": {"partial", "done>refused", "nothing", "serial+site", false, "resume partial, later partial", 1},
	// Undone, but it has failed: held.
	"broken": {"partial", "done>partial", "before failed", "serial+site", false, "resume partial, later partial", 1},
	// Undone, but not ready in time: held.
	"pending": {"partial", "done>partial", "before pending", "serial+site", false, "resume partial, later reverted, again applied, clean", 1},
	// Undone, but not gone in time: held.
	"leaving~": {"partial", "done>partial", "wanted leaving", "serial+site", false, "resume partial, later reverted, again applied, clean", 1},
	// Not gone in time, so it cannot be created again yet: held.
	"leaving": {"partial", "partial>refused", "before leaving", "serial+site", false, "resume partial, later reverted, again applied, clean", 1},
	// Not gone in time, beyond the point of no return: held.
	"leaving!": {"partial", "partial", "before leaving", "serial+site", false, "resume partial, later applied, clean", 1},
	// No reply beyond the point of no return: held, and finished forward.
	"forward": {"partial", "open", "before", "serial+site", false, "resume applied, clean", 1},
	// Open: the undo could neither be observed nor begun.
	"unseen": {"open", "done>refused", "wanted", "", false, "resume reverted, again applied, clean", 1},
	// Open: created but not seen, and the undo could not be observed.
	"unseen?": {"open", "open>refused", "wanted", "", false, "resume reverted, again applied, clean", 1},
	// The same, after a wait.
	"unseen?+": {"open", "open>refused", "wanted", "", true, "resume reverted, again applied, clean", 1},
	// Open: nothing could be observed until the step timed out, and nothing was undone.
	"away+": {"open", "", "before", "", true, "resume applied, clean", 1},
	// The same, after a call that was not carried out.
	"away!+": {"open", "refused", "before", "", true, "resume applied, clean", 1},
	// The same for an undo.
	"away~+": {"open", "done", "wanted", "", true, "resume reverted, again applied, clean", 1},
	// The same for an undo, after a call that was not carried out.
	"away~!+": {"open", "done>refused", "wanted", "", true, "resume reverted, again applied, clean", 1},
	// Open: undone but not seen.
	"unseen~": {"open", "done>open", "before", "", false, "resume reverted, again applied, clean", 1},
}

// gridTable says what every cell must come to, by profile. A - stands where fault and method cannot meet.
//
// The expectations are those of docs/reliability.md, "Ids and unknown outcomes", read as follows.
//
// S1, before something is built on an unknown: a call of unknown outcome, of which no effect is seen, is waited for when
// it could change something that comes after it. That is a create of an id that is used again, a blind update, and a blind
// delete of such an id. It is not a create of an id that is used once (it is made again until the answer is definite), nor
// a call with a version, nor the delete of an id that only one thing ever has; but where a list lags, no observation is
// proof, so every call of unknown outcome is waited for until the list must have caught up. An undo without a reply waits
// as well: only then the observation is final.
//
// Promise 1, reverted is never claimed wrongly: a refusal is believed only when an observation does not contradict it.
//
// Promise 2, never a guess: where nothing shows whether a create had its effect, or whose thing it is that exists after
// a create of unknown outcome, the run ends partial and the site is held.
//
// What bears the mark of another site is not touched, not even under an id that is recorded as ours.
var gridTable = map[string]string{
	"carbide": `
                      | create     update     delete     mark       ~create    ~update    ~delete    ~mark
none                  | done       done       done       done       undone/2   undone     -          undone
refused               | refused    refused    refused    refused    stuck/2    stuck      -          stuck
overloaded            | done       done       done       done       undone/2   undone     -          undone
overloaded for good   | refused    refused    refused    refused    stuck/2    stuck      -          stuck
busy                  | done       done       done       done       undone/2   undone     -          undone
busy for good         | refused    refused    refused    refused    stuck/2    stuck      -          stuck
request lost          | done       done       done       done       undone/2   undone     -          undone
requests lost         | settled+/2 settled+   forward    settled+   stuck?+/2  stuck?+    -          stuck?+
reply lost            | done       done       done       done       undone/2   undone     -          undone
replies lost          | done       done       done       done       undone/2   undone     -          undone
late                  | done       done       done       done       undone/2   undone     -          undone
late each time        | done       done       done       done       undone/2   undone     -          undone
late, many looks      | settled+/2 settled+   forward    settled+   undone+/2  undone+    -          undone+
slow                  | done       done       done       done       undone/2   undone     -          undone
too slow              | failed/2   failed     leaving!   failed     leaving~/2 pending    -          pending
never ready           | failed/2   failed     -          failed     -          broken     -          broken
done, said invalid    | done       done       done       done       undone/2   undone     -          undone
done, said transient  | done       done       done       done       undone/2   undone     -          undone
not there, said exists| done/2     -          -          -          -          -          -          -
there, said absent    | -          done       done       done       undone/2   undone     -          undone
partial list          | done       done       done       done       undone/2   undone     -          undone
no list               | unseen?/2  refused    refused    refused    unseen/2   unseen     -          unseen
stale list            | done       done       done       done       undone/2   undone     -          undone
stale, reply lost     | done       done+      done+      done+      undone+/2  undone+    -          undone+
lost server           | away!+     away+      away+      away+      away~+/2   away~+     -          away~+
flapping              | done       done       done       done       undone/2   undone     -          undone
flapping in step      | refused    refused    refused    refused    stuck/2    stuck      -          stuck
late, then undone     | -          -          -          -          undone/2   undone     -          undone
version moved         | -          done       done       done       undone/2   undone     -          undone
edited                | -          edited     done       edited     undone/2   mixed      -          mixed/0
edited early          | -          edited     edited     edited     kept~      mixed      -          mixed/0
vanished              | -          gone/2     done       gone       undone/2   lost       -          lost
id burned             | done/2     -          -          -          -          -          -          -
killed before         | done       done       done+      done       undone+/2  undone     -          undone
killed after          | done       done       done       done       undone/2   undone     -          undone
`,
	"ovs": `
                      | create     update     delete     mark       ~create    ~update    ~delete    ~mark
none                  | done       done       done/0     done       undone     undone     undone/0   undone
refused               | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
overloaded            | done       done       done/0     done       undone     undone     undone/0   undone
overloaded for good   | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
busy                  | done       done       done/0     done       undone     undone     undone/0   undone
busy for good         | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
request lost          | done+      done       done/0     done       undone     undone     undone+/0  undone
requests lost         | settled+   settled+   settled+/0 settled+   stuck?+    stuck?+    stuck?+/0  stuck?+
reply lost            | done       done       done/0     done       undone     undone     undone/0   undone
replies lost          | done       done       done/0     done       undone     undone     undone/0   undone
late                  | done+      done       done/0     done       undone     undone     undone+/0  undone
late each time        | done+      done       done/0     done       undone     undone     undone+/0  undone
late, many looks      | done+      settled+   settled+/0 settled+   undone+    undone+    undone+/0  undone+
slow                  | done       done       done/0     done       undone     undone     undone/0   undone
too slow              | failed     failed     leaving/0  failed     leaving~   pending    pending/0  pending
never ready           | failed     failed     -          failed     -          broken     broken     broken
done, said invalid    | done       done       done/0     done       undone     undone     undone/0   undone
done, said transient  | done       done       done/0     done       undone     undone     undone/0   undone
not there, said exists| refused    -          -          -          -          -          stuck/0    -
there, said absent    | -          done       done/0     done       undone     undone     -          undone
partial list          | done       done       done/0     done       undone     undone     undone/0   undone
no list               | unseen?+   refused    refused/0  refused    unseen     unseen     unseen~/0  unseen
stale list            | done       done       done/0     done       undone     undone     undone/0   undone
stale, reply lost     | done       done+      done+/0    done+      undone+    undone+    undone+/0  undone+
lost server           | away!+     away+      away+/0    away+      away~+     away~+     away~!+/0  away~+
flapping              | done       done       done/0     done       undone     undone     undone/0   undone
flapping in step      | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
late, then undone     | -          -          -          -          undone+    undone     undone/0   undone
version moved         | -          done       done/0     done       undone     undone     -          undone
edited                | -          edited     edited/0   edited     kept~      mixed      -          mixed/0
edited early          | -          edited     edited/0   edited     kept~      mixed      -          mixed/0
vanished              | -          gone/2     done/0     gone       undone     lost       -          lost
foreign               | theirs/0   -          -          -          -          -          clash~     -
foreign, no reply     | clash+/0   -          -          -          -          -          clash~?    -
changed hands         | -          theirs     theirs     theirs/0   taken~     clash~     -          -
killed before         | done+      done       done/0     done       undone     undone     undone+/0  undone
killed after          | done       done       done/0     done       undone     undone     undone/0   undone
`,
	"blind create": `
                      | create     update     delete     mark       ~create    ~update    ~delete    ~mark
none                  | done       done       done/0     done       undone     undone     undone/0   undone
refused               | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
overloaded            | done       done       done/0     done       undone     undone     undone/0   undone
overloaded for good   | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
busy                  | done       done       done/0     done       undone     undone     undone/0   undone
busy for good         | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
request lost          | blind+/0   done+      done/0     done+      undone     undone+    blind~+/0  undone+
requests lost         | blind+/0   settled+   settled+/0 settled+   stuck?+    stuck?+    blind~+/0  stuck?+
reply lost            | done       done       done/0     done       undone     undone     undone/0   undone
replies lost          | done       done       done/0     done       undone     undone     undone/0   undone
late                  | done+      done+      done/0     done+      undone     undone+    undone+/0  undone+
late each time        | done+      done+      done/0     done+      undone     undone+    undone+/0  undone+
late, many looks      | done+      done+      settled+/0 done+      undone+    undone+    undone+/0  undone+
slow                  | done       done       done/0     done       undone     undone     undone/0   undone
too slow              | failed     failed     failed/0   failed     leaving~   pending    pending/0  pending
never ready           | failed     failed     -          failed     -          broken     broken     broken
done, said invalid    | done       done       done/0     done       undone     undone     undone/0   undone
done, said transient  | done       done       done/0     done       undone     undone     undone/0   undone
not there, said exists| refused    -          -          -          -          -          stuck/0    -
there, said absent    | -          done       done/0     done       undone     undone     -          undone
partial list          | done       done       done/0     done       undone     undone     undone/0   undone
no list               | refused    refused    refused/0  refused    unseen     unseen     unseen/0   unseen
stale list            | done       done       done/0     done       undone     undone     undone/0   undone
stale, reply lost     | done+      done+      done+/0    done+      undone+    undone+    undone+/0  undone+
lost server           | away+      away+      away+/0    away+      away~+     away~+     away~+/0   away~+
flapping              | done       done       done/0     done       undone     undone     undone/0   undone
flapping in step      | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
late, then undone     | -          -          -          -          undone+    undone+    undone/0   undone+
version moved         | -          done       done/0     done       undone     undone     -          undone
edited                | -          done       edited/0   done       kept~      undone     -          undone
edited early          | -          edited     edited/0   edited     kept~      mixed      -          mixed/0
vanished              | -          gone/2     done/0     gone       undone     lost       -          lost
foreign               | theirs/0   -          -          -          -          -          clash~/0   -
foreign, no reply     | clash+/0   -          -          -          -          -          clash~?    -
changed hands         | -          theirs     theirs     theirs/0   taken~     clash~     -          -
killed before         | blind+/0   done+      done/0     done+      undone     undone+    blind~+/0  undone+
killed after          | done       done       done/0     done       undone     undone     undone/0   undone
`,
	"blind delete": `
                      | create     update     delete     mark       ~create    ~update    ~delete    ~mark
none                  | done       done       done/0     done       undone     undone     undone/0   undone
refused               | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
overloaded            | done       done       done/0     done       undone     undone     undone/0   undone
overloaded for good   | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
busy                  | done       done       done/0     done       undone     undone     undone/0   undone
busy for good         | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
request lost          | done+      done       done+/0    done       undone+    undone     undone+/0  undone
requests lost         | settled+   settled+   settled+/0 settled+   stuck?+    stuck?+    stuck?+/0  stuck?+
reply lost            | done       done       done/0     done       undone     undone     undone/0   undone
replies lost          | done       done       done/0     done       undone     undone     undone/0   undone
late                  | done+      done       done+/0    done       undone+    undone     undone+/0  undone
late each time        | done+      done       done+/0    done       undone+    undone     undone+/0  undone
late, many looks      | done+      settled+   done+/0    settled+   undone+    undone+    undone+/0  undone+
slow                  | done       done       done/0     done       undone     undone     undone/0   undone
too slow              | failed     failed     leaving/0  failed     leaving~   pending    pending/0  pending
never ready           | failed     failed     -          failed     -          broken     broken     broken
done, said invalid    | done       done       done/0     done       undone     undone     undone/0   undone
done, said transient  | done       done       done/0     done       undone     undone     undone/0   undone
not there, said exists| refused    -          -          -          -          -          stuck/0    -
there, said absent    | -          done       done/0     done       undone     undone     -          undone
partial list          | done       done       done/0     done       undone     undone     undone/0   undone
no list               | unseen?+   refused    refused/0  refused    unseen     unseen     unseen~/0  unseen
stale list            | done       done       done/0     done       undone     undone     undone/0   undone
stale, reply lost     | done       done+      done+/0    done+      undone+    undone+    undone+/0  undone+
lost server           | away!+     away+      away+/0    away+      away~+     away~+     away~!+/0  away~+
flapping              | done       done       done/0     done       undone     undone     undone/0   undone
flapping in step      | refused    refused    refused/0  refused    stuck      stuck      stuck/0    stuck
late, then undone     | -          -          -          -          undone+    undone     undone+/0  undone
version moved         | -          done       done/0     done       undone     undone     -          undone
edited                | -          edited     done/0     edited     undone     mixed      -          mixed/0
edited early          | -          edited     edited/0   edited     kept~      mixed      -          mixed/0
vanished              | -          gone/2     done/0     gone       undone     lost       -          lost
foreign               | theirs/0   -          -          -          -          -          clash~     -
foreign, no reply     | clash+/0   -          -          -          -          -          clash~?    -
changed hands         | -          theirs     theirs     theirs/0   taken~     clash~     -          -
killed before         | done+      done       done+/0    done       undone+    undone     undone+/0  undone
killed after          | done       done       done/0     done       undone     undone     undone/0   undone
`,
	"unmarked": `
                      | create     update     delete     mark       ~create    ~update    ~delete    ~mark
none                  | done       done       done/0     -          undone     undone     undone/0   -
refused               | refused    refused    refused/0  -          stuck      stuck      stuck/0    -
overloaded            | done       done       done/0     -          undone     undone     undone/0   -
overloaded for good   | refused    refused    refused/0  -          stuck      stuck      stuck/0    -
busy                  | done       done       done/0     -          undone     undone     undone/0   -
busy for good         | refused    refused    refused/0  -          stuck      stuck      stuck/0    -
request lost          | done+      done       done/0     -          undone     undone     undone+/0  -
requests lost         | settled+   settled+   settled+/0 -          stuck?+    stuck?+    stuck?+/0  -
reply lost            | done       done       done/0     -          undone     undone     undone/0   -
replies lost          | done       done       done/0     -          undone     undone     undone/0   -
late                  | done+      done       done/0     -          undone     undone     undone+/0  -
late each time        | done+      done       done/0     -          undone     undone     undone+/0  -
late, many looks      | done+      settled+   settled+/0 -          undone+    undone+    undone+/0  -
slow                  | done       done       done/0     -          undone     undone     undone/0   -
too slow              | failed     failed     leaving/0  -          leaving~   pending    pending/0  -
never ready           | failed     failed     -          -          -          broken     broken     -
done, said invalid    | done       done       done/0     -          undone     undone     undone/0   -
done, said transient  | done       done       done/0     -          undone     undone     undone/0   -
not there, said exists| refused    -          -          -          -          -          stuck/0    -
there, said absent    | -          done       done/0     -          undone     undone     -          -
partial list          | done       done       done/0     -          undone     undone     undone/0   -
no list               | unseen?+   refused    refused/0  -          unseen     unseen     unseen~/0  -
stale list            | done       done       done/0     -          undone     undone     undone/0   -
stale, reply lost     | done       done+      done+/0    -          undone+    undone+    undone+/0  -
lost server           | away!+     away+      away+/0    -          away~+     away~+     away~!+/0  -
flapping              | done       done       done/0     -          undone     undone     undone/0   -
flapping in step      | refused    refused    refused/0  -          stuck      stuck      stuck/0    -
late, then undone     | -          -          -          -          undone+    undone     undone/0   -
version moved         | -          done       done/0     -          undone     undone     -          -
edited                | -          edited     edited/0   -          kept~      mixed      -          -
edited early          | -          edited     edited/0   -          kept~      mixed      -          -
vanished              | -          gone/2     done/0     -          undone     lost       -          -
foreign               | theirs/0   -          -          -          -          -          clash~     -
foreign, no reply     | clash+/0   -          -          -          -          -          clash~?    -
killed before         | done+      done       done/0     -          undone     undone     undone+/0  -
killed after          | done       done       done/0     -          undone     undone     undone/0   -
`,
}

// gridRows reads a table: the ends of every fault, by method.
func gridRows(t *testing.T, profile string) map[string]map[string]string {
	t.Helper()
	lines := strings.Split(strings.Trim(gridTable[profile], "\n"), "\n")
	rows := map[string]map[string]string{}
	_, head, _ := strings.Cut(lines[0], "|")
	for _, line := range lines[1:] {
		name, cells, _ := strings.Cut(line, "|")
		ends := strings.Fields(cells)
		if len(ends) != len(gridMethods) {
			t.Fatalf("the row %q of %s has %d ends", line, profile, len(ends))
		}
		row := map[string]string{}
		for i, method := range strings.Fields(head) {
			row[method] = ends[i]
		}
		rows[strings.TrimSpace(name)] = row
	}
	return rows
}

// gridEndOf returns the end that a cell of a table means.
func gridEndOf(t *testing.T, name string) gridEnd {
	t.Helper()
	name, number, numbered := strings.Cut(name, "/")
	e, ok := gridEnds[name]
	if !ok {
		t.Fatalf("there is no end %q", name)
	}
	if numbered {
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatal(err)
		}
		e.incarnation = n
	}
	return e
}
