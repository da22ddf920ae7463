package ovs

import (
	"cmp"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/vswitch"
	"github.com/google/uuid"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// nameKey is the key of external_ids that holds the name of a row of a table without a column for one. The name in the
// mark cannot take its place, because an update may take the mark away.
const nameKey = "converge.dev/name"

// A nameless row is of a table that has no column for names.
type nameless interface {
	vswitch.Controller | vswitch.QoS | vswitch.Queue
}

// labels returns the UUID and the external_ids of a row.
func labels[R nameless](r *R) (uuid string, ids map[string]string) {
	switch r := any(r).(type) {
	case *vswitch.Controller:
		return r.UUID, r.ExternalIDs
	case *vswitch.QoS:
		return r.UUID, r.ExternalIDs
	case *vswitch.Queue:
		return r.UUID, r.ExternalIDs
	}
	return "", nil
}

// ids returns the id of each row, by its UUID: its name, or the UUID when it has none, or one that does not tell it from others.
// One with a mark keeps its name whatever those without are called.
func ids[R nameless](v *view) map[string]string {
	namesakes := map[string]int{}
	marked := map[string]int{}
	for r := range all[R](v) {
		_, ids := labels(r)
		namesakes[ids[nameKey]]++
		if ids[providers.MarkKey] != "" {
			marked[ids[nameKey]]++
		}
	}
	out := map[string]string{}
	for r := range all[R](v) {
		uuid, ids := labels(r)
		name, rivals := ids[nameKey], namesakes
		if ids[providers.MarkKey] != "" {
			rivals = marked
		}
		if out[uuid] = uuid; name != "" && rivals[name] == 1 {
			out[uuid] = name
		}
	}
	return out
}

// called returns the row with an id; nil when there is none.
func called[R nameless](v *view, id string) *R {
	for uuid, is := range ids[R](v) {
		if is == id {
			return row[R](v, uuid)
		}
	}
	return nil
}

// free refuses a name that a row has, whether or not it is its id.
func free[R nameless](v *view, name, what string) error {
	if find(v, func(r *R) bool { uuid, ids := labels(r); return ids[nameKey] == name || uuid == name }) != nil {
		return refuse(providers.Exists, "the name %s is taken by another %s", name, what)
	}
	return nil
}

// shown splits external_ids into what a spec has of them, the name of the thing, and its mark.
func shown[R nameless](r *R) (rest map[string]string, name string, mark providers.Mark) {
	uuid, ids := labels(r)
	rest, mark = unmarked(ids)
	name = cmp.Or(rest[nameKey], uuid)
	delete(rest, nameKey)
	return rest, name, mark
}

// kept returns the name that a row keeps in an update: none when that is not its id, so that a mark does not change the id.
func kept[R nameless](r *R, id string) string {
	if _, ids := labels(r); ids[nameKey] == id {
		return id
	}
	return ""
}

// labelled returns external_ids with a mark, and with a name unless that is empty.
func labelled(ids map[string]string, name string, mark providers.Mark) (map[string]string, error) {
	if _, ok := ids[nameKey]; ok {
		return nil, refuse(providers.Invalid, "external_ids cannot contain %s, which is reserved for converge", nameKey)
	}
	ids, err := marked(ids, mark)
	if err == nil && name != "" {
		ids[nameKey] = name
	}
	return ids, err
}

// claimUUID returns the UUID for the row of a new thing, and guards that no row has it. No index keeps names apart, and no wait
// can express that a table has no row with a name, as far as the library can send one. So the UUID follows from the mark: a
// late create that was given up and the one that repeats it exclude each other.
func (c *change) claimUUID(table, name string, mark providers.Mark) string {
	id := uuid.NewSHA1(uuid.NameSpaceURL, []byte("converge.dev/"+table+"/"+name+"/"+mark.String())).String()
	c.guard(refuse(providers.Exists, "the name %s has just been taken", name),
		table, uuidIs(id), ovsdb.WaitConditionNotEqual, ovsdb.Row{"_uuid": ovsdb.UUID{GoUUID: id}})
	return id
}

// exists guards that a row stays; what is its description.
func (c *change) exists(table, uuid, what string) {
	c.guard(refuse(providers.Absent, "%s has just been deleted", what),
		table, uuidIs(uuid), ovsdb.WaitConditionEqual, ovsdb.Row{"_uuid": ovsdb.UUID{GoUUID: uuid}})
}
