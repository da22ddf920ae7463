package ledger_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"converge.dev/converge/agent/ledger"
)

func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := ledger.Open(filepath.Join(dir, "ledger"), ledger.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	// A new leader fences the node, and its signed head says which sequence numbers it has used.
	if _, err := l.Fence(3); err != nil {
		log.Fatal(err)
	}
	if err := l.Head(3, 0, time.Now()); err != nil {
		log.Fatal(err)
	}
	task := ledger.Entry{Epoch: 3, Seq: 1, ID: "4f6c", Digest: "9a1e", Key: "bridge/br0", Action: "create", Expires: time.Now().Add(time.Minute)}
	for range 2 {
		begun, err := l.Begin(task)
		if err != nil {
			log.Fatal(err)
		}
		switch b := begun.(type) {
		case *ledger.Run:
			fmt.Println("run it")
			if err := b.Finish([]byte("signed result")); err != nil {
				log.Print(err) // the result counts all the same
			}
		case ledger.Stored:
			fmt.Println("it was done:", string(b.Result))
		}
	}
	// Output:
	// run it
	// it was done: signed result
}
