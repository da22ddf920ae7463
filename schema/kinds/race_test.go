//go:build race

package kinds

// raceEnabled says that memory and time are those of the race detector.
const raceEnabled = true
