package command

import (
	"fmt"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
)

// A watching says whether a command goes on and reports what changes.
type watching struct {
	on       bool
	interval time.Duration
}

func (w *watching) bind(c *cobra.Command) {
	c.Flags().BoolVar(&w.on, "watch", false, "report what changes, until interrupted")
	c.Flags().DurationVar(&w.interval, "interval", time.Minute, "with -watch: observe everything again after each `duration`")
}

func (w *watching) check(c *cobra.Command) error {
	switch {
	case w.interval < time.Second:
		return &view.Problem{What: fmt.Sprintf("invalid -interval %v: want at least 1s", w.interval)}
	case c.Flags().Changed("interval") && !w.on:
		return &view.Problem{What: "-interval needs -watch"}
	}
	return nil
}

// eachChange calls look whenever something may have changed. To be interrupted, or to lose its reader, is how it succeeds.
func (a *app) eachChange(changed iter.Seq2[[]engine.Changed, error], look func([]engine.Changed) error) error {
	shown := false
	for places, err := range changed {
		if err == nil {
			err = look(places)
		}
		shown = shown || err == nil
		switch {
		case shown && a.signal.Load() != nil, a.out.broken() != nil:
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}
