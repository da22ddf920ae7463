//go:build uncompiled

package kinds

// compiledFiles is empty while compiled*.go are being written, so that the types may change.
var compiledFiles compiled
