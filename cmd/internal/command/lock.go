package command

import (
	"errors"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/state"
)

func (a *app) lockCommand() *cobra.Command {
	status := &cobra.Command{
		Use: "status", Short: "Show who holds the lock of the site", Args: exactly(0),
		Long:    "Show who holds the lock of the site, and what that process is doing.",
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
		if a.flags.json {
			return a.printJSON(map[string]any{"locked": info != nil, "lock": info})
		}
		a.print(view.LockText(s.store.Path(), info))
		return nil
	}
	return group("lock", "Show who works on the site", "One process at a time changes a site. It holds the lock of the site.", status)
}

func (a *app) forceUnlockCommand() *cobra.Command {
	var force bool
	var reason string
	c := &cobra.Command{
		Use:   "force-unlock ID",
		Short: "Break the lock of a process that is gone",
		Long: `Break the lock with that ID. What its holder still tries to write is refused from then
on, but a call that it has under way may still have its effect: make sure first that
the process is gone. Who did it, and why, is kept in the audit log. A lock that cannot be
read, because its value in the store is damaged, has the ID damaged.`,
		Example: `  converge force-unlock 8b1f4a0e-6f0c-4d8e-a5f1-0f6a6f1f3a52
  converge force-unlock -force -reason="node lost" 8b1f4a0e-6f0c-4d8e-a5f1-0f6a6f1f3a52`,
		Args: exactly(1),
	}
	c.Flags().BoolVar(&force, "force", false, "do not ask")
	c.Flags().StringVar(&reason, "reason", "", "`why`, for the audit log")
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
			p := &view.Problem{What: "there is no lock with the id " + args[0], Fix: "See: converge lock status"}
			if info != nil {
				p.Where = "the lock is held under the id " + info.ID
			}
			return p
		}
		if err := a.mayAsk(force, "Give -force when you are sure that its holder is gone."); err != nil {
			return err
		}
		if !force {
			if info.Who == "" {
				a.print("The lock of the site is damaged: who holds it cannot be read.\n")
			} else {
				a.print(view.LockText(s.store.Path(), info))
			}
			if err := a.ask(ctx, "Do you really want to break this lock?\n  Its holder can write nothing more, but what it has under way may still happen.", "force-unlock cancelled."); err != nil {
				return err
			}
		}
		if err := s.store.ForceUnlock(ctx, args[0], who(), reason); err != nil {
			if errors.Is(err, state.ErrGuard) || errors.Is(err, state.ErrNotFound) {
				return &view.Problem{What: "the lock was given back meanwhile", Where: err.Error(), Err: err}
			}
			return err
		}
		by := "It was held by " + info.Who + "."
		if info.Who == "" {
			by = "It was damaged, so who held it is not known."
		}
		text := "The lock was broken. " + by + "\nIf a run is open, settle it with: converge resume\n"
		return a.did(false, map[string]any{"unlocked": info}, text)
	}
	return c
}
