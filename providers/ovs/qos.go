package ovs

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/spec"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
)

// qosSettings are the columns of QoS that are in a spec: all of them.
var qosSettings = []string{"external_ids", "other_config", "queues", "type"}

// qoses is the kind ovs.qos.
type qoses struct{}

// qosRows reads all rows of QoS, which have no names to ask for.
var qosRows = reading{table: vswitch.QoSTable, row: &vswitch.QoS{}, columns: qosSettings}

// reads has the ports because a qos that one of them has is not deleted.
func (qoses) reads() []reading {
	return []reading{qosRows, queueRows, {table: vswitch.PortTable, row: &vswitch.Port{}, columns: []string{"name", "qos"}}}
}

func (qoses) traits(common providers.Traits) providers.Traits { return common }

func (qoses) list(v *view) ([]observed, error) {
	var seen []observed
	ids, queues := ids[vswitch.QoS](v), ids[vswitch.Queue](v)
	for q := range all[vswitch.QoS](v) {
		rest, name, mark := shown(q)
		numbered := make(map[string]string, len(q.Queues))
		for n, uuid := range q.Queues {
			id, ok := queues[uuid]
			if !ok { // which no intact database has
				return nil, fmt.Errorf("qos %s refers to queue %s, which is not in the database", q.UUID, uuid)
			}
			numbered[strconv.Itoa(n)] = id
		}
		s := spec.QoS{ExternalIDs: rest, OtherConfig: filled(q.OtherConfig), Queues: numbered, Type: q.Type}
		seen = append(seen, observed{
			Thing: providers.Thing{ID: ids[q.UUID], UID: q.UUID, Name: name, Mark: mark, Spec: s.Object(), Phase: providers.Ready, Passing: passing(q)},
			rows:  []string{q.UUID},
		})
	}
	return seen, nil
}

func (qoses) create(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	if err := free[vswitch.QoS](v, name, "qos"); err != nil {
		return err
	}
	q, err := wantedQoS(v, c, want, name, mark)
	if err != nil {
		return err
	}
	c.insertAs(vswitch.QoSTable, c.claimUUID(vswitch.QoSTable, name, mark), q, qosSettings...)
	return nil
}

func (qoses) update(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	have := called[vswitch.QoS](v, name)
	if err := notOfMachine(have); err != nil {
		return err
	}
	q, err := wantedQoS(v, c, want, kept(have, name), mark)
	if err != nil {
		return err
	}
	c.unchanged(vswitch.QoSTable, have.UUID, have, qosSettings...)
	c.update(vswitch.QoSTable, have.UUID, q, qosSettings...)
	return nil
}

// remove deletes the row: the database would keep it. It refuses while a port has the qos, and so does the database.
func (qoses) remove(_ context.Context, v *view, c *change, name string) error {
	q := called[vswitch.QoS](v, name)
	var users []string
	for p := range all[vswitch.Port](v) {
		if value(p.QOS) == q.UUID {
			users = append(users, p.Name)
		}
	}
	if len(users) > 0 {
		return refuse(providers.Invalid, "qos %s is still used by port %s", name, strings.Join(sorted(users), ", "))
	}
	c.unchanged(vswitch.QoSTable, q.UUID, q, qosSettings...)
	c.delete(vswitch.QoSTable, q.UUID)
	return nil
}

// wantedQoS returns the desired row of a qos, with its name unless that is empty, and guards that its queues stay.
func wantedQoS(v *view, c *change, want schema.Object, name string, mark providers.Mark) (*vswitch.QoS, error) {
	var s spec.QoS
	if err := read(want, &s); err != nil {
		return nil, err
	}
	ids, err := labelled(s.ExternalIDs, name, mark)
	if err != nil {
		return nil, err
	}
	q := &vswitch.QoS{ExternalIDs: ids, OtherConfig: s.OtherConfig, Queues: map[int]string{}, Type: s.Type}
	for number, id := range s.Queues {
		n, err := strconv.Atoi(number)
		if err != nil || strconv.Itoa(n) != number {
			return nil, refuse(providers.Invalid, "%q is not the number of a queue", number)
		}
		queue := called[vswitch.Queue](v, id)
		if queue == nil {
			return nil, refuse(providers.Absent, "queue %s does not exist", id)
		}
		c.exists(vswitch.QueueTable, queue.UUID, "queue "+id)
		q.Queues[n] = queue.UUID
	}
	return q, nil
}
