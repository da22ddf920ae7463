package ovs

import (
	"context"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/spec"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
)

// queueSettings are the columns of Queue that are in a spec: all of them.
var queueSettings = []string{"dscp", "external_ids", "other_config"}

// queues is the kind ovs.queue.
type queues struct{}

// queueRows reads all queues, which have no names to ask for.
var queueRows = reading{table: vswitch.QueueTable, row: &vswitch.Queue{}, columns: queueSettings}

func (queues) reads() []reading { return []reading{queueRows, qosRows} }

func (queues) traits(common providers.Traits) providers.Traits { return common }

func (queues) list(v *view) ([]observed, error) {
	var seen []observed
	ids := ids[vswitch.Queue](v)
	for q := range all[vswitch.Queue](v) {
		rest, name, mark := shown(q)
		s := spec.Queue{DSCP: wide(q.DSCP), ExternalIDs: rest, OtherConfig: filled(q.OtherConfig)}
		seen = append(seen, observed{
			Thing: providers.Thing{ID: ids[q.UUID], UID: q.UUID, Name: name, Mark: mark, Spec: s.Object(), Phase: providers.Ready, Passing: passing(q)},
			rows:  []string{q.UUID},
		})
	}
	return seen, nil
}

func (queues) create(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	if err := free[vswitch.Queue](v, name, "queue"); err != nil {
		return err
	}
	q, err := wantedQueue(want, name, mark)
	if err != nil {
		return err
	}
	c.insertAs(vswitch.QueueTable, c.claimUUID(vswitch.QueueTable, name, mark), q, queueSettings...)
	return nil
}

func (queues) update(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	have := called[vswitch.Queue](v, name)
	if err := notOfMachine(have); err != nil {
		return err
	}
	q, err := wantedQueue(want, kept(have, name), mark)
	if err != nil {
		return err
	}
	c.unchanged(vswitch.QueueTable, have.UUID, have, queueSettings...)
	c.update(vswitch.QueueTable, have.UUID, q, queueSettings...)
	return nil
}

// remove deletes the row: the database would keep it. It refuses while a qos refers to the queue, and so does the database.
func (queues) remove(_ context.Context, v *view, c *change, name string) error {
	q := called[vswitch.Queue](v, name)
	var users []string
	for uuid, id := range ids[vswitch.QoS](v) {
		if slices.Contains(slices.Collect(maps.Values(row[vswitch.QoS](v, uuid).Queues)), q.UUID) {
			users = append(users, id)
		}
	}
	if len(users) > 0 {
		return refuse(providers.Invalid, "queue %s is still used by qos %s", name, strings.Join(sorted(users), ", "))
	}
	c.unchanged(vswitch.QueueTable, q.UUID, q, queueSettings...)
	c.delete(vswitch.QueueTable, q.UUID)
	return nil
}

// passing returns why a row is not to be taken over; empty when it may be.
func passing[R nameless](r *R) string {
	if _, ids := labels(r); ids[providers.MarkKey] == "" && ids["vm-id"] != "" {
		return machines
	}
	return ""
}

// notOfMachine refuses to take over a row that libvirt made for a virtual machine.
func notOfMachine[R nameless](r *R) error {
	if uuid, _ := labels(r); passing(r) != "" {
		return refuse(providers.Denied, "%s: %s", uuid, passing(r))
	}
	return nil
}

// wantedQueue returns the desired row of a queue, with its name unless that is empty.
func wantedQueue(want schema.Object, name string, mark providers.Mark) (*vswitch.Queue, error) {
	var s spec.Queue
	if err := read(want, &s); err != nil {
		return nil, err
	}
	ids, err := labelled(s.ExternalIDs, name, mark)
	if err != nil {
		return nil, err
	}
	return &vswitch.Queue{DSCP: narrow(s.DSCP), ExternalIDs: ids, OtherConfig: s.OtherConfig}, nil
}
