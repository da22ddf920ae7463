package command

import (
	"slices"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
)

func (a *app) stateRepairCommand() *cobra.Command {
	var o engine.RepairOptions
	c := &cobra.Command{
		Use: "repair", Short: "Mend what is damaged in the store", Args: exactly(0),
		Long: `Mend what cannot be read of the store, as far as the rest of the store tells. The head of
the document becomes its newest revision that is whole. A record becomes what the newest
run that touched the resource made of it; without such a run it is dropped, and state
rebuild finds the thing by its mark. A run that ended is forgotten. One that did not end is
left, unless -abandon gives it up: then the site is held until somebody has looked at it.
What comes anew by itself is forgotten, such as how a server called itself: make sure
before the next apply that the right one answers. What only a backup or another command
mends is listed with what to do, and the command ends with 7.

The site itself is not touched. A lock that cannot be read is broken with force-unlock. A
hold or a freeze that cannot be read is obeyed, and ends with release and freeze -off.`,
		Example: `  converge state repair -dry-run
  converge state repair -reason="bad sector"`,
	}
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "only say what would be done")
	c.Flags().BoolVar(&o.Abandon, "abandon", false, "also give up runs that did not end")
	c.Flags().StringVar(&o.Reason, "reason", "", "`why`, for the audit log")
	c.RunE = func(c *cobra.Command, _ []string) error {
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		e, err := s.engine()
		if err != nil {
			return err
		}
		repairs, err := e.Repair(c.Context(), o)
		if err != nil {
			return err
		}
		err = a.did(o.DryRun, map[string]any{"repairs": nonNil(repairs), "dry_run": o.DryRun}, view.RepairsText(repairs, o.DryRun))
		if err == nil && slices.ContainsFunc(repairs, func(r engine.Repair) bool { return r.Left }) {
			return outcome(exitRefused)
		}
		return err
	}
	return c
}
