//go:build race

package carbide_test

// race says that the race detector is at work, which makes everything several times slower: worlds are smaller with it.
const race = true
