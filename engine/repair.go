package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A Repair is one damaged value of the store and what is done about it.
type Repair struct {
	Key    string `json:"key"`
	Damage string `json:"damage"`
	Done   string `json:"done"`           // what is done about it, in words
	Left   bool   `json:"left,omitempty"` // nothing is done: it needs a decision

	Do []remedy.Action `json:"do,omitempty"` // what else can be done, as Done says

	ops []state.Op // what repairs it; none when it is left
}

// RepairOptions say what Repair may do.
type RepairOptions struct {
	DryRun  bool // only report what would be done
	Abandon bool // also forget runs that did not end; the site is then held
	Reason  string
}

// Repair repairs what is damaged in the store, as far as the rest of the store allows: the head of the document becomes its
// newest intact revision; a record becomes what the newest run that touched the resource made of it. An ended run is forgotten,
// and so is what is created anew by itself. Where only a backup or another command helps, it reports that. The site itself is
// neither observed nor changed.
func (e *Engine) Repair(ctx context.Context, o RepairOptions) (repairs []Repair, err error) {
	if o.DryRun {
		return e.repairs(ctx, o)
	}
	_, err = e.locked(ctx, "state repair", func(ctx context.Context, lock *state.Lock) (res Result, err error) {
		if repairs, err = e.repairs(ctx, o); err != nil {
			return res, err
		}
		for _, r := range repairs {
			if len(r.ops) == 0 {
				continue
			}
			entry := state.Audit{At: e.o.Now().UTC(), By: e.o.Who, Action: "repair", Scope: r.Key, Reason: o.Reason}
			note := e.o.Store.AmendedOp(state.Amended{Epoch: lock.Epoch(), Action: entry.Action, By: entry.By, At: entry.At})
			rest := slices.DeleteFunc(r.ops, func(op state.Op) bool { return op.Key == note.Key }) // a damaged note is replaced
			if _, err := lock.Commit(ctx, nil, append(rest, e.o.Store.AuditOp(entry), note)); err != nil {
				return res, fmt.Errorf("repair %s: %w", r.Key, err)
			}
		}
		return res, nil
	})
	return repairs, err
}

// repairs decides what to do about each damaged value, and does nothing.
func (e *Engine) repairs(ctx context.Context, o RepairOptions) (repairs []Repair, err error) {
	damages, err := e.o.Store.Damaged(ctx)
	if err != nil {
		return nil, err
	}
	runs, err := e.o.Store.WholeRuns(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range damages {
		r := Repair{Key: d.Err.Key, Damage: d.Err.Why}
		switch {
		case d.Head:
			h, err := e.o.Store.LastWhole(ctx)
			switch {
			case err == nil:
				r.Done, r.ops = fmt.Sprintf("serial %d is the newest revision of the document again", h.Serial), []state.Op{e.o.Store.HeadOp(&h)}
			case errors.Is(err, state.ErrNotFound):
				r.Done, r.ops = "no revision of the document is intact: the site has none until one is stored", []state.Op{e.o.Store.HeadOp(nil)}
			default:
				return nil, err
			}
		case d.Run != "":
			r = e.repairRun(ctx, d.Run, r, o)
		case !d.Ref.IsZero():
			rec, run := e.rewrite(ctx, d.Ref, runs)
			switch {
			case rec != nil:
				r.Done, r.ops = fmt.Sprintf("recorded again as run %s left it", run), []state.Op{e.o.Store.RecordOp(*rec)}
			default:
				r.Done, r.ops = "no longer recorded, because no kept run touched it; a rebuild records again what carries this site's mark", []state.Op{e.o.Store.ForgetOp(d.Ref)}
				r.Do = []remedy.Action{{Verb: remedy.Rebuild}}
			}
		case d.Part != "":
			r = e.repairPart(d, r, runs)
		default:
			r.Done, r.ops = "removed: a kept revision of the document", []state.Op{e.o.Store.DropRevisionOp(d.Revision)}
		}
		repairs = append(repairs, r)
	}
	for _, run := range runs {
		if run.Status != state.RunOpen && run.Status != state.RunPartial {
			continue
		}
		_, _, err := planOf(ctx, e.o.Store, run)
		if err == nil {
			_, err = journal.Read(ctx, e.o.Store, run.ID)
		}
		if !errors.As(err, new(*state.DamagedError)) && !errors.As(err, new(*journal.DamagedError)) && !errors.Is(err, plan.ErrFormat) {
			continue // intact; a store that does not answer fails in what follows
		}
		repairs = append(repairs, e.repairRun(ctx, run.ID, Repair{Key: e.o.Store.Path() + "/run/" + run.ID, Damage: err.Error()}, o))
	}
	return repairs, nil
}

// repairPart decides about values other than documents, runs and records.
func (e *Engine) repairPart(d state.Damage, r Repair, runs []state.Run) Repair {
	left := func(why string, do ...remedy.Action) Repair {
		r.Left, r.Done, r.Do, r.ops = true, "left unchanged: "+why, do, nil
		return r
	}
	r.ops = []state.Op{{Key: d.Err.Key, Delete: true}}
	switch d.Part {
	case state.PartLock:
		return left("it is the site lock. Release it only if no process is working on the site", remedy.Of(remedy.ForceUnlock, state.DamagedLock))
	case state.PartEpoch:
		return left("restore a backup. Without one, confirm the loss", remedy.Action{Verb: remedy.Restored})
	case state.PartSecret:
		return left("the digests of secrets and the saved plans depend on it. Restore a backup")
	case state.PartInventory:
		return left("its revisions must not decrease. Restore a backup, or remove the key when all inventory readers start over")
	case state.PartNode:
		r.Done = "removed: what the site knows about the node, which has to enrol again with a new token"
	case state.PartKeeper:
		r.Done = "removed: which process keeps the site; another one does from now on"
	case state.PartWaiting:
		r.Done = "removed: the plan that waits for approval; the site agent stores it again"
	case state.PartApproval:
		r.Done = "removed: what somebody had approved; it has to be approved again"
	case state.PartOutbox:
		r.Done = "removed: an event for the cloud, which reads the state itself, or a note of what it was told, which it may be told again"
	case state.PartServer:
		r.Done = "removed: the next apply records the server that answers then, so make sure that it is the right one"
	case state.PartAmended:
		r.Done = "removed: the note that the records were changed; a new one is written"
	case state.PartRebuilt:
		r.Done = "removed: the time at which the records were rebuilt"
	case state.PartAudit:
		r.Done = "removed: an entry of the audit log"
	case state.PartInbox:
		r.Done = "removed: the last inbox result"
	case state.PartRequest:
		r.Done = "removed: a request to cancel or confirm a run; make it again"
	case state.PartSpent:
		digest := d.Err.Key[strings.LastIndex(d.Err.Key, "/")+1:]
		run := "(no longer kept)"
		if at := slices.IndexFunc(runs, func(run state.Run) bool { return run.Plan == digest }); at >= 0 {
			run = runs[at].ID
		}
		r.Done = "the plan stays marked as applied, by run " + run
		r.ops = []state.Op{e.o.Store.SpentOp(digest, run)}
	}
	return r
}

// repairRun decides about a run whose record, plan or journal cannot be read, so that it can be neither resumed nor
// undone.
func (e *Engine) repairRun(ctx context.Context, id string, r Repair, o RepairOptions) Repair {
	log, err := journal.Read(ctx, e.o.Store, id)
	settled := false
	if err == nil && len(log.Records) > 0 {
		last := log.Records[len(log.Records)-1]
		settled = last.Kind == journal.End && last.Message != string(state.RunPartial)
	}
	r.ops = e.o.Store.DropRunOps(id)
	switch {
	case settled:
		r.Done = "removed with its journal, which says that the run ended"
	case o.Abandon:
		r.Done = "abandoned with its journal; the site is on hold until the drift has been reviewed"
		r.Do = []remedy.Action{{Verb: remedy.Drift}}
		r.ops = append(r.ops, e.o.Store.HoldOp(state.Hold{
			Scope: schema.ScopeSite, By: e.o.Who, At: e.o.Now().UTC(),
			Reason: fmt.Sprintf("run %s did not finish and was abandoned because it could not be read: review the drift first", id),
		}))
	default:
		r.Left, r.ops = true, nil
		r.Done = "left unchanged: the journal does not say that the run finished, and it cannot be resumed. Restore a backup, or abandon the run"
		r.Do = []remedy.Action{{Verb: remedy.Abandon}}
	}
	return r
}

// rewrite returns the record that the newest run which touched a resource made of it, and that run; nil when no kept run did.
func (e *Engine) rewrite(ctx context.Context, ref schema.Ref, runs []state.Run) (*state.Record, string) {
	for _, run := range runs {
		p, body, err := planOf(ctx, e.o.Store, run)
		if err != nil {
			continue
		}
		_, sum, err := e.journalOf(ctx, run, p, body)
		if err != nil {
			continue
		}
		var prior *state.Record
		for i := range slices.Backward(p.Steps) {
			s, did, undo := &p.Steps[i], sum.Forward[i], sum.Undo[i]
			if s.Ref != ref || s.Stray {
				continue
			}
			prior = s.Prior
			if !did.Effect() || undo.Finished() {
				if undo.Finished() && s.Action == plan.Create && s.Prior == nil { // its id is used up
					return &state.Record{Ref: ref, Incarnation: s.Incarnation, Gone: true, Run: run.ID, At: run.Started}, run.ID
				}
				continue
			}
			if s.Record == nil {
				return nil, ""
			}
			rec := *s.Record
			rec.UID = "" // it may have been made again since; nothing shows it
			if at := did.Outcome; !rec.Gone && at != nil && at.ExternalID != "" {
				rec.ID, rec.Incarnation = at.ExternalID, at.Incarnation
			}
			rec.Run, rec.At = run.ID, run.Started
			return &rec, run.ID
		}
		if prior != nil {
			again := *prior
			again.UID = ""
			return &again, run.ID
		}
	}
	return nil, ""
}
