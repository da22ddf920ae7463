package state

import (
	"context"
	"time"
)

// A Server is the far side of a provider as it identifies itself. It is recorded by the first run that changes something there, so
// that another server, which knows nothing of the site, is not taken for this one with everything gone.
type Server struct {
	Scope    string    `json:"scope"`
	Provider string    `json:"provider"`
	Identity string    `json:"identity"`
	At       time.Time `json:"at,omitzero"`
}

// Servers reads the recorded servers, by scope and provider.
func (s *Store) Servers(ctx context.Context) ([]Server, error) {
	servers, _, err := list[Server](ctx, s, s.key("server")+"/")
	return servers, err
}

// ServerOp records a server, in place of any other for its scope and provider.
func (s *Store) ServerOp(v Server) Op { return s.put(s.key("server", v.Scope, v.Provider), v) }
