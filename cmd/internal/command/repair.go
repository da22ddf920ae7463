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
		Use: "repair", Short: "Repair corrupt data in the store", Args: exactly(0),
		Long: `Repair what cannot be read in the store, from the rest of the store where possible. The
head of the document becomes its newest intact revision. A record becomes what the newest
run that touched the resource made of it; without such a run it is dropped, and state
rebuild finds the object by its mark. A finished run is forgotten. An unfinished one is
left unless -abandon gives it up: then the site is on hold until someone has checked it.
Values that are recreated automatically are forgotten, such as the identity of a server:
before the next apply, make sure that the right server answers. What only a backup or
another command can fix is listed with what to do, and the command exits with 7.

The site itself is not touched. To break a lock that cannot be read, use force-unlock. A
hold or a freeze that cannot be read stays in effect until hold release or freeze -off.`,
		Example: `  converge state repair -dry-run
  converge state repair -reason="bad sector"`,
	}
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "only show what would be done")
	c.Flags().BoolVar(&o.Abandon, "abandon", false, "also give up unfinished runs")
	c.Flags().StringVar(&o.Reason, "reason", "", "record `reason` in the audit log")
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
