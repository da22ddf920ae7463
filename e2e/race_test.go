//go:build race

package e2e

// The program under test is built with the race detector when the tests are.
const race = true
