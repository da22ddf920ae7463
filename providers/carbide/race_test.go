//go:build race

package carbide_test

// race reports whether the race detector is on, which makes everything several times slower: worlds are smaller with it.
const race = true
