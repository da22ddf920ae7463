package task

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"time"

	"converge.dev/converge/internal/dsse"
)

// A Check is one condition that an envelope must meet, in one word.
type Check string

// The checks, in the order in which they run. Nothing of the payload is read before its signature is known to be good.
const (
	CheckSize       Check = "size"       // at most MaxSize
	CheckEnvelope   Check = "envelope"   // a strict DSSE envelope in canonical base64
	CheckSignatures Check = "signatures" // exactly one
	CheckKey        Check = "key"        // the node knows the key
	CheckKeyTime    Check = "key-time"   // the key is valid now
	CheckKeyType    Check = "key-type"   // the key may sign tasks, or heads, at all
	CheckSignature  Check = "signature"  // of that key, over exactly these bytes
	CheckType       Check = "type"       // the payload is of the type that was expected
	CheckJSON       Check = "json"       // strict: known names in their spelling, each once, nothing missing and nothing after it
	CheckFields     Check = "fields"     // every field has a value in its range
	CheckKeyAction  Check = "key-action" // the key may sign this action
	CheckSite       Check = "site"       // it is for this site
	CheckNode       Check = "node"       // it is for, or from, this node
	CheckTask       Check = "task"       // a result is for this task
	CheckNotBefore  Check = "not-before" // its time has come
	CheckLife       Check = "life"       // a task's time is at most MaxLife
	CheckExpired    Check = "expired"    // its time has not passed
)

// A RefusedError reports which check a task, head or result did not pass. It repeats nothing of what was refused.
type RefusedError struct {
	Check Check
	Why   string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("refused by the check %q: %s", e.Check, e.Why)
}

// A Key is a key of the site that a node knows from its trust document.
type Key struct {
	ID                  string // the name in the trust document; who signed is found by Public alone
	Public              ed25519.PublicKey
	NotBefore, NotAfter time.Time // it is valid from and until then, give or take Skew
	Actions             []string  // what it may sign: actions of a task, and SignHead; empty: everything
}

// may reports whether the key may sign at least one of some things.
func (k Key) may(words ...string) bool {
	return len(k.Actions) == 0 || slices.ContainsFunc(words, func(w string) bool { return slices.Contains(k.Actions, w) })
}

// A Checker decides at a node which tasks and heads of its site count. It may be used by several goroutines at the same time when
// its functions may.
type Checker struct {
	Site  string           // required: the site's id
	Node  string           // required: the node's name
	Keys  func() []Key     // required: the keys that the node knows now, each once
	Now   func() time.Time // required: the node's clock
	Floor func() time.Time // optional: the time of the newest head; the clock is taken to be at least that

	// skip is set by tests alone. It is called once for each check in their order, and says whether the check shall count as passed.
	skip func(Check) bool
}

// A Checked task has passed all checks of a [Checker].
type Checked struct {
	Task
	Digest string // hex SHA-256 of the payload
}

// Task returns the task in an envelope. It fails with a [RefusedError]. A task that passes every check but the last, CheckExpired, is
// returned beside the error: it must not be begun, and the caller may know what came of it in its time.
func (c *Checker) Task(envelope []byte) (*Checked, error) {
	var in opened
	var t Task
	now := c.now()
	steps := append(c.opening(&in, envelope, now, Type, actions()...),
		step{CheckJSON, func() string { return t.decode(in.Payload) }},
		step{CheckFields, t.malformed},
		step{CheckKeyAction, func() string {
			return unless(in.key.may(t.Action), "the key %s may not sign a task with action %s", in.key.ID, t.Action)
		}},
		step{CheckSite, func() string { return unless(t.Site == c.Site, "it is for another site than %s", c.Site) }},
		step{CheckNode, func() string { return unless(t.Node == c.Node, "it is for another node than %s", c.Node) }},
		step{CheckNotBefore, func() string { return early(t.NotBefore, now) }},
		step{CheckLife, t.life},
		step{CheckExpired, func() string { return late(t.Expires, now) }},
	)
	err := run(c.skip, steps...)
	if refused, ok := err.(*RefusedError); ok && refused.Check != CheckExpired {
		return nil, err
	}
	return &Checked{t, digest(in.Payload)}, err
}

// Head returns the head in an envelope. It fails with a [RefusedError], also when the head is older than HeadLife. Whether the head is
// newer than the last one is for the caller to see.
func (c *Checker) Head(envelope []byte) (*Head, error) {
	var in opened
	var h Head
	now := c.now()
	steps := append(c.opening(&in, envelope, now, HeadType, SignHead),
		step{CheckJSON, func() string { return h.decode(in.Payload) }},
		step{CheckFields, h.malformed},
		step{CheckSite, func() string { return unless(h.Site == c.Site, "it is for another site than %s", c.Site) }},
		step{CheckNode, func() string { return unless(h.Node == c.Node, "it is for another node than %s", c.Node) }},
		step{CheckNotBefore, func() string { return early(h.Now, now) }},
		step{CheckExpired, func() string { return late(h.Now.Add(HeadLife), now) }},
	)
	if err := run(c.skip, steps...); err != nil {
		return nil, err
	}
	return &h, nil
}

// OpenResult returns the result in an envelope, which must be signed by key, the key of the node's certificate, and answer the task
// with the given digest. It fails with a [RefusedError]. A result may be of any age.
func OpenResult(envelope []byte, key ed25519.PublicKey, node, taskDigest string) (*Result, error) {
	return openResult(envelope, key, node, taskDigest, nil)
}

func openResult(envelope []byte, key ed25519.PublicKey, node, taskDigest string, skip func(Check) bool) (*Result, error) {
	var in opened
	var r Result
	err := run(skip,
		in.size(envelope), in.open(envelope), in.single(),
		step{CheckSignature, func() string {
			return unless(in.Verified(key), "it is not signed with the key of node %s over these bytes", node)
		}},
		in.kind(ResultType),
		step{CheckJSON, func() string { return r.decode(in.Payload) }},
		step{CheckFields, r.malformed},
		step{CheckNode, func() string { return unless(r.Node == node, "it is from another node than %s", node) }},
		step{CheckTask, func() string { return unless(r.Task == taskDigest, "it answers another task than %s", taskDigest) }},
	)
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// now returns the time that counts: a clock that is behind the newest head is known to be wrong.
func (c *Checker) now() time.Time {
	now := c.Now()
	if c.Floor != nil {
		if floor := c.Floor(); floor.After(now) {
			return floor
		}
	}
	return now
}

// A step is a check; find returns why it fails, and nothing when it passes.
type step struct {
	check Check
	find  func() string
}

// run fails with the first step that does.
func run(skip func(Check) bool, steps ...step) error {
	for _, s := range steps {
		skipped := skip != nil && skip(s.check)
		if why := s.find(); why != "" && !skipped {
			return &RefusedError{s.check, why}
		}
	}
	return nil
}

// opened is an envelope on its way through the checks.
type opened struct {
	dsse.Envelope
	key Key // of the site, that the signature names
}

// opening returns the steps up to the payload's type, which a task and a head share. The key must be allowed one of the words.
func (c *Checker) opening(in *opened, envelope []byte, now time.Time, kind string, words ...string) []step {
	return []step{
		in.size(envelope),
		in.open(envelope),
		in.single(),
		{CheckKey, func() string {
			ok := len(in.Signatures) > 0 && in.find(c.Keys(), in.Signatures[0].KeyID)
			return unless(ok, "the node does not know the key: it may need a newer trust document")
		}},
		{CheckKeyTime, func() string {
			switch {
			case in.key.NotBefore.After(now.Add(Skew)):
				return fmt.Sprintf("the key %s is not valid yet: compare the clocks of the site and the node", in.key.ID)
			case now.After(in.key.NotAfter.Add(Skew)):
				return fmt.Sprintf("the key %s is no longer valid: the site must sign with its newer key", in.key.ID)
			}
			return ""
		}},
		{CheckKeyType, func() string { return unless(in.key.may(words...), "the key %s may not sign %s", in.key.ID, kind) }},
		{CheckSignature, func() string {
			return unless(in.Verified(in.key.Public), "it is not the signature of the key %s over these bytes", in.key.ID)
		}},
		in.kind(kind),
	}
}

// find looks up the key with an id.
func (in *opened) find(keys []Key, id string) bool {
	i := slices.IndexFunc(keys, func(k Key) bool { return dsse.KeyID(k.Public) == id })
	if i >= 0 {
		in.key = keys[i]
	}
	return i >= 0
}

func (in *opened) size(envelope []byte) step {
	return step{CheckSize, func() string { return tooLarge(envelope) }}
}

func (in *opened) open(envelope []byte) step {
	return step{CheckEnvelope, func() string {
		e, err := dsse.Open(envelope, len(envelope)) // the size has been checked
		if err != nil {
			return err.Error()
		}
		in.Envelope = *e
		return ""
	}}
}

func (in *opened) single() step {
	return step{CheckSignatures, func() string {
		return unless(len(in.Signatures) == 1, "it has %d signatures; want one", len(in.Signatures))
	}}
}

func (in *opened) kind(want string) step {
	return step{CheckType, func() string { return unless(in.Type == want, "it is of another type than %s", want) }}
}

func tooLarge(envelope []byte) string {
	return unless(len(envelope) <= MaxSize, "it has %d bytes; at most %d are allowed", len(envelope), MaxSize)
}

func early(t, now time.Time) string {
	return unless(!t.After(now.Add(Skew)), "it is from %s, and here it is %s: compare the clocks of the site and the node", stamp(t), stamp(now))
}

func late(t, now time.Time) string {
	return unless(!now.After(t.Add(Skew)), "it was good until %s, and here it is %s: compare the clocks of the site and the node", stamp(t), stamp(now))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func unless(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}
