//go:build race

package load

// raceEnabled reports whether memory and time are those of the race detector.
const raceEnabled = true
