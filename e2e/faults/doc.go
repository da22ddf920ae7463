// Package faults holds the grid of provider faults over the real Carbide provider, the whole engine and the simulated
// service (test E of docs/reliability.md).
//
// It contains only tests. A *scene* is a pair of tiny documents that differ in one resource, x, so that a run between them makes
// one step: a create, an update or a delete of one kind, or one of its calls. A *method* is a call of the service that
// changes something. A *fault* is what goes wrong when the step of x begins, on the way forward or while a run is undone. An
// *end* is the whole result: how the run ended, what exists of x, what is held, and the results of a resume and another
// apply once the far side is well.
//
// Which methods a scene calls is not written down but determined by playing it once without a fault. All methods that the
// provider's source calls must be called, so a new one fails the test until there is a scene for it.
//
// What the end of a cell must be is not written down either: table_test.go derives it from the traits that the kind
// declares, following "Ids and unknown outcomes" of docs/reliability.md. The few cells that end differently are listed with
// the scenes in internal/carbidetest, each with its reason.
//
// Beside it stand the daemons and the kernel of a node: runs that outlast the absence of libvirtd and ovs-vswitchd, and a fake kernel that
// answers otherwise than it should (kernel_test.go).
//
// Every cell has its own site, store and clock, and no cell waits for real time.
//
//	go test ./e2e/faults                                            a sample
//	CONVERGE_TORTURE=push go test ./e2e/faults                      every fault of every method
//	CONVERGE_TORTURE=nightly go test ./e2e/faults                   all cells
//	CONVERGE_TORTURE=push go test ./e2e/faults -run 'Faults/(rehearsal|^vpc$)'    those of one kind; all others count as not reached
package faults
