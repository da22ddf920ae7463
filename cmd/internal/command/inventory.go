package command

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/schema"
)

// An inventoryPage is one line of the JSON inventory.
type inventoryPage struct {
	FormatVersion string         `json:"format_version"`
	Site          schema.Site    `json:"site"`
	Revision      int64          `json:"revision"`
	Since         int64          `json:"since_revision,omitempty"`
	At            string         `json:"at"`
	Page          int            `json:"page"` // from 1
	Pages         int            `json:"pages"`
	Complete      bool           `json:"complete"` // every kind was observed completely
	Unknown       []plan.Unknown `json:"unknown"`
	Items         []survey.Item  `json:"items"`
}

func (a *app) inventoryCommand() *cobra.Command {
	var size int
	var since int64
	c := &cobra.Command{
		Use:   "inventory [DOC...]",
		Short: "List the objects of the site",
		Long: `Observe everything the configured providers expose, kind by kind, with its health and
state, whether converge created it or not. The site itself is not changed; what was
observed is recorded in the store, so that deletions can be reported.

With -json the inventory is written in pages, one JSON object per line. Every item has
the revision at which it last changed, including deleted ones. For each object, keep the
item with the greatest revision: a page that arrives late then cannot bring back a
deleted object. With -since-revision=N only changes after N are listed.

It exits with 8 when part of the site could not be observed, or the server does not
support a kind; every page says which.`,
		Example: `  converge inventory
  converge inventory -json -page-size=25
  converge inventory -json -since-revision=41`,
	}
	c.Flags().IntVar(&size, "page-size", 100, "maximum `n`umber of items per page")
	c.Flags().Int64Var(&since, "since-revision", 0, "list only what changed after this `revision`")
	c.RunE = func(c *cobra.Command, args []string) error {
		if size < 1 {
			return &view.Problem{What: fmt.Sprintf("invalid -page-size %d: want at least 1", size)}
		}
		if since < 0 {
			return &view.Problem{What: fmt.Sprintf("invalid -since-revision %d: want 0 or more", since)}
		}
		ctx := c.Context()
		m := refuse
		if len(args) > 0 {
			m = pretend // there is nothing to compare with: everything is new
		}
		s, of, err := a.whose(ctx, args, m)
		if err != nil {
			return err
		}
		needs, err := s.offers(ctx)
		if err != nil {
			return err
		}
		e, err := s.engine()
		if err != nil {
			return err
		}
		inv, err := e.Inventory(ctx, of.Site, needs, since)
		if err != nil {
			return err
		}
		if a.flags.json {
			err = a.printPages(inv, size)
		} else {
			a.print(view.InventoryText(inv, a.style(a.sys.Stdout)))
		}
		if err == nil && !inv.Complete {
			return outcome(exitUnknown)
		}
		return err
	}
	return c
}

// printPages prints one line per page; an empty inventory has one.
func (a *app) printPages(inv *survey.Inventory, size int) error {
	parts := slices.Collect(slices.Chunk(inv.Items, size))
	if len(parts) == 0 {
		parts = [][]survey.Item{{}}
	}
	for i, part := range parts {
		for j := range part {
			part[j] = view.MaskItem(part[j], a.kinds[part[j].Kind])
		}
		err := a.printLine(inventoryPage{
			FormatVersion: "1.0", Site: inv.Site, Revision: inv.Revision, Since: inv.Since, At: inv.At.Format(instant),
			Page: i + 1, Pages: len(parts), Complete: inv.Complete, Unknown: nonNil(inv.Unknown), Items: part,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
