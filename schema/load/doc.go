// Package load turns documents in CUE, JSON or YAML into resources or diagnostics.
//
// A [kinds.Schema] is made once and then serves any number of documents. A document passes three stages:
//
//   - Reading, in this package. One JSON file, the form in which documents are stored, is read by a strict decoder in one
//     pass. CUE, YAML and several files together are first evaluated to JSON by an [Evaluator], best in a child process with
//     limits: evaluating CUE can take any amount of time and memory.
//   - Checking, by package kinds. Each resource is checked against its kind, in parallel; defaults are filled in.
//   - Rules on the whole site, by package rules: references, cycles, overlaps, things used twice.
//
// All problems are reported at once, each [Diagnostic] with file, line, column, the path in the document and what to do.
//
// The package promises that what it returns obeys the schema and all rules, that equal documents have equal digests
// however they were written, that reading stops at fixed limits before it takes much time or memory, and that time and
// memory grow linearly with the number of resources. References to secrets are passed on, never followed.
package load
