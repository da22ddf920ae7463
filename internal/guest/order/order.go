// Package order is what the rig and the first process of a guest agree on.
package order

// Where things are in the guest.
const (
	File     = "/order.json"          // an Order
	Dir      = "/test"                // the working directory of a test without the computer's file system, with the testdata of its package
	Test     = "/programs/guest.test" // the test binary
	Result   = "/dev/ttyS1"           // gets the output of the test, and nothing else
	Requests = "/dev/ttyS2"           // takes requests to the rig, a line each, and gives an answer to each, a line too
	ExitPort = 0xf4                   // of the device isa-debug-exit
	Programs = "/programs"            // the programs that were built for the guest
	Userland = "userland"             // mount tag of the computer's file system
)

// What the first process writes to ExitPort, as QEMU exits with twice that plus one: the exit code of the test plus Ended, so that
// no end of a guest looks like QEMU's own failures, which have exit status 1.
const (
	Ended  = 1
	Broken = 126 // instead of an exit code: the test could not run, or was killed
)

// An Order says what the first process does.
type Order struct {
	Modules  []string // files, each after those it needs
	Args     []string // of the test binary
	Env      []string
	Userland bool   // the guest has the computer's file system
	Kernel   string // directory of the kernel's modules there
	Dir      string // working directory of the test
}
