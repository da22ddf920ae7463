package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

// A draining is how a node is taken out of service.
type draining struct {
	node, reason string
	wait         time.Duration
	undo, force  bool
}

// drained precedes the reason of the hold of a node that is out of service.
const drained = "out of service"

// drainPause is how often drain looks whether steps are still in progress.
const drainPause = 250 * time.Millisecond

func (a *app) agentDrainCommand() *cobra.Command {
	var d draining
	c := &cobra.Command{
		Use: "drain NODE", Short: "Take a node out of service", Args: exactly(1),
		Long: `Put a node on hold, so that no step begins there any more, in no run, and wait until no
step is in progress there. Then it can be restarted or repaired; what it has stays as it
is. With -undo its hold ends, and what has changed meanwhile is put right.

If interrupted, or after -wait, the command stops waiting, and the hold stays. A step of a
run that nobody carries out counts as in progress, since it may have its effect later:
converge resume settles it. With -undo only the hold of drain is released, not those that
runs or people have set on the node.`,
		Example: `  converge agent drain gpu-07 -reason="disk is being replaced"
  converge agent drain gpu-07 -undo`,
		ValidArgsFunction: a.completeNodes,
	}
	c.Flags().StringVar(&d.reason, "reason", "", "`reason`, shown to anyone the hold stops")
	c.Flags().DurationVar(&d.wait, "wait", 0, "wait at most this `duration`; default: until nothing is in progress")
	c.Flags().BoolVar(&d.undo, "undo", false, "put the node back into service")
	c.Flags().BoolVar(&d.force, "force", false, "drain the node even if nothing by that name is known")
	c.MarkFlagsMutuallyExclusive("undo", "wait")
	c.MarkFlagsMutuallyExclusive("undo", "force")
	c.RunE = func(c *cobra.Command, args []string) error {
		if d.node = args[0]; strings.ContainsAny(d.node, "/: ") || d.node == schema.ScopeSite {
			return &view.Problem{What: fmt.Sprintf("invalid node %q", d.node), Fix: "Use the name of a node. For anything else: converge hold set"}
		}
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		if d.undo {
			return s.undrain(c.Context(), d)
		}
		return s.drain(c.Context(), d)
	}
	return c
}

// holdOf returns the hold that was set by hand on a scope, nil when there is none, and the holds that it is one of.
func (s *session) holdOf(ctx context.Context, scope string) (*state.Hold, *state.Stops, error) {
	stops, err := s.store.Stops(ctx)
	if err != nil {
		return nil, nil, err
	}
	if i := slices.IndexFunc(stops.Holds, func(h state.Hold) bool { return h.Scope == scope && h.ByHand() }); i >= 0 {
		return &stops.Holds[i], stops, nil
	}
	return nil, stops, nil
}

// byDrain reports whether drain has set a hold.
func byDrain(h *state.Hold) bool {
	rest, ok := strings.CutPrefix(h.Reason, drained)
	return ok && (rest == "" || strings.HasPrefix(rest, ": "))
}

func (s *session) drain(ctx context.Context, d draining) error {
	if !d.force {
		if err := s.mustKnow(ctx, d.node); err != nil {
			return err
		}
	}
	held, _, err := s.holdOf(ctx, d.node)
	if err != nil {
		return err
	}
	reason := drained
	if d.reason != "" {
		reason += ": " + d.reason
	}
	back := "converge agent drain -undo " + d.node
	switch {
	case held != nil && !byDrain(held):
		back = "converge hold release " + d.node
		s.view.Note(fmt.Sprintf("Node %s was on hold already, and keeps that hold: %s", d.node, held.Reason))
	case held == nil || d.reason != "" && held.Reason != reason: // drained again, it keeps its reason
		if err := s.store.Hold(ctx, d.node, who(), reason); err != nil {
			return err
		}
		s.acted = true
	}
	busy, err := s.untilIdle(ctx, d)
	switch {
	case ctx.Err() != nil && s.signal.Load() != nil:
		s.view.Note(fmt.Sprintf("No longer waiting. The hold on node %s stays; steps may still be in progress there. To wait again: converge agent drain %[1]s. To release the hold: %[2]s", d.node, back))
		return outcome(s.interrupted())
	case errors.Is(err, errNotDrained):
		return &view.Problem{
			What: fmt.Sprintf("node %s is not drained after %v; the hold stays", d.node, d.wait), Where: busyText(busy),
			Fix: "Run the command again to wait longer. A step of a run that nobody carries out is settled by converge resume.", Err: err,
		}
	case err != nil:
		return err
	}
	return s.did(false, map[string]any{"node": d.node, "drained": true},
		fmt.Sprintf("Node %s is drained: nothing is in progress there, and nothing begins. It can be taken out of service.\nTo put it back: %s\n", d.node, back))
}

// untilIdle waits until no step is in progress on a node, and tells what it waits for. It fails with errNotDrained, and the steps, when that
// takes too long.
func (s *session) untilIdle(ctx context.Context, d draining) (busy []busyStep, err error) {
	bounded := ctx
	if d.wait > 0 {
		var stop func()
		bounded, stop = context.WithTimeoutCause(ctx, d.wait, errNotDrained)
		defer stop()
	}
	told := ""
	err = retry.Policy{First: drainPause}.Do(bounded, func() (bool, error) { // at least once, however short the time is
		now, err := s.busy(ctx, d.node)
		if err != nil || len(now) == 0 {
			return true, err
		}
		busy = now
		if text := busyText(busy); text != told {
			told = text
			s.view.Note(fmt.Sprintf("Node %s is on hold. Waiting for %s in progress:\n%s", d.node, view.Count(len(busy), "step"), text))
		}
		return false, nil
	})
	return busy, err
}

// errNotDrained says that steps are still in progress on a node that was to be drained.
var errNotDrained = errors.New("steps are still in progress")

func (s *session) undrain(ctx context.Context, d draining) error {
	held, stops, err := s.holdOf(ctx, d.node)
	switch {
	case err != nil:
		return err
	case held == nil:
		return s.did(true, map[string]any{"node": d.node, "drained": false}, fmt.Sprintf("Node %s was not drained.\n", d.node))
	case !byDrain(held):
		return &view.Problem{What: fmt.Sprintf("node %s is on hold, but was not drained", d.node), Where: held.Reason, Fix: "To release it all the same: converge hold release " + d.node}
	}
	if err := stops.ReleaseHeld(ctx, *held, who(), d.reason); errors.Is(err, state.ErrGuard) {
		return &view.Problem{What: fmt.Sprintf("the hold on node %s was changed meanwhile", d.node), Fix: "See: converge hold list", Err: err}
	} else if err != nil {
		return err
	}
	return s.did(false, map[string]any{"node": d.node, "drained": false}, fmt.Sprintf("Node %s is in service again. It was %s\n", d.node, held.Reason))
}

// A busyStep is one in progress.
type busyStep struct {
	run  string
	step engine.StepReport
}

// busy lists the steps in progress on a node, also those of a run that nobody carries out: what was sent may still have its effect.
func (s *session) busy(ctx context.Context, node string) (list []busyStep, err error) {
	runs, err := s.store.Runs(ctx)
	if err != nil {
		return nil, err
	}
	open := func(r engine.StepResult) bool {
		return r.Result == engine.StepRunning || r.Result == engine.StepUnknown
	}
	for _, run := range runs {
		if run.Status != state.RunOpen {
			continue
		}
		steps, err := engine.Steps(ctx, s.store, run)
		if err != nil {
			return nil, err
		}
		for _, step := range steps {
			if step.Ref.Scope == node && (open(step.StepResult) || step.Undo != nil && open(*step.Undo)) {
				list = append(list, busyStep{run.ID, step})
			}
		}
	}
	return list, nil
}

func busyText(list []busyStep) string {
	var lines []string
	for _, b := range list {
		lines = append(lines, fmt.Sprintf("  run %s: step %d, %s %s", b.run, b.step.Step+1, b.step.Action, b.step.Ref))
	}
	return strings.Join(lines, "\n")
}

// completeNodes offers the nodes that have enrolled, or may.
func (a *app) completeNodes(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(c, func(ctx context.Context, s *session) (words []string, err error) {
		nodes, err := trust.Nodes(ctx, s.store)
		for i := range nodes {
			words = append(words, nodes[i].Name+"\t"+string(nodes[i].Status()))
		}
		return words, err
	})
}
