//go:build race

package hostile

// The program under test is built with the race detector when the tests are.
const race = true
