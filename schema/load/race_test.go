//go:build race

package load

// raceEnabled says that memory and time are those of the race detector.
const raceEnabled = true
