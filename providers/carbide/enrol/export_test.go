package enrol

import "time"

// Hurry makes it wait for milliseconds where it waits for seconds.
func (e *Enroller) Hurry() { e.look, e.first = 10*time.Millisecond, time.Millisecond }
