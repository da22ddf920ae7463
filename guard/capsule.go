package guard

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	encoding "encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A Source says how the provider is opened that undoes a change. It is a part of the capsule, so that this needs no other file.
type Source struct {
	Provider string              `json:"provider"`
	Scope    string              `json:"scope"` // the node
	Site     schema.Site         `json:"site"`
	Settings encoding.RawMessage `json:"settings,omitzero"` // configuration of the provider, as Options.Open reads it; optional
}

// Sizes that a guard does not exceed.
const (
	maxFile    = 4 << 20 // bytes
	maxChanges = 512
	maxProbes  = 16
	maxName    = 200 // bytes of a file's name without its ending
)

// A capsule is what a guard knows of its changes: the contents of its file.
type capsule struct {
	ID string `json:"id"`
	terms
	Probes  []string `json:"probes,omitzero"`
	Next    int      `json:"next"` // number of the next change
	Changes []change `json:"changes"`
}

// A change is one that was armed.
type change struct {
	Number int           `json:"number"`
	Op     string        `json:"op"` // create, update, delete
	Ref    schema.Ref    `json:"ref"`
	ID     string        `json:"id"`              // external id
	Mark   string        `json:"mark,omitzero"`   // Create, Update: that of the call
	Before *image        `json:"before,omitzero"` // what was there before; nil: nothing
	Source Source        `json:"source"`
	Late   time.Duration `json:"late,omitzero"` // how long after the end of the call it may still have its effect
}

// An image is a thing as it was.
type image struct {
	UID  string        `json:"uid,omitzero"`
	Name string        `json:"name,omitzero"`
	Mark string        `json:"mark,omitzero"`
	Spec schema.Object `json:"spec"`

	Unfilled []string `json:"unfilled,omitzero"` // as in providers.Thing
}

// A ruling is the contents of the file of a verdict.
type ruling struct {
	Verdict verdict `json:"verdict"`
	moment
}

// A result is the contents of the file that says what came of an undo.
type result struct {
	State  string  `json:"state"`        // undone, failed
	Why    string  `json:"why,omitzero"` // it was undone, or it failed
	Probes []probe `json:"probes,omitzero"`
	moment
}

// The states of a result.
const (
	undone = "undone"
	failed = "failed"
)

// A probe is what came of one after an undo.
type probe struct {
	Probe string `json:"probe"`
	Error string `json:"error,omitzero"` // empty: it passed
}

// version is that of all files and messages.
const version = 1

// sealed is how a file is written: the checksum is of the body's bytes as they are.
type sealed struct {
	Version int            `json:"version"`
	Sum     string         `json:"sum"`
	Body    jsontext.Value `json:"body"`
}

// strict is how everything is read: names are known, spelt exactly and appear once, and text is UTF-8.
func strict() json.Options {
	return json.JoinOptions(json.RejectUnknownMembers(true), json.Deterministic(true), nanoseconds())
}

// nanoseconds writes durations as integers.
func nanoseconds() json.Options {
	return json.JoinOptions(
		json.WithMarshalers(json.MarshalToFunc(func(out *jsontext.Encoder, d time.Duration) error { return out.WriteToken(jsontext.Int(int64(d))) })),
		json.WithUnmarshalers(json.UnmarshalFromFunc(func(in *jsontext.Decoder, d *time.Duration) error {
			t, err := in.ReadToken()
			if err != nil {
				return err
			}
			n, err := strconv.ParseInt(t.String(), 10, 64)
			if t.Kind() != '0' || err != nil {
				return errors.New("want a number of nanoseconds")
			}
			*d = time.Duration(n)
			return nil
		})),
	)
}

// encode returns the bytes of a file.
func encode(what any) ([]byte, error) {
	body, err := json.Marshal(what, strict())
	if err != nil { // the error of the library may repeat what it could not write
		return nil, errors.New("want texts in UTF-8, and numbers that JSON has")
	}
	b, err := json.Marshal(sealed{version, checksum(body), body}, strict())
	if err == nil && len(b) > maxFile {
		return nil, fmt.Errorf("it has %d bytes; at most %d are allowed", len(b), maxFile)
	}
	return b, err
}

// decode is the inverse of encode.
func decode[T any](data []byte) (what T, err error) {
	var s sealed
	if len(data) > maxFile {
		return what, fmt.Errorf("it has %d bytes; at most %d are allowed", len(data), maxFile)
	}
	// The version is looked at first: the rest of another one may have any form.
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return what, errors.New("it is not a JSON object with a version")
	}
	if v.Version != version {
		return what, fmt.Errorf("its version is %d; this program reads version %d", v.Version, version)
	}
	if err := json.Unmarshal(data, &s, strict()); err != nil {
		return what, errors.New("it is not in the form of its version")
	}
	if s.Sum != checksum(s.Body) {
		return what, errors.New("its checksum does not match")
	}
	if err := json.Unmarshal(s.Body, &what, strict()); err != nil {
		return what, errors.New("its body is not in the form of its version")
	}
	return what, nil
}

func checksum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// decodeCapsule reads the capsule of a guard.
func decodeCapsule(data []byte) (*capsule, error) {
	c, err := decode[capsule](data)
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return nil, err
	}
	return &c, nil
}

// check returns what is wrong with a capsule.
func (c *capsule) check() error {
	if _, err := fileName(c.ID); err != nil {
		return err
	}
	if c.Boot == "" || c.Deadline < 0 || c.Within < minWithin || c.Within > maxWithin || c.Epoch < 0 || len(c.Changes) > maxChanges {
		return errors.New("its terms are not possible")
	}
	if err := CheckProbes(c.Probes); err != nil {
		return err
	}
	for i, ch := range c.Changes {
		if err := ch.check(); err != nil {
			return err
		}
		if ch.Number >= c.Next || i > 0 && ch.Number <= c.Changes[i-1].Number {
			return errors.New("its changes are not in order")
		}
	}
	return nil
}

// check returns what is wrong with a change.
func (c *change) check() error {
	switch {
	case !slices.Contains([]string{"create", "update", "delete"}, c.Op):
		return errors.New("its verb is not known")
	case c.Ref.IsZero() || c.Ref.Scope != c.Source.Scope || c.Ref.Provider() != c.Source.Provider:
		return errors.New("its ref is not one of its provider")
	case c.ID == "":
		return errors.New("its id is empty")
	case (c.Op == "create") != (c.Before == nil):
		return errors.New("what was before does not fit its verb")
	case c.Late < 0 || c.Number < 0:
		return errors.New("its numbers are negative")
	}
	return nil
}

// A key tells the things of a guard apart.
type key struct{ scope, kind, id string }

func (c *change) key() key { return key{c.Ref.Scope, c.Ref.Kind, c.ID} }

// A restoration is what one thing has to become again.
type restoration struct {
	change            // the first one of the thing: its Before is what was there
	marks    []string // that changes of the guard gave it
	replaced bool     // changes of the guard may have made it anew
}

// restorations returns what to restore. A thing that was changed several times is restored at once to what it was before the first of the
// changes, so that it makes no difference how often that is done. The one that was changed last comes first.
func (c *capsule) restorations() []restoration {
	of := map[key]int{}
	var all []restoration
	var last []int
	for i, ch := range c.Changes {
		at, known := of[ch.key()]
		if !known {
			at = len(all)
			of[ch.key()] = at
			all, last = append(all, restoration{change: ch}), append(last, 0)
		}
		last[at] = i
		if ch.Op != "delete" {
			all[at].marks = append(all[at].marks, ch.Mark)
		}
		all[at].replaced = all[at].replaced || ch.Op != "update"
	}
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return last[b] - last[a] })
	sorted := make([]restoration, len(all))
	for i, at := range order {
		sorted[i] = all[at]
	}
	return sorted
}

// imageOf returns a thing as it is restored.
func imageOf(t providers.Thing) *image {
	spec := t.Spec
	if spec == nil {
		spec = schema.Object{}
	}
	return &image{UID: t.UID, Name: t.Name, Mark: t.Mark.String(), Spec: spec, Unfilled: t.Unfilled}
}

// fileName returns the name of the files of a guard, without their ending. Different ids have different names, none of which is hidden
// or leads elsewhere.
func fileName(id string) (string, error) {
	var b bytes.Buffer
	for _, c := range []byte(id) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	if id == "" || b.Len() > maxName {
		return "", fmt.Errorf("the id of a guard has %d bytes: want 1 to %d, where all but letters, digits, - and _ count as three", len(id), maxName)
	}
	return b.String(), nil
}

// CheckProbes fails when these are not probes as [Around] has them.
func CheckProbes(probes []string) error {
	if len(probes) > maxProbes {
		return fmt.Errorf("there are %d probes: at most %d are allowed", len(probes), maxProbes)
	}
	for _, p := range probes {
		if _, err := parseProbe(p); err != nil {
			return err
		}
	}
	return nil
}

// parseProbe returns the address of a probe. Names would have to be resolved, which may not work when it matters.
func parseProbe(p string) (address string, err error) {
	address, ok := strings.CutPrefix(p, "tcp:")
	host, port, err := net.SplitHostPort(address)
	_, perr := strconv.ParseUint(port, 10, 16)
	_, ierr := netip.ParseAddr(host)
	if !ok || err != nil || perr != nil || ierr != nil {
		return "", fmt.Errorf("the probe %q is not tcp:ADDRESS:PORT with an IP address, which needs no name to be resolved", p)
	}
	return address, nil
}
