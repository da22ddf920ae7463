package state

import (
	"cmp"
	"fmt"
	"time"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/signed"
)

// A Head is one revision of a site's document.
type Head struct {
	Serial   int64     `json:"serial"` // rises by at least one with each revision
	Digest   string    `json:"digest"` // hex SHA-256 of the JSON
	Size     int       `json:"size"`   // bytes of JSON
	Chunks   []string  `json:"chunks"` // digests of the blobs that make up the JSON
	By       string    `json:"by"`     // who wrote it: USER@HOST, or inbox
	At       time.Time `json:"at"`
	Revision int64     `json:"-"` // of the store, for compare-and-swap

	Signature *signed.Signature `json:"signature,omitempty"` // over the JSON; checked when the document is read
}

// A Record is what converge remembers about a resource that it made or adopted.
type Record struct {
	Ref         schema.Ref      `json:"ref"`
	ID          string          `json:"id"`             // external id; set for a gone resource only when it was left to others, marked as ours
	UID         string          `json:"uid,omitempty"`  // what tells the thing from another that is made under the same id; empty: unknown
	Name        string          `json:"name,omitempty"` // its name on the far side, where that differs from its name here: it was taken over by its id
	Incarnation int             `json:"incarnation"`    // grows with each creation
	Gone        bool            `json:"gone,omitempty"` // deleted, or left to others; kept because its ids cannot be used again
	Spec        schema.Object   `json:"spec"`           // as last applied; secrets as keyed digests
	Rest        schema.Object   `json:"rest,omitzero"`  // what else was observed when converge left it, with external ids; nil: unknown
	Left        *Left           `json:"left,omitempty"` // by a run that did not finish it; nil: it was left as Spec and Rest say
	After       []schema.Ref    `json:"after,omitempty"`
	Protect     bool            `json:"protect,omitempty"`
	OnRemove    schema.OnRemove `json:"on_remove,omitempty"`
	Ignore      []string        `json:"ignore,omitempty"` // paths of the spec that are never compared, sorted
	Run         string          `json:"run"`              // the run that last changed it; empty while it is known only by its mark, after a rebuild
	At          time.Time       `json:"at"`
}

// ByRef compares records by their refs, which is the order of everything that returns several.
func ByRef(a, b Record) int { return a.Ref.Compare(b.Ref) }

// Called returns the name of the thing of a record on the far side.
func (r *Record) Called() string { return cmp.Or(r.Name, r.Ref.Name) }

// Live returns the number of records of what exists.
func Live(records []Record) (n int) {
	for i := range records {
		if !records[i].Gone {
			n++
		}
	}
	return n
}

// Move changes the record to another resource of its scope and kind; the thing keeps its name.
func (r *Record) Move(to schema.Ref) {
	called := r.Called()
	if r.Ref, r.Name = to, called; called == to.Name {
		r.Name = ""
	}
}

// Left is how a run that ended partial last observed a resource that it had begun to change or to restore, possibly neither
// in its old state nor in its desired one.
type Left struct {
	Gone   bool          `json:"gone,omitempty"`   // it did not exist, or was being deleted
	Failed bool          `json:"failed,omitempty"` // the far side reported it as failed
	Spec   schema.Object `json:"spec,omitempty"`   // everything that was observed, as in Rest
}

// RunStatus is the status of a run.
type RunStatus string

// The statuses of a run. By itself a run ends applied, reverted or partial; rolled back is on request only.
const (
	RunOpen       RunStatus = "open"        // in progress, or interrupted: resume settles it
	RunApplied    RunStatus = "applied"     // every step is done and observed
	RunReverted   RunStatus = "reverted"    // undone, and observed to be as before
	RunRolledBack RunStatus = "rolled-back" // its first steps kept, the others undone and observed to be as before
	RunPartial    RunStatus = "partial"     // none of these; the differences are listed and a hold is set
)

// A Run is one application of a plan.
type Run struct {
	ID      string     `json:"id"` // of NewRunID
	Op      string     `json:"op"` // apply, destroy, rollback
	Status  RunStatus  `json:"status"`
	Plan    string     `json:"plan"`   // digest
	Body    []string   `json:"body"`   // digests of the blobs that make up the plan
	Serial  int64      `json:"serial"` // of the document
	By      string     `json:"by"`
	Epoch   int64      `json:"epoch"`
	Started time.Time  `json:"started"`
	Ended   *time.Time `json:"ended,omitempty"`
	Steps   int        `json:"steps"`
	Done    int        `json:"done"`
	Kept    int        `json:"kept,omitempty"` // for a run that is rolled back: how many of its first steps were not undone
	Message string     `json:"message,omitempty"`
	Failed  schema.Ref `json:"failed,omitzero"`
	OnFail  string     `json:"on_failure,omitempty"`

	ApprovedBy []string `json:"approved_by,omitempty"` // who approved the plan that the site agent applies, each USER@HOST

	Confirm     int  `json:"confirm_seconds,omitempty"` // how long after its start it is undone unless somebody confirms it; zero: it needs no confirmation
	Unconfirmed bool `json:"unconfirmed,omitempty"`     // nobody confirmed it in time, or a guard undid a change that cut its node off

	Cancelled int64 `json:"cancelled,omitempty"` // epoch of the process that was asked from elsewhere to end the run, and did

	// Complete means that once the run is applied, the whole site, not only a part of it, is as the document with this serial
	// says.
	Complete bool         `json:"complete,omitempty"`
	Remains  []schema.Ref `json:"remains,omitempty"` // created, can never be deleted, and forgotten by the revert
	Partial  []string     `json:"differences,omitempty"`
}

// Stands returns the status of the run in words.
func (r *Run) Stands() string {
	if r.Status == RunRolledBack {
		return fmt.Sprintf("rolled back to step %d", r.Kept)
	}
	return string(r.Status)
}

// LockInfo describes the holder of the site lock.
type LockInfo struct {
	ID        string    `json:"id"`
	Operation string    `json:"operation"`
	Who       string    `json:"who"` // USER@HOST
	PID       int       `json:"pid"`
	Version   string    `json:"version"`
	Created   time.Time `json:"created"`
	Info      string    `json:"info,omitempty"` // what it is doing
	Run       string    `json:"run,omitempty"`
	Epoch     int64     `json:"epoch"`
}
