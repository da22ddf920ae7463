package command

import (
	"encoding/json"
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
		Short: "List what the site has",
		Long: `Look at everything that the configured providers show, kind by kind, with its health
and state: what converge made, and what it did not. The site itself is not changed;
what was seen is remembered in the store, so that deletions can be told.

With -json the inventory comes in pages, one JSON object a line. Every item has the
revision at which it changed last, also one that is gone. Keep for each thing the item
with the greatest revision, and no page that comes late brings back what is deleted.
With -since-revision=N only what changed after N is listed.

It exits with 8 when a part of the site could not be seen, also because the server does
not support a kind; every page says which.`,
		Example: `  converge inventory
  converge inventory -json -page-size=25
  converge inventory -json -since-revision=41`,
	}
	c.Flags().IntVar(&size, "page-size", 100, "how many items a page has, a `n`umber")
	c.Flags().Int64Var(&since, "since-revision", 0, "only what changed after this `revision`")
	c.RunE = func(c *cobra.Command, args []string) error {
		if size < 1 {
			return &view.Problem{What: fmt.Sprintf("-page-size is %d: want at least 1", size)}
		}
		if since < 0 {
			return &view.Problem{What: fmt.Sprintf("-since-revision is %d: want no less than 0", since)}
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
		needs, err := s.offers()
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
		line, err := json.Marshal(inventoryPage{
			FormatVersion: "1.0", Site: inv.Site, Revision: inv.Revision, Since: inv.Since, At: inv.At.Format("2006-01-02T15:04:05.000Z07:00"),
			Page: i + 1, Pages: len(parts), Complete: inv.Complete, Unknown: nonNil(inv.Unknown), Items: part,
		})
		if err != nil {
			return err
		}
		a.print(string(line) + "\n")
	}
	return nil
}
