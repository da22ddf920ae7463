// Package carbidesim is a stateful simulator of a Carbide site's control service, forge.Forge, for development
// and for tests.
//
// A [World] holds what a site holds: tenants, key sets, VPCs, their prefixes and peerings, network segments, security
// groups, partitions of the other fabrics, instance types and allocations, instances, machines, operating systems, images,
// services on DPUs, SKUs and expected hardware. It follows the real service's rules, and its surprises: misleading codes,
// ids that can never be used again, tokens that change when a child changes, deletes that nothing refuses. What it does
// not model it refuses with UNIMPLEMENTED instead of guessing. Its requirements are listed in must_test.go, clause by
// clause, with the tests that check them; the requirements on every kind are tested in laws_test.go and the files beside
// it.
//
// Words: a *site* is the state and its rules; a *world* is a site with a clock, faults and a file; a *server* puts
// a world on the wire. A *stranger* is a change made by another client than the one under test.
//
// Promises:
//
//   - Time passes only through the clock. A segment becomes ready, and a deleted one disappears, when a call arrives
//     after its time; there are no goroutines in the world, and a test that owns the clock needs no sleep.
//   - A call that fails changes nothing, unless a declared [Fault] says that only its reply was lost.
//   - [World.Dump] prints the live world without tokens, times and burned ids, in a stable order: two dumps are equal
//     byte for byte when the worlds are.
//   - The same options and the same calls result in the same ids.
package carbidesim
