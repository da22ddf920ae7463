// Package state is the contract with memory: what converge remembers about a site between two commands.
//
// A store has two layers. [KV] is the minimum that a backend must do: ordered keys, guarded transactions, leases. It is
// implemented by state/mem (a map) and state/etcd (remote, or embedded in the process). [Store] is everything else,
// derived once in this package: documents with their history, recorded resources, runs, content-addressed blobs, and
// the exclusive site lock whose epoch fences every write.
//
// Keys, below /converge/SITE/:
//
//	inbox                      a JSON document that a cloud wrote with its own client, plain or in an envelope of package signed
//	inbox/result               what became of it: accepted or refused, and why; then how the run ended that was for it
//	document/head              the newest revision; compare-and-swap
//	document/log/SERIAL        at least the last 100 revisions
//	document/chunk/DIGEST      zstd chunks of at most 512 KiB, named by the SHA-256 of their plain text, shared by revisions
//	document/swept             raised whenever chunks are removed, so that nobody counts on one that is going away
//	blob/DIGEST                the same for everything else: plans, images from before a step
//	resource/SCOPE/KIND/NAME   recorded resources
//	run/ID                     runs
//	spent/DIGEST               plans that were applied
//	journal/RUN/SEQ            records of package engine/journal
//	journal/RUN/head           how far they go
//	leader, epoch              the lock
//	hold/SCOPE, freeze         stops set by hand (obeyed before each effect)
//	hold/run:SCOPE             stops set by the end of a run
//	cancel                     asks the holder of the lock to end its run
//	audit/TIME-ID              who forced what, and why
//	amended, rebuilt           that what is recorded was changed beside all runs, or recorded anew
//	keeper                     the process that keeps the site by itself
//	node/NAME                  what the site knows about a node's identity: its token, its newest certificate, a ban
//	drift/latest, status       what the cloud reads back
//	outbox/event/ID            events for the cloud that wait until they are delivered
//	outbox/sent                how far they are, outbox/told/WHAT what the cloud was told
//	inventory/at/SCOPE/KIND    what was seen last of everything, with revisions
//	inventory/chunk/SCOPE/KIND/DIGEST
//	inventory/head             the newest revision
//	secret-key                 under which the values of secrets are digested, and from which the key of plan files is derived
//
// Every value that converge writes there for itself is a JSON object with its version in the field v and a checksum over
// its key and the rest; a value that is damaged, or newer than this program knows, is refused by name, never misread. (The
// records of a journal are chained instead.)
//
// Nothing large is stored under one key, and nothing is rewritten as a whole. A transaction has at most 128 operations
// and 1.5 MiB.
package state

import (
	"context"
	"errors"
	"iter"
	"time"
)

// Errors of a store.
var (
	// ErrGuard reports that a guard of a transaction did not hold; nothing was written.
	ErrGuard = errors.New("the stored state has changed")
	// ErrUnknown reports that it is unknown whether a transaction was written. Read before you try again.
	ErrUnknown = errors.New("it is unknown whether the state was written")
	// ErrFenced reports that the lock is no longer held; nothing was written and nothing more may be done.
	ErrFenced = errors.New("the site lock is no longer held")
	// ErrNotFound reports that the named thing is not in the store.
	ErrNotFound = errors.New("not in the store")
	// ErrInvalid reports that a transaction breaks a limit or a rule that holds for every backend; nothing was written.
	ErrInvalid = errors.New("the transaction is invalid")
)

// KV is what a backend must do. All reads are linearizable. Methods may be called at the same time.
type KV interface {
	// Get reads one key; it returns the zero Item (no Key, Modified 0) when the key does not exist.
	Get(ctx context.Context, key string) (Item, error)
	// List reads the keys with a prefix in ascending order, all as of one revision, however many pages it takes.
	List(ctx context.Context, prefix string) ([]Item, error)
	// Below lists the distinct words that follow the prefix, up to the next slash, in ascending order: sites below
	// /converge/. It takes as many reads as there are words, however many keys are below each.
	Below(ctx context.Context, prefix string) ([]string, error)
	// Commit carries out all of ops when all guards hold, and nothing otherwise (ErrGuard). It returns the revision of
	// the store afterwards, which is the Modified of every key that it put.
	// A failure after which the transaction may have been written wraps ErrUnknown; after any other failure it was not.
	// What [Check] refuses is refused before it is sent.
	Commit(ctx context.Context, guards []Guard, ops []Op) (revision int64, err error)
	// Watch yields all keys with a prefix, and then every change to them until the caller leaves the loop: one batch for each
	// commit, in the order of the commits, none left out. When the backend no longer has the changes that come next, it
	// yields all keys again, as a batch that is Whole. It ends with an error: context.Cause of ctx when that is done, or the
	// reason why the store can no longer be watched; the caller may then call Watch again. While the store does not answer, Watch
	// waits and yields nothing.
	Watch(ctx context.Context, prefix string) iter.Seq2[Batch, error]
	// Lease creates a lease. Keys put with it are deleted when it is closed or not kept alive for ttl.
	Lease(ctx context.Context, ttl time.Duration) (Lease, error)
	// Close releases the backend. Leases still open are abandoned: they run out.
	Close() error
}

// An Item is one key with its value and the revisions at which it was created and last written.
type Item struct {
	Key      string
	Value    []byte
	Created  int64
	Modified int64
}

// A Batch is what one commit changed or, when it is Whole, everything: what is not in it does not exist.
type Batch struct {
	Whole    bool
	Revision int64    // of the store
	Changes  []Change // by key, ascending
}

// A Change is a key after a commit.
type Change struct {
	Item
	Gone bool // it was deleted at the revision Modified; it has no value and no revision of creation
}

// A Guard must hold for a transaction to be written. Revision 0 stands for "does not exist".
type Guard struct {
	Key      string
	Created  bool // compare the revision of creation instead of that of the last write
	Revision int64
}

// An Op puts or deletes. A delete with Prefix removes all keys that begin with Key. Deleting what is absent succeeds.
type Op struct {
	Key    string
	Value  []byte
	Delete bool
	Prefix bool
	Lease  Lease // put only: bind the key to a lease; nil for none
}

// A Lease keeps itself alive until it is closed. A Lease is used with the KV that made it.
type Lease interface {
	// Until returns the time up to which the lease is certain to be valid, by the monotonic clock: the send time of the last
	// answered keepalive plus the ttl, less [Margin] of the ttl.
	Until() time.Time
	// Done returns a channel that is closed when the lease is known to be gone.
	Done() <-chan struct{}
	// Close revokes the lease; its keys vanish.
	Close() error
}
