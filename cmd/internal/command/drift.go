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
		Long: `Observe the site and show how it differs from what was last applied. Nothing is changed.
The report is also written to the store, as drift/latest, for the cloud.

Changes to fields that the document does not state are listed separately, as "unstated"
in JSON: no plan would change them back. They count from the last run that touched the
resource; fields that only the server sets (status) and elements of stated lists do not
count. To clear such a change, state the field in the document, or undo the change at
the site; or, if the field does not matter, add it to lifecycle.ignore and apply that:
ignored fields never count as drift, stated or not. The name of the object is compared
as well, as "name": with that of the resource, or with the one it had when it was
adopted by its id.

What a run itself left half done, or half reverted, is not drift: it is compared with
what that run observed last. While the run is open, whatever it has started is skipped.

It exits with 0 when there is no drift, with 2 when there is drift of either kind, and
with 8 when a part of the site could not be observed.`,
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
		s.headline("last applied state")
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
