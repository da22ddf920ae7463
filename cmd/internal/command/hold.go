package command

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/state"
)

func (a *app) holdCommand() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List what is held, and why", Long: "List the holds of the site: each stops new runs until it is released.",
		Example: "  converge hold list", Args: exactly(0),
	}
	list.RunE = func(c *cobra.Command, _ []string) error {
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		holds, err := s.holds(c.Context())
		if err != nil {
			return err
		}
		if a.flags.json {
			return a.printJSON(map[string]any{"holds": nonNil(holds)})
		}
		a.print(view.HoldsText(holds, a.style(a.sys.Stdout)))
		return nil
	}
	release := &cobra.Command{
		Use: "release SCOPE", Short: "Let runs go on", Args: exactly(1),
		Long: `Release the hold of a scope: the site, a node's name, or a ref. A run that ended
partial holds the site; resuming it or rolling it back releases the hold as well.`,
		Example: "  converge hold release site",
	}
	release.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		holds, err := s.store.Holds(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(holds, func(h state.Hold) bool { return h.Scope == args[0] })
		if i < 0 {
			return &view.Problem{What: args[0] + " is not held", Fix: "See: converge hold list"}
		}
		if _, err := s.store.Commit(ctx, nil, []state.Op{s.store.ReleaseOp(args[0])}); err != nil {
			return err
		}
		if a.flags.json {
			return a.printJSON(map[string]any{"released": holds[i]})
		}
		a.print(fmt.Sprintf("Released %s, which was held: %s\n", args[0], holds[i].Reason))
		return nil
	}
	return group("hold", "List and release what stops new runs", "A hold stops new runs on the site, on a node or on one resource.", list, release)
}

// holds gives the holds, and the freeze of the site if there is one.
func (s *session) holds(ctx context.Context) ([]state.Hold, error) {
	holds, err := s.store.Holds(ctx)
	if err != nil {
		return nil, err
	}
	frozen, err := s.store.Frozen(ctx)
	if frozen != nil {
		frozen.Scope = "everything (frozen)"
		holds = append(holds, *frozen)
	}
	return holds, err
}
