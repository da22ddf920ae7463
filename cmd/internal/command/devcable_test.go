package command

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// Bytes pass through a cable exactly while the uplink is up and has its address; what is open then ends, and what is new is refused.
func TestCable(t *testing.T) {
	t.Parallel()
	sch, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	world := fake.New(sch.Kinds())
	plug := func(spec schema.Object) {
		t.Helper()
		if err := world.Put("n", uplinkKind, providers.Thing{ID: uplinkName, Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	listen := func() net.Listener {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	far := listen()
	defer far.Close()
	go func() { // sends back what it gets
		for {
			conn, err := far.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
		}
	}()
	ctx, stop := context.WithCancel(t.Context())
	near, ended := listen(), make(chan struct{})
	go func() {
		defer close(ended)
		(&cable{world, "n", "192.0.2.11/24"}).lay(ctx, near, far.Addr().String())
	}()
	// dial connects, nil when that is refused, and says reports whether a byte comes back.
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", near.Addr().String())
		if err != nil {
			return nil
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	says := func(conn net.Conn) bool {
		t.Helper()
		if conn == nil {
			return false
		}
		_, err := conn.Write([]byte("x"))
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			t.Fatal("the connection neither passes anything nor ends")
		}
		return err == nil
	}
	well := schema.Object{"type": "physical", "state": "up", "addresses": []any{"192.0.2.9/24", "192.0.2.11/24"}}
	for what, unplug := range map[string]func(){
		"down":            func() { plug(schema.Object{"type": "physical", "state": "down", "addresses": well["addresses"]}) },
		"no address":      func() { plug(schema.Object{"type": "physical", "state": "up"}) },
		"another address": func() { plug(schema.Object{"type": "physical", "state": "up", "addresses": []any{"192.0.2.11/32"}}) },
		"gone": func() {
			if err := world.Remove("n", uplinkKind, uplinkName); err != nil {
				t.Fatal(err)
			}
		},
	} {
		plug(well)
		before := dial()
		for range 2 {
			if !says(before) {
				t.Errorf("%s: nothing passes before", what)
			}
		}
		unplug()
		if says(before) {
			t.Errorf("%s: a connection goes on", what)
		}
		if says(dial()) {
			t.Errorf("%s: a connection is made", what)
		}
	}
	plug(well)
	last := dial()
	if !says(last) {
		t.Error("nothing passes after")
	}
	stop()
	<-ended
	if says(last) {
		t.Error("a connection outlives the cable")
	}
}

// The site agents of a development site have addresses apart from each other.
func TestDevAddresses(t *testing.T) {
	t.Parallel()
	var d devSite
	for _, c := range []struct {
		n           int
		first, want string
	}{{0, "127.0.0.1:7443", "127.0.0.1:7443"}, {2, ":7443", ":7445"}, {1, noAddress, noAddress}} {
		if got := d.of(c.n, c.first, nodesPort); got != c.want {
			t.Errorf("%d of %s: %s", c.n, c.first, got)
		}
	}
	if host, port, err := net.SplitHostPort(d.of(0, "127.0.0.1:0", nodesPort)); err != nil || port != nodesPort || !net.ParseIP(host).IsLoopback() || host == "127.0.0.1" {
		t.Errorf("a free address is %s:%s, %v", host, port, err)
	}
}
