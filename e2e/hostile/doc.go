// Package hostile holds the tests of hostile input: names and values that try to be something else than text, documents
// that try to take the machine down, and files that are not what they were a moment ago.
//
// What it promises: a name is either refused with a diagnostic that a terminal can show, or it is the same, byte for byte,
// in the document, the plan, the record, the key of the store and the far world. A document that is too large, too deep or
// explodes is refused within two seconds and 256 MiB. Nothing outside the folders that a command names is written. No
// text is ever made into a command or into XML.
//
// Its tests are torture tests: they try a sample unless CONVERGE_TORTURE is push or nightly. See package torture.
package hostile
