//go:build uncompiled

package kinds

// compiledFiles is nothing while compiled*.go are written, so that it may be of other types than those at hand.
var compiledFiles compiled
