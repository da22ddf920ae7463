//go:build race

package budget

// The race detector makes everything several times slower and larger.
const slower = 5
