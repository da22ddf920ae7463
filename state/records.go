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

	Signature *signed.Signature `json:"signature,omitempty"` // over the JSON; whoever reads the document checks it
}

// A Record is what converge remembers about a resource that it made or adopted.
type Record struct {
	Ref         schema.Ref      `json:"ref"`
	ID          string          `json:"id"`             // external id; of what is gone only when it was left to others, marked as ours
	Name        string          `json:"name,omitempty"` // what it is called over there, where that is not its name here: it was taken over by its id
	Incarnation int             `json:"incarnation"`    // grows with each creation
	Gone        bool            `json:"gone,omitempty"` // deleted, or left to others; kept because its ids cannot be used again
	Spec        schema.Object   `json:"spec"`           // as last applied; secrets as keyed digests
	Rest        schema.Object   `json:"rest,omitzero"`  // what else was seen when converge left it, with external ids; nil: not known
	Left        *Left           `json:"left,omitempty"` // by a run that did not finish with it; nil: it was left as Spec and Rest say
	After       []schema.Ref    `json:"after,omitempty"`
	Protect     bool            `json:"protect,omitempty"`
	OnRemove    schema.OnRemove `json:"on_remove,omitempty"`
	Ignore      []string        `json:"ignore,omitempty"` // paths of the spec that are never compared, sorted
	Run         string          `json:"run"`              // that last changed it; empty while it is known only by its mark, since a rebuild
	At          time.Time       `json:"at"`
}

// Called is what the thing of a record is called over there.
func (r *Record) Called() string { return cmp.Or(r.Name, r.Ref.Name) }

// Live counts the records of what is there.
func Live(records []Record) (n int) {
	for i := range records {
		if !records[i].Gone {
			n++
		}
	}
	return n
}

// Move gives the record another resource of its scope and kind; the thing is called what it was.
func (r *Record) Move(to schema.Ref) {
	called := r.Called()
	if r.Ref, r.Name = to, called; called == to.Name {
		r.Name = ""
	}
}

// Left is how a run that ended partial last saw a resource that it had begun to change, or to put back: neither as it was nor
// as it was to be, perhaps.
type Left struct {
	Gone   bool          `json:"gone,omitempty"`   // it was not there, or on its way out
	Failed bool          `json:"failed,omitempty"` // the far side said that it had failed
	Spec   schema.Object `json:"spec,omitempty"`   // all that was seen, as in Rest
}

// RunStatus is how a run stands.
type RunStatus string

// The ways in which a run stands. By itself it ends applied, reverted or partial; rolled back is what somebody asked for.
const (
	RunOpen       RunStatus = "open"        // going on, or interrupted: resume settles it
	RunApplied    RunStatus = "applied"     // every step done and seen
	RunReverted   RunStatus = "reverted"    // undone, and seen to be as before
	RunRolledBack RunStatus = "rolled-back" // its first steps kept, the others undone and seen to be as before
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
	Kept    int        `json:"kept,omitempty"` // of one that is rolled back: how many of its first steps were not undone
	Message string     `json:"message,omitempty"`
	Failed  schema.Ref `json:"failed,omitzero"`
	OnFail  string     `json:"on_failure,omitempty"`

	// Complete says that the site is what the document with its serial says when the run is applied, and not only a part of it.
	Complete bool         `json:"complete,omitempty"`
	Remains  []schema.Ref `json:"remains,omitempty"` // created, never to be deleted, and forgotten by the revert
	Partial  []string     `json:"differences,omitempty"`
}

// Stands says in words how the run stands.
func (r *Run) Stands() string {
	if r.Status == RunRolledBack {
		return fmt.Sprintf("rolled back to step %d", r.Kept)
	}
	return string(r.Status)
}

// LockInfo says who holds the site lock.
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
