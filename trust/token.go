package trust

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

const (
	// DefaultTokenLife is how long a token can be used.
	DefaultTokenLife = 15 * time.Minute
	// MaxTokenLife is the longest that a token can be used.
	MaxTokenLife = 24 * time.Hour
	// MaxTries is how many refused claims end a token that nobody has claimed yet.
	MaxTries = 5

	tokenPrefix = "cvt1."
	maxToken    = 4 << 10
)

// ErrToken reports that a text is no token: it is damaged, or something else.
var ErrToken = errors.New("this is not an enrolment token, or not all of it")

// A Token is what a node knows of the site before it has enrolled. It lets one node enrol, so its text is a secret: it travels through a
// file or standard input, never on a command line.
type Token struct {
	Node    string
	Expires time.Time

	text string
	pins [][sha256.Size]byte // of the authorities that may have issued the site's certificate
}

// tokenBody is what a token's text encodes.
type tokenBody struct {
	Secret  []byte   `json:"s"` // 256 bits
	Pins    [][]byte `json:"p"`
	Expires int64    `json:"e"` // in seconds since 1970
	Node    string   `json:"n"`
}

// ParseToken reads a token's text, with white space around it. It fails with ErrToken, and repeats nothing of the text.
func ParseToken(text string) (*Token, error) {
	text = strings.TrimSpace(text)
	b64, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok || len(text) > maxToken || strings.ContainsAny(b64, "\r\n") {
		return nil, ErrToken
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(b64)
	if err != nil {
		return nil, ErrToken
	}
	var body tokenBody
	if err := json.Unmarshal(b, &body, json.RejectUnknownMembers(true)); err != nil || len(body.Secret) != 32 || len(body.Pins) == 0 || !label.MatchString(body.Node) {
		return nil, ErrToken
	}
	t := &Token{Node: body.Node, Expires: time.Unix(body.Expires, 0).UTC(), text: text}
	for _, pin := range body.Pins {
		if len(pin) != sha256.Size {
			return nil, ErrToken
		}
		t.pins = append(t.pins, [sha256.Size]byte(pin))
	}
	return t, nil
}

// String keeps the secret out of messages.
func (t *Token) String() string { return "token for node " + t.Node }

// GoString keeps the secret out of messages.
func (t *Token) GoString() string { return t.String() }

// hash returns what the store knows of a token. All of the text is covered, so that a token with another node, end or pin is
// another token.
func (t *Token) hash() string {
	sum := sha256.Sum256([]byte(t.text))
	return hex.EncodeToString(sum[:])
}

// TokenOptions say what a token is for.
type TokenOptions struct {
	By     string            // required: who asks, USER@HOST
	Labels map[string]string // optional: the node's, in place of those it had
	TTL    time.Duration     // optional: DefaultTokenLife when zero; at most MaxTokenLife
}

// CreateToken makes the token of a node and returns its text, which is known from then on to the caller only. An earlier token of that
// node is void. For a node that has a certificate, the claim replaces that; for a contested one, the new token settles the contest. It
// fails with a *BannedError for a node that is banned. It is entered in the audit log.
func (a *Authority) CreateToken(ctx context.Context, store *state.Store, node string, o TokenOptions) (string, error) {
	ttl := o.TTL
	if ttl == 0 {
		ttl = DefaultTokenLife
	}
	switch {
	case !label.MatchString(node) || node == schema.ScopeSite:
		return "", fmt.Errorf("create a token for node %q: want a name of lower-case letters, digits and inner hyphens, at most 63, and not site", node)
	case ttl < time.Second || ttl > MaxTokenLife:
		return "", fmt.Errorf("create a token for node %s: it would be valid for %s; want 1s to %s", node, ttl, MaxTokenLife)
	case o.By == "":
		return "", fmt.Errorf("create a token for node %s: say who asks", node)
	}
	now := a.now().UTC().Truncate(time.Second)
	body := tokenBody{Secret: make([]byte, 32), Expires: now.Add(ttl).Unix(), Node: node}
	_, _ = rand.Read(body.Secret) // never fails
	for _, c := range a.Document().authorities() {
		if p := pin(c); now.Before(c.NotAfter) {
			body.Pins = append(body.Pins, p[:])
		}
	}
	if len(body.Pins) == 0 {
		return "", fmt.Errorf("create a token for node %s: all node CAs have expired: replace them with converge trust rotate", node)
	}
	b, err := json.Marshal(body)
	if err != nil {
		return "", fmt.Errorf("create a token for node %s: %w", node, err)
	}
	t := Token{Node: node, text: tokenPrefix + base64.RawURLEncoding.EncodeToString(b)}
	err = change(ctx, store, node, true, func(n *state.Node) ([]state.Audit, error) {
		n.Token = &state.NodeToken{Hash: t.hash(), Created: now, By: o.By, Expires: now.Add(ttl)}
		n.Contested = time.Time{}
		if o.Labels != nil {
			n.Labels = maps.Clone(o.Labels)
		}
		return []state.Audit{{At: a.now().UTC(), By: o.By, Action: "token", Scope: node, Reason: "enrolment token, valid until " + stamp(now.Add(ttl))}}, nil
	})
	if err != nil {
		return "", fmt.Errorf("create a token for node %s: %w", node, err)
	}
	return t.text, nil
}

// maxChanges is how often a change to a node is tried when others change it at the same time.
const maxChanges = 64

// errSame ends a change that has nothing to write.
var errSame = errors.New("nothing to write")

// change reads a node, lets f change it, and writes it unless somebody else has changed it meanwhile; then it begins again. So f decides on
// what is in the store, and has to be repeatable: when the outcome of a write is unknown, it sees the result. Nothing is written when
// f fails. With fresh, f may be given a node that does not exist yet.
func change(ctx context.Context, store *state.Store, node string, fresh bool, f func(*state.Node) ([]state.Audit, error)) error {
	for range maxChanges {
		n, err := store.Node(ctx, node)
		if fresh && errors.Is(err, state.ErrNotFound) {
			n, err = state.Node{Name: node}, nil
		}
		if err != nil {
			return err
		}
		entries, err := f(&n)
		if errors.Is(err, errSame) {
			return nil
		}
		if err != nil {
			return err
		}
		err = store.SetNode(ctx, n, entries...)
		if err == nil || !errors.Is(err, state.ErrGuard) && !errors.Is(err, state.ErrUnknown) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("node %s is being changed by too many at the same time: try again", node)
}

// ReadToken reads a token from a file that belongs to its user only, such as one that an installer wrote.
func ReadToken(path string) (*Token, error) {
	b, err := files.ReadPrivate(path, maxToken)
	if err != nil {
		return nil, err
	}
	t, err := ParseToken(string(bytes.TrimSpace(b)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}
