package state

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Verdict is the site's decision about the document in its inbox.
type Verdict string

// The verdicts.
const (
	Pending  Verdict = "pending"  // it would be accepted; so far it was only planned, and is still in the inbox
	Accepted Verdict = "accepted" // it is a revision of the site's document, and no longer in the inbox
	Refused  Verdict = "refused"  // it is still in the inbox
)

// An InboxResult reports to the cloud what became of the document that it left in the inbox. It is about one write of that
// key: a document that was overwritten before it was read gets no answer.
type InboxResult struct {
	Revision int64          `json:"revision"` // of the store at which the document was left: what etcdctl put -w json prints
	Digest   string         `json:"digest"`   // hex SHA-256 of the bytes in the inbox
	Verdict  Verdict        `json:"verdict"`
	Serial   int64          `json:"serial,omitempty"`   // of the document in the site's history; pending: the one that it would have
	Signer   string         `json:"signer,omitempty"`   // whose trusted signature it has
	Problems []InboxProblem `json:"problems,omitempty"` // why it was refused, and warnings
	More     int            `json:"more_problems,omitempty"`
	Command  string         `json:"command"` // the command that read it: plan, apply
	By       string         `json:"by"`      // USER@HOST
	At       time.Time      `json:"at"`

	Applied *InboxApplied `json:"applied,omitempty"` // what happened after it was accepted; absent while nothing has
}

// An InboxProblem is one problem of a document. It quotes no line of it.
type InboxProblem struct {
	Severity string `json:"severity"` // error, warning
	Code     string `json:"code,omitempty"`
	Summary  string `json:"summary"`
	Detail   string `json:"detail,omitempty"`
	Path     string `json:"path,omitempty"` // place in the document
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
}

// InboxApplied is the state of the last run for an accepted document or, while there was none, why none began.
type InboxApplied struct {
	Status  string    `json:"status"`        // as of a [Run]; or refused, when none began
	Run     string    `json:"run,omitempty"` // empty: there was nothing to do, or none began
	Problem string    `json:"problem,omitempty"`
	At      time.Time `json:"at"`
}

// Inbox reads the document that a cloud left with its own client, and the revision for [Store.Answer], which is 0 when
// there is none. The bytes are unchecked, and may be empty.
func (s *Store) Inbox(ctx context.Context) (body []byte, revision int64, err error) {
	it, err := s.kv.Get(ctx, s.key("inbox"))
	if err != nil {
		return nil, 0, fmt.Errorf("read the inbox: %w", err)
	}
	return it.Value, it.Modified, nil
}

// Answer writes what became of the document in the inbox, and empties the inbox when it was accepted, in one transaction. A
// newer document that is there by now stays; the accepted one is still answered, unless the newer one was answered already. It
// fails with ErrGuard when nothing was written.
func (s *Store) Answer(ctx context.Context, r InboxResult) error {
	key, result := s.key("inbox"), s.key("inbox/result")
	guards, ops := []Guard{{Key: key, Revision: r.Revision}}, []Op{s.put(result, r)}
	if r.Verdict == Accepted {
		ops = append(ops, Op{Key: key, Delete: true})
	}
	_, err := s.kv.Commit(ctx, guards, ops)
	if errors.Is(err, ErrGuard) && r.Verdict == Accepted {
		last, it, rerr := read[InboxResult](ctx, s, result)
		switch {
		case rerr != nil && !errors.Is(rerr, ErrNotFound):
			err = rerr
		case last.Revision < r.Revision || last.Revision == r.Revision && last.Verdict != Accepted:
			_, err = s.kv.Commit(ctx, []Guard{{Key: result, Revision: it.Modified}}, ops[:1])
		}
	}
	if err != nil {
		return fmt.Errorf("answer the document in the inbox: %w", err)
	}
	return nil
}

// Answered reads the last answer; ErrNotFound when there is none.
func (s *Store) Answered(ctx context.Context) (InboxResult, error) {
	r, _, err := read[InboxResult](ctx, s, s.key("inbox/result"))
	return r, err
}

// AnswerApplied adds to the last answer what became of the document, if it was accepted with this serial. The reason why
// no run began never replaces the result of a run. Otherwise, and when another answer was written meanwhile, it changes nothing.
func (s *Store) AnswerApplied(ctx context.Context, serial int64, a InboxApplied) error {
	key := s.key("inbox/result")
	r, it, err := read[InboxResult](ctx, s, key)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if r.Verdict != Accepted || r.Serial != serial || a.Run == "" && r.Applied != nil && r.Applied.Run != "" {
		return nil
	}
	r.Applied = &a
	_, err = s.kv.Commit(ctx, []Guard{{Key: key, Revision: it.Modified}}, []Op{s.put(key, r)})
	if err != nil && !errors.Is(err, ErrGuard) {
		return fmt.Errorf("record the result of serial %d: %w", serial, err)
	}
	return nil
}
