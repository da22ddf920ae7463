package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/state"
)

// cancelPause is how often cancel checks whether the other process has ended its run.
const cancelPause = 100 * time.Millisecond

func (a *app) cancelCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "cancel [RUN]",
		Short: "Cancel a run in another process",
		Long: `Ask the process that is executing a run to stop it, as Ctrl-C would there: calls in
flight finish, pending waits are dropped, nothing new is started, and the run stays
open. The request goes through the store, wherever the process runs, and takes effect
within seconds. Then report the outcome: converge resume continues the run, and converge
rollback rolls it back where possible. With a RUN, only that run is cancelled.

With -json, print one object with run, status, steps, done and cancelled. The last is
false when the process did not stop the run because of the request: the run had already
finished, or the process was lost.

If interrupted, the command stops waiting; the request still stands.`,
		Example: `  converge cancel
  converge cancel 20261120-121537.042-9f3a01`,
		Args:              between(0, 1),
		ValidArgsFunction: a.completeRuns,
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		id := ""
		if len(args) > 0 {
			id = args[0]
		}
		return s.cancel(c.Context(), id)
	}
	return c
}

func (s *session) cancel(ctx context.Context, id string) error {
	holder, err := s.store.LockInfo(ctx)
	if err != nil {
		return err
	}
	if holder == nil || holder.Run == "" || id != "" && holder.Run != id {
		return s.notRunning(ctx, id, holder)
	}
	if err := s.store.Ask(ctx, state.ToCancel, *holder, who()); errors.Is(err, state.ErrGuard) { // it has ended meanwhile
		return s.notRunning(ctx, holder.Run, nil)
	} else if err != nil {
		return err
	}
	s.view.Note(fmt.Sprintf("Asked %s (PID %d) to stop run %s; waiting for work in progress to finish.", holder.Who, holder.PID, holder.Run))
	err = retry.Policy{First: cancelPause}.Do(ctx, func() (over bool, err error) {
		now, err := s.store.LockInfo(ctx)
		return err != nil || now == nil || now.ID != holder.ID, err
	})
	switch {
	case ctx.Err() != nil && s.signal.Load() != nil:
		return outcome(s.interrupted())
	case err != nil:
		return err
	}
	run, err := s.store.Run(ctx, holder.Run)
	if err != nil {
		return err
	}
	s.recount(ctx, &run)
	s.acted = true
	if s.flags.json {
		return s.printJSON(map[string]any{"run": run.ID, "status": run.Status, "steps": run.Steps, "done": run.Done, "cancelled": run.Cancelled == holder.Epoch})
	}
	if run.Status != state.RunOpen {
		s.print(fmt.Sprintf("Run %s had already finished: %s.\n", run.ID, run.Stands()))
		return nil
	}
	became := fmt.Sprintf("Run %s was cancelled: %d of %s done; the journal is intact.\n", run.ID, run.Done, view.Count(run.Steps, "step"))
	if run.Cancelled != holder.Epoch {
		became = fmt.Sprintf("Run %s did not stop cleanly: %s (PID %d) lost the site lock without answering. It was killed or frozen, or cannot reach the store; it starts nothing more. "+
			"%d of %s done; the outcome of work in progress is determined when the run is resumed or rolled back.\n", run.ID, holder.Who, holder.PID, run.Done, view.Count(run.Steps, "step"))
	}
	s.print(became + view.Settling(run, engine.Undoable(ctx, s.store, run)))
	return nil
}

// notRunning returns why there is nothing to cancel, and what to do instead. Id is empty when no run was named.
func (s *session) notRunning(ctx context.Context, id string, holder *state.LockInfo) error {
	runs, err := s.store.Runs(ctx)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if id != "" && r.ID != id || id == "" && r.Status != state.RunOpen {
			continue
		}
		p := &view.Problem{What: fmt.Sprintf("run %s has already finished: %s", r.ID, r.Stands())}
		if undoable := engine.Undoable(ctx, s.store, r); r.Status == state.RunOpen || r.Status == state.RunPartial {
			p.What = "no process is executing run " + r.ID
			p.Fix = strings.TrimSpace(view.Settling(r, undoable))
		} else if undoable {
			p.Fix = "To roll it back: converge rollback " + r.ID
		}
		return p
	}
	switch {
	case id != "":
		_, err := s.run(ctx, id, "no such run: "+id)
		return err
	case holder != nil:
		return &view.Problem{What: "no run is in progress", Where: fmt.Sprintf("%s holds the site lock for another operation: %s", holder.Who, holder.Operation)}
	}
	return &view.Problem{What: "no run is in progress", Fix: "See: converge runs"}
}
