package command

import (
	"errors"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/state"
)

func (a *app) lockCommand() *cobra.Command {
	status := &cobra.Command{
		Use: "status", Short: "Show who holds the site lock", Args: exactly(0),
		Long: `Show who holds the site lock, and what that process is doing; and which site agent keeps
the site, where there is one (converge serve).`,
		Example: "  converge lock status",
	}
	status.RunE = func(c *cobra.Command, _ []string) error {
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		info, err := s.store.LockInfo(c.Context())
		if err != nil {
			return err
		}
		keeper, err := s.store.Kept(c.Context())
		if err != nil {
			return err
		}
		if a.flags.json {
			return a.printJSON(map[string]any{"locked": info != nil, "lock": info, "keeper": keeper})
		}
		a.print(view.LockText(s.store.Path(), info) + view.KeeperText(keeper))
		return nil
	}
	return group("lock", "Show the site lock", "Only one process at a time can change a site: the one that holds the site lock.", status)
}

func (a *app) forceUnlockCommand() *cobra.Command {
	var force bool
	var reason string
	c := &cobra.Command{
		Use:   "force-unlock ID",
		Short: "Break the lock of a process that is gone",
		Long: `Break the lock with that ID. Anything its holder still tries to write is then refused,
but a call already in progress may still take effect: make sure first that the process
is gone. Who broke the lock, and why, is kept in the audit log. A lock that cannot be
read, because its value in the store is corrupt, has the ID damaged.`,
		Example: `  converge force-unlock 8b1f4a0e-6f0c-4d8e-a5f1-0f6a6f1f3a52
  converge force-unlock -force -reason="node lost" 8b1f4a0e-6f0c-4d8e-a5f1-0f6a6f1f3a52`,
		Args: exactly(1),
	}
	c.Flags().BoolVar(&force, "force", false, "do not ask for confirmation")
	c.Flags().StringVar(&reason, "reason", "", "record `reason` in the audit log")
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		info, err := s.store.LockInfo(ctx)
		if errors.As(err, new(*state.DamagedError)) {
			info, err = &state.LockInfo{ID: state.DamagedLock}, nil
		}
		if err != nil {
			return err
		}
		if info == nil || info.ID != args[0] {
			p := &view.Problem{What: "there is no lock with ID " + args[0], Fix: "See: converge lock status"}
			if info != nil {
				p.Where = "the current lock has ID " + info.ID
			}
			return p
		}
		if err := a.mayAsk(force, "If you are sure that its holder is gone, use -force."); err != nil {
			return err
		}
		if !force {
			if info.Who == "" {
				a.print("The site lock is corrupt: its holder cannot be read.\n")
			} else {
				a.print(view.LockText(s.store.Path(), info))
			}
			if err := a.ask(ctx, "Do you really want to break this lock?\n  Its holder can write nothing more, but calls in progress may still take effect.", "force-unlock cancelled."); err != nil {
				return err
			}
		}
		if err := s.store.ForceUnlock(ctx, args[0], who(), reason); err != nil {
			if errors.Is(err, state.ErrGuard) || errors.Is(err, state.ErrNotFound) {
				return &view.Problem{What: "the lock has already been released", Where: err.Error(), Err: err}
			}
			return err
		}
		by := "It was held by " + info.Who + "."
		if info.Who == "" {
			by = "It was corrupt, so its holder is not known."
		}
		text := "The lock was broken. " + by + "\nIf a run is still open, resume it: converge resume\n"
		return a.did(false, map[string]any{"unlocked": info}, text)
	}
	return c
}
