package command

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
)

func (a *app) driftCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "drift",
		Short: "Show what was changed outside converge",
		Long: `Look at the site and show how it differs from what was applied last. Nothing is
changed. The report is also written to the store, as drift/latest, for the cloud.

What changed of fields that the document does not state is listed apart, as "unstated"
in JSON: no plan would undo it. It counts since the last run that touched the resource;
what only the server sets (status) does not, and neither do elements of stated lists.
To end it, state in the document how the field is to be, or undo the change there; or,
where it is nobody's business, name the field in lifecycle.ignore and apply that: what
is ignored is no drift, stated or not. What a thing is called there is compared as well,
as "name": like the resource, or as it was when it was taken over by its id.

What a run itself left half done, or half undone, is no drift: it is compared with how
that run saw it last. While the run is open, what it has begun with is left aside.

It exits with 0 when there is no drift, with 2 when there is of either sort, and with 8
when a part of the site could not be seen.`,
		Example: `  converge drift
  converge drift -json`,
		Args: exactly(0),
	}
	a.bindFull(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx := c.Context()
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		head, err := s.head(ctx)
		if err != nil {
			return err
		}
		if head.Site.ID == "" {
			return s.noDocument(nil)
		}
		s.headline("what was applied last")
		e, err := s.engine()
		if err != nil {
			return err
		}
		external, err := s.external(ctx)
		if err != nil {
			return err
		}
		r, err := e.Drift(ctx, head.Site, external...)
		if err != nil {
			return err
		}
		r = view.MaskDrift(r, a.kinds)
		body, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if err := s.store.Publish(ctx, "drift/latest", body); err != nil {
			a.view.Warn("the report was not published: " + err.Error())
		}
		if a.flags.json {
			err = a.printJSON(r)
		} else {
			a.print(view.DriftText(r, a.kinds, a.style(a.sys.Stdout), a.flags.layout))
		}
		switch {
		case err != nil:
			return err
		case !r.Complete:
			return outcome(exitUnknown)
		case !r.Clean():
			return outcome(exitDifferent)
		}
		return nil
	}
	return c
}
