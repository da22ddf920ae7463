package ovs

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/ovn-org/libovsdb/ovsdb"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/vswitch"
)

// epochKey returns the key of the site's epoch in the database, in external_ids of its only row of Open_vSwitch.
func (d *db) epochKey() string { return "converge.dev/epoch/" + d.Site }

// epoch returns the epoch in a view; 0 when no lock holder has stored one.
func (d *db) epoch(v *view) (int64, error) {
	text, ok := v.root.ExternalIDs[d.epochKey()]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, refuse(providers.Denied, "external_ids of Open_vSwitch contain %s=%q, which is not an epoch", d.epochKey(), text)
	}
	return n, nil
}

// identity returns the UUID of the only row of Open_vSwitch: a recreated database has another.
func (d *db) identity(ctx context.Context) (string, error) {
	v, err := d.view(ctx, nil, nil)
	if err != nil {
		return "", &fault{providers.Transient, err}
	}
	return v.root.UUID, nil
}

func outdated(stored, epoch int64) error {
	return &fault{providers.Denied, &providers.OutdatedError{On: "the switch", Stored: stored, Epoch: epoch}}
}

// fenced makes a change happen only while no lock holder with a higher epoch has stored it.
func (c *change) fenced(v *view, epoch int64) error {
	stored, err := c.db.epoch(v)
	switch {
	case err != nil:
		return err
	case stored > epoch:
		return outdated(stored, epoch)
	}
	c.guard(refuse(providers.Transient, "another lock holder has just taken over the switch, or its external_ids have just been changed"),
		vswitch.OpenvSwitchTable, uuidIs(c.root), ovsdb.WaitConditionEqual, c.row(v.root, []string{"external_ids"}))
	c.lease = len(c.ops)
	return nil
}

// fence stores an epoch.
func (d *db) fence(ctx context.Context, epoch int64) error {
	const tries = 5 // each retry means that another client wrote to the same row
	var err error
	for range tries {
		err = d.fenceOnce(ctx, epoch)
		var f *fault
		if !errors.As(err, &f) || f.class != providers.Conflict {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("store epoch %d on node %s: %w", epoch, d.Node, err)
	}
	return nil
}

func (d *db) fenceOnce(ctx context.Context, epoch int64) error {
	v, err := d.view(ctx, nil, nil)
	if err != nil {
		return &fault{providers.Transient, err}
	}
	stored, err := d.epoch(v)
	switch {
	case err != nil:
		return err
	case stored > epoch:
		return outdated(stored, epoch)
	case stored == epoch:
		return nil
	}
	c := &change{db: d, root: v.root.UUID, means: map[int]error{}}
	c.unchanged(vswitch.OpenvSwitchTable, c.root, v.root, "external_ids")
	key := d.epochKey()
	c.mutate(vswitch.OpenvSwitchTable, c.root, "external_ids", ovsdb.MutateOperationDelete, ovsdb.OvsSet{GoSet: []any{key}})
	c.mutate(vswitch.OpenvSwitchTable, c.root, "external_ids", ovsdb.MutateOperationInsert, ovsdb.OvsMap{GoMap: map[any]any{key: strconv.FormatInt(epoch, 10)}})
	durable := true
	c.ops = append(c.ops, ovsdb.Operation{Op: ovsdb.OperationCommit, Durable: &durable})
	if c.err != nil {
		return &fault{providers.Invalid, c.err}
	}
	conn, err := d.connect(ctx)
	if err != nil {
		return &fault{providers.Transient, err}
	}
	results, err := d.transact(ctx, conn, c.ops)
	if err != nil {
		return unanswered(err)
	}
	return c.check(results)
}
