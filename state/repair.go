package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"converge.dev/converge/schema"
)

// A Damage is a value that cannot be read, and keeps others from being used. Exactly one of the other fields says what it
// was.
type Damage struct {
	Err      *DamagedError
	Head     bool       // the head of the document
	Revision int64      // a revision of the document: its serial
	Run      string     // a run
	Ref      schema.Ref // the record of a resource
	Part     Part       // anything else
}

// A Part is something that converge stores besides documents, runs and records: the first word of its keys below those
// of the site.
type Part string

// The parts.
const (
	PartServer    Part = "server"     // the identity of a far side
	PartSpent     Part = "spent"      // that a plan was applied
	PartAudit     Part = "audit"      // an entry of the audit log
	PartAmended   Part = "amended"    // that the records were changed beside all runs
	PartRebuilt   Part = "rebuilt"    // that the records were rebuilt
	PartInbox     Part = "inbox"      // the last answer to a document in the inbox
	PartRequest   Part = "request"    // a request to the holder of the lock
	PartLock      Part = "leader"     // the lock
	PartEpoch     Part = "epoch"      // the number of its holder
	PartSecret    Part = "secret-key" // the key of digests and plan files
	PartInventory Part = "inventory"  // what was last observed of everything
	PartNode      Part = "node"       // what the site knows about a node's identity
	PartKeeper    Part = "keeper"     // the process that keeps the site by itself
	PartWaiting   Part = "waiting"    // the plan that waits for people
	PartApproval  Part = "approval"   // what somebody has approved
	PartOutbox    Part = "outbox"     // an event for the cloud, or how far they are delivered
)

// Damaged returns every value that keeps a command from being carried out because it cannot be read, except within journals
// and the bodies of plans. What a newer version of converge wrote is not damaged; a hold or a freeze that
// cannot be read is obeyed.
func (s *Store) Damaged(ctx context.Context) ([]Damage, error) {
	var all []Damage
	find := func(err error, d Damage) {
		if errors.As(err, &d.Err) {
			all = append(all, d)
		}
	}
	head, err := s.kv.Get(ctx, s.key("document/head"))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.key("document/head"), err)
	}
	if head.Modified != 0 {
		err := decode(head, new(Head))
		if err == nil {
			_, _, err = s.Document(ctx, 0)
		}
		find(err, Damage{Head: true})
	}
	for _, p := range []struct {
		prefix string
		look   func(it Item, name string)
	}{
		{s.key("document/log") + "/", func(it Item, name string) {
			serial, _ := strconv.ParseInt(name, 10, 64)
			find(decode(it, new(Head)), Damage{Revision: serial})
		}},
		{s.key("run") + "/", func(it Item, name string) { find(decode(it, new(Run)), Damage{Run: name}) }},
		{s.key("resource") + "/", func(it Item, name string) {
			var r Record
			ref, err := schema.ParseRef(name)
			if err != nil {
				return
			}
			if err = newRecordReader().read(it, &r); err == nil && r.Ref != ref {
				err = &DamagedError{it.Key, "it contains the record of " + r.Ref.String()}
			}
			find(err, Damage{Ref: ref})
		}},
	} {
		items, err := s.kv.List(ctx, p.prefix)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", p.prefix, err)
		}
		for _, it := range items {
			p.look(it, strings.TrimPrefix(it.Key, p.prefix))
		}
	}
	for _, p := range []struct {
		part   Part
		prefix string
		into   any
	}{
		{PartServer, "server/", new(Server)},
		{PartSpent, "spent/", new(spent)},
		{PartAudit, "audit/", new(Audit)},
		{PartAmended, "amended", new(Amended)},
		{PartRebuilt, "rebuilt", new(Rebuilt)},
		{PartInbox, "inbox/result", new(InboxResult)},
		{PartRequest, "cancel", new(Request)},
		{PartRequest, "confirm", new(Request)},
		{PartLock, "leader", new(LockInfo)},
		{PartEpoch, "epoch", new(epoch)},
		{PartSecret, "secret-key", new(secretKey)},
		{PartInventory, "inventory/head", new(inventoryHead)},
		{PartInventory, "inventory/at/", new(inventoryPlace)},
		{PartNode, "node/", new(Node)},
		{PartKeeper, "keeper", new(KeeperInfo)},
		{PartWaiting, "waiting/head", new(Waiting)},
		{PartApproval, "approval/", new(Approval)},
		{PartOutbox, "outbox/event/", new(Outgoing)},
		{PartOutbox, "outbox/sent", new(Delivery)},
		{PartOutbox, "outbox/told/", new(Told)},
	} {
		items, err := s.kv.List(ctx, s.key(p.prefix))
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", s.key(p.prefix), err)
		}
		for _, it := range items {
			find(decode(it, p.into), Damage{Part: p.part})
		}
	}
	return all, nil
}

// WholeRuns reads the runs that can be read, newest first, as [Store.Runs] does.
func (s *Store) WholeRuns(ctx context.Context) ([]Run, error) {
	items, err := s.kv.List(ctx, s.key("run")+"/")
	if err != nil {
		return nil, fmt.Errorf("list the runs: %w", err)
	}
	slices.SortStableFunc(items, func(a, b Item) int { return cmp.Compare(a.Created, b.Created) })
	var runs []Run
	for _, it := range slices.Backward(items) {
		var r Run
		if decode(it, &r) == nil {
			runs = append(runs, r)
		}
	}
	return runs, nil
}

// LastWhole returns the head of the newest revision of the document that can be read completely; ErrNotFound when there is none.
func (s *Store) LastWhole(ctx context.Context) (Head, error) {
	items, err := s.kv.List(ctx, s.key("document/log")+"/")
	if err != nil {
		return Head{}, fmt.Errorf("list the revisions of the document: %w", err)
	}
	for _, it := range slices.Backward(items) {
		var h Head
		if decode(it, &h) != nil {
			continue
		}
		if _, _, err := s.Document(ctx, h.Serial); err == nil {
			return h, nil
		} else if ctx.Err() != nil {
			return Head{}, err
		}
	}
	return Head{}, fmt.Errorf("an intact revision of the document: %w", ErrNotFound)
}

// HeadOp makes a revision of the document the newest; nil: the site then has none.
func (s *Store) HeadOp(h *Head) Op {
	if h == nil {
		return Op{Key: s.key("document/head"), Delete: true}
	}
	return s.put(s.key("document/head"), *h)
}

// DropRevisionOp forgets one revision of the document.
func (s *Store) DropRevisionOp(serial int64) Op { return Op{Key: s.logKey(serial), Delete: true} }

// AuditOp adds an entry to the audit log.
func (s *Store) AuditOp(a Audit) Op { return s.put(s.key("audit", NewRunID(a.At)), a) }

// A Rebuilt records that records were made anew from what bears the mark of a site, because the store was lost. It holds
// when, and the site, for as long as no document states that.
type Rebuilt struct {
	Site schema.Site `json:"site"`
	At   time.Time   `json:"at"`
}

// RebuiltOp records a rebuild, in place of an earlier one.
func (s *Store) RebuiltOp(r Rebuilt) Op { return s.put(s.key("rebuilt"), r) }

// Rebuilt reads the last rebuild; ErrNotFound when there was none.
func (s *Store) Rebuilt(ctx context.Context) (Rebuilt, error) {
	r, _, err := read[Rebuilt](ctx, s, s.key("rebuilt"))
	return r, err
}

// DamagedLock is the id by which a lock that cannot be read is broken.
const DamagedLock = "damaged"

// brokenBy checks that the lock that was read has the given id.
func brokenBy(id string, holder LockInfo, err error) error {
	switch {
	case errors.As(err, new(*DamagedError)) && id == DamagedLock:
		return nil
	case err != nil:
		return err
	case holder.ID != id:
		return fmt.Errorf("%w: the lock is held with id %s", ErrGuard, holder.ID)
	}
	return nil
}

// Amended describes the last change of the records beside all runs: how, by whom, and under which epoch of the lock.
type Amended struct {
	Epoch  int64     `json:"epoch"`
	Action string    `json:"action"` // state mv, state rm, ...
	By     string    `json:"by"`
	At     time.Time `json:"at"`

	Revision int64 `json:"-"` // of the store
}

// AmendedOp notes a change of the records, replacing an earlier note. It belongs in the transaction that makes the change.
func (s *Store) AmendedOp(a Amended) Op { return s.put(s.key("amended"), a) }

// Amended returns the last such note, or its zero value when there is none.
func (s *Store) Amended(ctx context.Context) (Amended, error) {
	a, it, err := read[Amended](ctx, s, s.key("amended"))
	a.Revision = it.Modified
	if errors.Is(err, ErrNotFound) {
		return Amended{}, nil
	}
	return a, err
}
