package schema

import "embed"

// Files is the embedded CUE module: one folder per provider, one file per kind, and core for what kinds share.
// All files belong to one CUE package. A kind's file says with #Site or #Node where in a document the kind belongs;
// files are found by wildcard and listed nowhere. After changing them, run `go generate ./schema/kinds` to write anew what they
// compile to.
//
//go:embed */*.cue
var Files embed.FS

// Example is a document in CUE with at least one resource of every kind.
//
//go:embed example.cue
var Example string
