package ovs

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/vswitch"
	"github.com/ovn-org/libovsdb/model"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// A fault is an error with its class. The verbs of a kind turn it into a providers.Error.
type fault struct {
	class providers.Class
	err   error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

// refuse returns a fault.
func refuse(class providers.Class, format string, args ...any) error {
	return &fault{class, fmt.Errorf(format, args...)}
}

// unanswered turns an error of [db.transact] into a fault.
func unanswered(err error) error {
	if f := (*fault)(nil); errors.As(err, &f) {
		return f
	}
	return &fault{providers.Unknown, err}
}

// A change is one transaction: guards, which must hold, and effects. Either all of it happens or nothing.
type change struct {
	db    *db
	root  string // UUID of the only row of Open_vSwitch
	ops   []ovsdb.Operation
	means map[int]error // the error when the guard with that index does not hold
	err   error         // the first error while the change was assembled
	lease int           // how many operations guard the epoch; they are the first

	first func(context.Context) error // what is checked before it is sent; nil: nothing
	then  func(context.Context) error // what is done after that outside of the database; nil: nothing
}

// again returns another change under the same epoch.
func (c *change) again() *change {
	again := &change{db: c.db, root: c.root, ops: slices.Clone(c.ops[:c.lease]), means: map[int]error{}, lease: c.lease}
	for i := range c.lease {
		again.means[i] = c.means[i]
	}
	return again
}

// carryOut commits the change, with what comes before and after.
func (c *change) carryOut(ctx context.Context) error {
	if c.then != nil { // what was checked before must still be so when it is done
		c.db.flowing.Lock()
		defer c.db.flowing.Unlock()
	}
	if c.first != nil {
		if err := c.first(ctx); err != nil {
			return err
		}
	}
	if err := c.commit(ctx); err != nil || c.then == nil {
		return err
	}
	return c.then(ctx)
}

// row returns columns of a model in wire format.
func (c *change) row(m model.Model, columns []string) ovsdb.Row {
	row := make(ovsdb.Row, len(columns))
	info, err := c.db.model.NewModelInfo(m)
	if err != nil {
		c.err = errors.Join(c.err, err)
		return nil
	}
	for _, name := range columns {
		value, err := info.FieldByColumn(name)
		if err == nil {
			row[name], err = ovsdb.NativeToOvs(info.Metadata.TableSchema.Column(name), value)
		}
		c.err = errors.Join(c.err, err)
	}
	return row
}

// set returns those of some columns of a model that differ from a new row.
func (c *change) set(m, fresh model.Model, columns []string) []string {
	have, empty := c.row(m, columns), c.row(fresh, columns)
	return slices.DeleteFunc(slices.Clone(columns), func(name string) bool { return reflect.DeepEqual(have[name], empty[name]) })
}

// guard adds a wait with timeout 0; fails is the error when it does not hold.
func (c *change) guard(fails error, table string, where ovsdb.Condition, until ovsdb.WaitCondition, row ovsdb.Row) {
	columns := make([]string, 0, len(row))
	for name := range row {
		columns = append(columns, name)
	}
	c.means[len(c.ops)] = fails
	c.ops = append(c.ops, ovsdb.Operation{
		Op: ovsdb.OperationWait, Table: table, Timeout: new(int),
		Where: []ovsdb.Condition{where}, Columns: columns, Until: string(until), Rows: []ovsdb.Row{row},
	})
}

// unchanged guards that columns of a row still are as they were read.
func (c *change) unchanged(table, uuid string, m model.Model, columns ...string) {
	c.guard(refuse(providers.Conflict, "another client has just changed it"),
		table, uuidIs(uuid), ovsdb.WaitConditionEqual, c.row(m, columns))
}

// absent guards that no row of a table has a name.
func (c *change) absent(table, name string) {
	c.guard(refuse(providers.Exists, "the name %s has just been taken", name),
		table, named(name), ovsdb.WaitConditionNotEqual, ovsdb.Row{"name": name})
}

// present guards that a bridge still exists.
func (c *change) present(b *vswitch.Bridge) {
	c.guard(refuse(providers.Absent, "bridge %s has just been deleted", b.Name),
		vswitch.BridgeTable, uuidIs(b.UUID), ovsdb.WaitConditionEqual, ovsdb.Row{"name": b.Name})
}

// insert adds a row; as is its name within the transaction.
func (c *change) insert(table, as string, m model.Model, columns ...string) {
	c.ops = append(c.ops, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: table, UUIDName: as, Row: c.row(m, columns)})
}

// update writes columns of a row.
func (c *change) update(table, uuid string, m model.Model, columns ...string) {
	c.ops = append(c.ops, ovsdb.Operation{
		Op: ovsdb.OperationUpdate, Table: table, Where: []ovsdb.Condition{uuidIs(uuid)}, Row: c.row(m, columns),
	})
}

// insertAs adds a row with a UUID.
func (c *change) insertAs(table, uuid string, m model.Model, columns ...string) {
	c.ops = append(c.ops, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: table, UUID: uuid, Row: c.row(m, columns)})
}

// delete deletes a row of a table whose rows stay without references.
func (c *change) delete(table, uuid string) {
	c.ops = append(c.ops, ovsdb.Operation{Op: ovsdb.OperationDelete, Table: table, Where: []ovsdb.Condition{uuidIs(uuid)}})
}

// refer adds a reference to a column or removes it. A row that is no longer referred to is deleted.
func (c *change) refer(table, uuid, column string, how ovsdb.Mutator, to string) {
	c.mutate(table, uuid, column, how, ovsdb.OvsSet{GoSet: []any{ovsdb.UUID{GoUUID: to}}})
}

func (c *change) mutate(table, uuid, column string, how ovsdb.Mutator, value any) {
	c.ops = append(c.ops, ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: table, Where: []ovsdb.Condition{uuidIs(uuid)},
		Mutations: []ovsdb.Mutation{{Column: column, Mutator: how, Value: value}},
	})
}

// commit sends the change and waits until ovs-vswitchd has applied it. After a fault of class Unknown the database may
// have the change, and has it where the text says so.
func (c *change) commit(ctx context.Context) error {
	c.mutate(vswitch.OpenvSwitchTable, c.root, "next_cfg", ovsdb.MutateOperationAdd, 1)
	c.ops = append(c.ops, rootRows.selects(uuidIs(c.root)))
	if c.err != nil {
		return &fault{providers.Invalid, c.err}
	}
	conn, err := c.db.connect(ctx)
	if err != nil {
		return &fault{providers.Transient, err}
	}
	if err := ctx.Err(); err != nil {
		return &fault{providers.Transient, err}
	}
	results, err := c.db.transact(ctx, conn, c.ops)
	if err != nil {
		return unanswered(err)
	}
	if err := c.check(results); err != nil {
		return err
	}
	var after vswitch.OpenvSwitch
	rows := results[len(c.ops)-1].Rows
	if len(rows) != 1 {
		return refuse(providers.Unknown, "it is in the database, but ovsdb-server did not report its configuration number")
	}
	if _, err := c.db.read(rows[0], &after); err != nil {
		return &fault{providers.Unknown, err}
	}
	c.db.health.acts(after.CurCfg, after.NextCfg)
	limited, cancel := context.WithTimeout(ctx, c.db.Settle)
	defer cancel()
	if err := conn.reached(limited, after.NextCfg); err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			err = fmt.Errorf("ovs-vswitchd did not apply it within %v", c.db.Settle)
		}
		return refuse(providers.Unknown, "it is in the database and takes effect when ovs-vswitchd applies it: %w", err)
	}
	return nil
}

// check returns, from the answer, why the change did not happen; nil when it did.
func (c *change) check(results []ovsdb.OperationResult) error {
	for i, r := range results {
		switch {
		case r.Error == "":
		case r.Error == "timed out" && c.means[i] != nil:
			return c.means[i]
		case r.Error == "resources exhausted" || r.Error == "I/O error":
			return refuse(providers.Transient, "ovsdb-server: %s: %s", r.Error, r.Details)
		case r.Error == "referential integrity violation":
			return refuse(providers.Conflict, "ovsdb-server: %s: %s", r.Error, r.Details)
		default:
			return refuse(providers.Invalid, "ovsdb-server: %s: %s", r.Error, r.Details)
		}
	}
	if len(results) < len(c.ops) {
		return refuse(providers.Unknown, "ovsdb-server answered %d of %d operations", len(results), len(c.ops))
	}
	return nil
}
