package ovs_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"converge.dev/converge/internal/ovstest"
)

// A fate is what happens to a transaction on its way.
type fate int

const (
	passed  fate = iota
	lost         // the connection breaks before the server has it
	unheard      // the connection breaks before the client has the reply
	stuck        // nothing passes on this connection any more
)

// A relay stands between a provider and the database.
type relay struct {
	t        *testing.T
	listener net.Listener
	target   string
	work     sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	commit func() fate // called for each transaction that changes something, before it is passed on
	hung   atomic.Bool // nothing passes to the server any more

	answered atomic.Int64 // bytes
}

// newRelay relays to the database of s, over a socket of its own, which speaks TLS when a configuration is given.
func newRelay(t *testing.T, s *ovstest.Switch, conf *tls.Config) (r *relay, endpoint string) {
	t.Helper()
	r = &relay{t: t, target: strings.TrimPrefix(s.Endpoint, "unix:")}
	var err error
	if conf != nil {
		r.listener, err = tls.Listen("tcp", "127.0.0.1:0", conf)
	} else {
		dir, derr := os.MkdirTemp("", "relay")
		if derr != nil {
			t.Fatal(derr)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		r.listener, err = net.Listen("unix", filepath.Join(dir, "db.sock"))
	}
	if err != nil {
		t.Fatal(err)
	}
	r.work.Go(r.accept)
	t.Cleanup(func() {
		r.listener.Close()
		r.cut()
		r.work.Wait()
	})
	if conf != nil {
		return r, "ssl:" + r.listener.Addr().String()
	}
	return r, "unix:" + r.listener.Addr().String()
}

// on makes f decide the fate of the next transaction that changes something.
func (r *relay) on(f func() fate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commit = f
}

// cut breaks all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", r.target)
		if err != nil {
			client.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, client, server)
		r.mu.Unlock()
		unheard := make(chan string, 1) // the id of a request whose reply breaks the connection
		r.work.Go(func() { r.requests(client, server, unheard) })
		r.work.Go(func() { r.answers(client, server, unheard) })
	}
}

// requests passes on what the client sends. What waits for its fate is overtaken by the rest: a server may wait for a
// message of the client before it answers at all.
func (r *relay) requests(client, server net.Conn, broken chan<- string) {
	defer client.Close()
	defer server.Close()
	var one sync.Mutex // message at a time
	hangs := false
	pass := func(message json.RawMessage) {
		one.Lock()
		defer one.Unlock()
		if !hangs && !r.hung.Load() {
			_, _ = server.Write(message) // when it fails, so does reading
		}
	}
	for d := json.NewDecoder(client); ; {
		var message json.RawMessage
		if d.Decode(&message) != nil {
			return
		}
		var decide func() fate
		if bytes.Contains(message, []byte(`"mutate"`)) {
			r.mu.Lock()
			decide, r.commit = r.commit, nil
			r.mu.Unlock()
		}
		if decide == nil {
			pass(message)
			continue
		}
		r.work.Go(func() {
			switch decide() {
			case lost:
				client.Close()
				return
			case unheard:
				broken <- id(message)
			case stuck:
				one.Lock()
				hangs = true
				one.Unlock()
			}
			pass(message)
		})
	}
}

// answers passes on what the server sends.
func (r *relay) answers(client, server net.Conn, broken <-chan string) {
	defer client.Close()
	defer server.Close()
	cutAt := "none"
	for d := json.NewDecoder(server); ; {
		var message json.RawMessage
		if d.Decode(&message) != nil {
			return
		}
		select {
		case cutAt = <-broken:
		default:
		}
		if id(message) == cutAt {
			return
		}
		r.answered.Add(int64(len(message)))
		if _, err := client.Write(message); err != nil {
			return
		}
	}
}

// id returns the id of a message.
func id(message json.RawMessage) string {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(message, &m) != nil {
		return ""
	}
	return string(m.ID)
}
