package enrol

import (
	"context"
	"time"
)

// Hurry makes it wait for milliseconds where it waits for seconds.
func (e *Enroller) Hurry() { e.look, e.first = 10*time.Millisecond, time.Millisecond }

// Once is one round of Run.
func (e *Enroller) Once(ctx context.Context) { e.round(ctx) }
