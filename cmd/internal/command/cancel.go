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
		Short: "End a run that another process carries out",
		Long: `Ask the process that carries out a run to end it, as Ctrl-C there would: calls in
flight end, what is only waited for is dropped, nothing more is started, and the run
stays open. It is asked through the store, wherever it runs, and obeys within seconds.
Then say what became of the run: converge resume goes on with it, converge rollback
undoes it where that can be done. With a RUN nothing but that run is cancelled.

With -json there is one object, with run, status, steps, done and cancelled. That is
false when the process did not end the run because it was asked: the run had come to
its end before, or the process was lost.

Interrupted, the command stops waiting; what it asked for still stands.`,
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
	if err := s.store.Cancel(ctx, *holder, who()); errors.Is(err, state.ErrGuard) { // it has ended meanwhile
		return s.notRunning(ctx, holder.Run, nil)
	} else if err != nil {
		return err
	}
	s.view.Note(fmt.Sprintf("Asked %s (PID %d) to end run %s; waiting until what is under way has ended.", holder.Who, holder.PID, holder.Run))
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
		s.print(fmt.Sprintf("Run %s had come to its end before: it ended %s.\n", run.ID, run.Stands()))
		return nil
	}
	became := fmt.Sprintf("Run %s is cancelled: %d of %s done, and the journal is intact.\n", run.ID, run.Done, view.Count(run.Steps, "step"))
	if run.Cancelled != holder.Epoch {
		became = fmt.Sprintf("Run %s was left, not ended in order: %s (PID %d) lost the lock of the site without an answer. It was killed or frozen, or cannot reach the store; it begins nothing more. "+
			"%d of %s done; what was under way is found out when the run is resumed or rolled back.\n", run.ID, holder.Who, holder.PID, run.Done, view.Count(run.Steps, "step"))
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
		p := &view.Problem{What: fmt.Sprintf("run %s has ended %s", r.ID, r.Stands())}
		if undoable := engine.Undoable(ctx, s.store, r); r.Status == state.RunOpen || r.Status == state.RunPartial {
			p.What = "no process carries out run " + r.ID
			p.Fix = strings.TrimSpace(view.Settling(r, undoable))
		} else if undoable {
			p.Fix = "To undo it: converge rollback " + r.ID
		}
		return p
	}
	switch {
	case id != "":
		_, err := s.run(ctx, id, "there is no run "+id)
		return err
	case holder != nil:
		return &view.Problem{What: "no run is under way", Where: fmt.Sprintf("%s holds the lock of the site for another operation: %s", holder.Who, holder.Operation)}
	}
	return &view.Problem{What: "no run is under way", Fix: "See: converge runs"}
}
