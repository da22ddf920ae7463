// Package loopback finds addresses for the servers that tests start in processes of their own.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// port lies below the ports that the kernel hands out by itself.
const port = "7379"

// Address returns a HOST:PORT on which nothing listens, and on which nothing will, unless told to: the host is one of the 16
// million of 127.0.0.0/8, drawn by lot, and only 127.0.0.1 has connections and listeners that take whatever port is free. So a
// server can be stopped and started again at its address, and an address without a server stays one.
func Address(tb testing.TB) string {
	tb.Helper()
	for range 10 {
		host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		l, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			tb.Fatal(err)
		}
		return l.Addr().String()
	}
	tb.Fatal("no address of 127.0.0.0/8 can be listened on")
	return ""
}
