// Package faults holds the grid of provider faults over the real Carbide provider, the whole engine and the simulated
// service (test E of docs/reliability.md).
//
// It has tests only. A *scene* is a pair of tiny documents that differ in one resource, x, so that a run between them makes
// one step: a create, an update or a delete of one kind, or one of its calls. A *method* is a call of the service that
// changes something. A *fault* is what goes wrong when the step of x begins, on the way forward or while a run is undone. An
// *end* is all that comes of it: how the run ended, what there is of x, what is held, and what a resume and another apply
// come to once the far side is well.
//
// Which methods a scene meets is not written down but found out, by playing it once without a fault. All methods that the
// provider's source calls must be met, so one that is new fails the test until there is a scene for it.
//
// What the end of a cell must be is not written down either: table_test.go derives it from the traits that the kind
// declares, as "Ids and unknown outcomes" of docs/reliability.md has it. The few cells that end otherwise stand there by
// name, each with its reason.
//
// Every cell has a site, a store and a clock of its own, and no cell waits for real time.
//
//	go test ./e2e/faults                                            a sample
//	CONVERGE_TORTURE=push go test ./e2e/faults                      every fault of every method
//	CONVERGE_TORTURE=nightly go test ./e2e/faults                   all cells
//	CONVERGE_TORTURE=push go test ./e2e/faults -run 'Faults/(rehearsal|^vpc$)'    those of one kind, after which all else counts as not reached
package faults
