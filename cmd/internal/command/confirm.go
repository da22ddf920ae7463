package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/state"
)

func (a *app) confirmCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "confirm RUN",
		Short: "Confirm a run that was started with apply -confirm",
		Long: `Confirm that what a run has changed is to stay. A run that was started with converge
apply -confirm=DURATION is rolled back otherwise.

The run ends once the nodes that it may have cut off have been reached over new
connections: the command waits for that, and exits with 0 when the run is applied, 9 when
it was rolled back all the same, and 4 when it ended partial.

With -json, print one object with run and status.`,
		Example:           `  converge confirm 20261120-121537.042-9f3a01`,
		Args:              exactly(1),
		ValidArgsFunction: a.completeRuns,
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		return s.confirm(c.Context(), args[0])
	}
	return c
}

func (s *session) confirm(ctx context.Context, id string) error {
	run, err := s.run(ctx, id, "no such run: "+id)
	if err != nil {
		return err
	}
	switch {
	case run.Status != state.RunOpen:
		return &view.Problem{What: fmt.Sprintf("run %s has already finished: %s", id, run.Stands())}
	case run.Confirm == 0:
		return &view.Problem{What: "run " + id + " needs no confirmation", Where: "it was not started with converge apply -confirm"}
	}
	gone := &view.Problem{What: "no process is executing run " + id, Where: "the one that would have received the confirmation has ended", Fix: "Roll the run back: converge resume " + id}
	holder, err := s.store.LockInfo(ctx)
	switch {
	case err != nil:
		return err
	case holder == nil || holder.Run != id:
		return gone
	case !strings.HasPrefix(holder.Info, apply.Confirming):
		return &view.Problem{What: "run " + id + " is still in progress", Where: cmp.Or(holder.Info, "it does not wait to be confirmed yet"), Fix: "Confirm it once all of its steps are done."}
	}
	if err := s.store.Ask(ctx, state.ToConfirm, *holder, who()); errors.Is(err, state.ErrGuard) {
		return gone
	} else if err != nil {
		return err
	}
	s.view.Note(fmt.Sprintf("Told %s (PID %d) that run %s is confirmed; waiting for it to end.", holder.Who, holder.PID, id))
	err = retry.Policy{First: cancelPause, Cap: time.Second}.Do(ctx, func() (over bool, err error) {
		now, err := s.store.LockInfo(ctx)
		return err != nil || now == nil || now.ID != holder.ID, err
	})
	switch {
	case ctx.Err() != nil && s.signal.Load() != nil:
		return outcome(s.interrupted())
	case err != nil:
		return err
	}
	if run, err = s.run(ctx, id, "no such run: "+id); err != nil {
		return err
	}
	s.acted = true
	if s.flags.json {
		if err := s.printJSON(map[string]any{"run": run.ID, "status": run.Status}); err != nil {
			return err
		}
	} else {
		s.print(fmt.Sprintf("Run %s ended %s.\n", run.ID, run.Stands()))
	}
	switch {
	case run.Status == state.RunApplied:
		return nil
	case run.Status == state.RunReverted && run.Unconfirmed:
		return outcome(exitUnconfirmed)
	case run.Status == state.RunReverted:
		return outcome(exitReverted)
	}
	return outcome(exitPartial)
}
