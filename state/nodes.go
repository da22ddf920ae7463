package state

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"
)

// NodeStatus says what a node is to the site.
type NodeStatus string

// The statuses of a node.
const (
	NodePending   NodeStatus = "pending"   // it has a token, and no certificate yet
	NodeEnrolled  NodeStatus = "enrolled"  // it has a certificate
	NodeContested NodeStatus = "contested" // its token was presented by two keys; its certificate is valid until somebody bans it
	NodeBanned    NodeStatus = "banned"    // its certificate is refused
)

// A Node is what a site knows about the identity of one node. All of it is in one value, so that whatever decides on it is one
// guarded transaction.
type Node struct {
	Name   string            `json:"name"` // a lower-case label
	Labels map[string]string `json:"labels,omitempty"`
	Token  *NodeToken        `json:"token,omitempty"` // the newest: an earlier one is void

	// The newest certificate. Its key, by which a repeated request is recognised, is that of the certificate.
	Count       int64     `json:"count,omitempty"`       // how many were issued
	Certificate []byte    `json:"certificate,omitempty"` // DER
	Serial      string    `json:"serial,omitempty"`      // its serial number, in hex
	Expires     time.Time `json:"expires,omitzero"`
	Previous    string    `json:"previous,omitempty"` // the serial, in hex, from which the newest was renewed

	Contested time.Time `json:"contested,omitzero"` // when another key presented the token
	Ban       *NodeBan  `json:"ban,omitempty"`

	Revision int64 `json:"-"` // of the store, for compare-and-swap; 0: it is not stored yet
}

// A NodeToken lets a node enrol once. The token itself is not stored.
type NodeToken struct {
	Hash    string    `json:"hash"` // hex SHA-256 of the token's text
	Created time.Time `json:"created"`
	By      string    `json:"by"`
	Expires time.Time `json:"expires"`
	Tries   int       `json:"tries,omitempty"` // refused claims
	Key     string    `json:"key,omitempty"`   // hex SHA-256 of the public key that claimed it; empty: nobody did
	Count   int64     `json:"count,omitempty"` // of the certificate that was issued for it
}

// A NodeBan says who banned a node, and why.
type NodeBan struct {
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// Status returns what the node is to the site.
func (n *Node) Status() NodeStatus {
	switch {
	case n.Ban != nil:
		return NodeBanned
	case !n.Contested.IsZero():
		return NodeContested
	case len(n.Certificate) > 0:
		return NodeEnrolled
	}
	return NodePending
}

// Node reads a node; it fails with ErrNotFound when the site knows none of that name.
func (s *Store) Node(ctx context.Context, name string) (Node, error) {
	n, it, err := read[Node](ctx, s, s.key("node", name))
	n.Revision = it.Modified
	return n, err
}

// Nodes reads all nodes, by name.
func (s *Store) Nodes(ctx context.Context) ([]Node, error) {
	nodes, items, err := list[Node](ctx, s, s.key("node")+"/")
	for i := range nodes {
		nodes[i].Revision = items[i].Modified
	}
	return nodes, err
}

// SetNode writes a node as long as it is still as it was read, together with entries in the audit log. It fails with ErrGuard when
// the node has changed, and with ErrUnknown when it is unknown whether it was written: read it again.
func (s *Store) SetNode(ctx context.Context, n Node, entries ...Audit) error {
	key := s.key("node", n.Name)
	ops := []Op{s.put(key, n)}
	for _, entry := range entries {
		ops = append(ops, s.put(s.key("audit", NewRunID(entry.At)), entry))
	}
	if _, err := s.kv.Commit(ctx, []Guard{{Key: key, Revision: n.Revision}}, ops); err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}

// A NodeChange is a node as it is after a change. Node is nil when it was removed by another client, or cannot be read (Err).
type NodeChange struct {
	Name string
	Node *Node
	Err  error
}

// NodeChanges are what one commit changed or, when they are Whole, all nodes.
type NodeChanges struct {
	Whole   bool
	Changes []NodeChange
}

// WatchNodes yields all nodes and then every change, as [KV.Watch] does. It ends with an error.
func (s *Store) WatchNodes(ctx context.Context) iter.Seq2[NodeChanges, error] {
	prefix := s.key("node") + "/"
	return func(yield func(NodeChanges, error) bool) {
		for batch, err := range s.kv.Watch(ctx, prefix) {
			if err != nil {
				yield(NodeChanges{}, fmt.Errorf("watch %s: %w", prefix, err))
				return
			}
			all := NodeChanges{Whole: batch.Whole}
			for _, c := range batch.Changes {
				change := NodeChange{Name: strings.TrimPrefix(c.Key, prefix)}
				if !c.Gone {
					var n Node
					if change.Err = decode(c.Item, &n); change.Err == nil {
						n.Revision = c.Modified
						change.Node = &n
					}
				}
				all.Changes = append(all.Changes, change)
			}
			if !yield(all, nil) {
				return
			}
		}
	}
}
