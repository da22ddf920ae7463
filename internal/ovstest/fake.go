package ovstest

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"converge.dev/converge/providers/ovs/vswitch"
	"github.com/go-logr/logr"
	"github.com/go-logr/stdr"
	"github.com/ovn-org/libovsdb/cache"
	"github.com/ovn-org/libovsdb/client"
	"github.com/ovn-org/libovsdb/database"
	"github.com/ovn-org/libovsdb/database/inmemory"
	"github.com/ovn-org/libovsdb/model"
	"github.com/ovn-org/libovsdb/ovsdb"
	"github.com/ovn-org/libovsdb/server"
	"github.com/ovn-org/libovsdb/updates"
)

// Fake runs an OVSDB server in this process, with a substitute for ovs-vswitchd: it numbers the ports of bridges whose
// datapath_type is Datapath, reports an error for interfaces named bad*, and reports that it is done.
func Fake(t testing.TB) *Switch {
	t.Helper()
	stdr.SetVerbosity(0) // otherwise the server prints every row that it touches
	s := &Switch{dir: tempDir(t)}
	s.Endpoint = "unix:" + socket(s.dir)
	tables, err := vswitch.FullDatabaseModel()
	if err != nil {
		t.Fatal(err)
	}
	schema := vswitch.Schema()
	schema.Table(vswitch.QoSTable).Column("queues").TypeObj.Value = &ovsdb.BaseType{Type: ovsdb.TypeUUID} // see intact
	m, errs := model.NewDatabaseModel(schema, tables)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	db := checked{inmemory.NewDatabase(map[string]model.ClientDBModel{m.Schema.Name: tables}), m}
	srv, err := server.NewOvsdbServer(db, m)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve("unix", socket(s.dir)) }()
	for !srv.Ready() {
		select {
		case err := <-served:
			t.Fatal(err)
		default:
			runtime.Gosched()
		}
	}
	t.Cleanup(func() {
		srv.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	s.connect(t)
	s.freeze = vswitchd(t, s.Endpoint, tables)
	return s
}

// vswitchd acts on the database until the test ends; the function that it returns stops it for a while.
func vswitchd(t testing.TB, endpoint string, tables model.ClientDBModel) (freeze func(bool) error) {
	log := logr.Discard()
	c, err := client.NewOVSDBClient(tables, client.WithEndpoint(endpoint), client.WithLogger(&log))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	poke := make(chan struct{}, 1)
	wake := func() {
		select {
		case poke <- struct{}{}:
		default:
		}
	}
	c.Cache().AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(string, model.Model) { wake() },
		UpdateFunc: func(string, model.Model, model.Model) { wake() },
	})
	if _, err := c.MonitorAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var done sync.WaitGroup
	var running sync.Mutex
	done.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-poke:
			}
			running.Lock()
			err := act(context.Background(), c) // never cancelled half way: the server handles a closed connection badly
			running.Unlock()
			if err != nil {
				t.Errorf("the fake ovs-vswitchd: %v", err)
				return
			}
		}
	})
	frozen := false
	freeze = func(freeze bool) error {
		switch {
		case freeze && !frozen:
			running.Lock()
		case !freeze && frozen:
			running.Unlock()
		}
		frozen = freeze
		return nil
	}
	t.Cleanup(func() {
		close(stop)
		_ = freeze(false)
		done.Wait()
		c.Close()
	})
	return freeze
}

// act applies the configuration once, like ovs-vswitchd: all of it, and cur_cfg in the same transaction.
func act(ctx context.Context, c client.Client) error {
	tables := []string{vswitch.OpenvSwitchTable, vswitch.BridgeTable, vswitch.PortTable, vswitch.InterfaceTable}
	var reads []ovsdb.Operation
	for _, table := range tables {
		reads = append(reads, ovsdb.Operation{Op: ovsdb.OperationSelect, Table: table})
	}
	results, err := c.Transact(ctx, reads...)
	if err != nil {
		return err
	}
	if len(results[0].Rows) == 0 {
		return nil
	}
	root, bridges, ports, interfaces := results[0].Rows[0], results[1].Rows, results[2].Rows, results[3].Rows
	dead := map[any]bool{} // names of what is on a bridge that cannot be created
	for _, b := range bridges {
		for _, p := range ports {
			if b["datapath_type"] != Datapath && slices.Contains(elements(b["ports"]), p["_uuid"]) {
				dead[p["name"]] = true
			}
		}
	}
	var writes []ovsdb.Operation
	write := func(table string, row ovsdb.Row, change ovsdb.Row) {
		writes = append(writes, ovsdb.Operation{
			Op: ovsdb.OperationUpdate, Table: table, Row: change,
			Where: []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, row["_uuid"])},
		})
	}
	highest := 0
	for _, i := range interfaces {
		highest = max(highest, number(i["ofport"]))
	}
	for _, i := range interfaces {
		name, _ := i["name"].(string)
		switch {
		case i["ofport"] != nil || dead[name]:
		case strings.HasPrefix(name, "bad"):
			write(vswitch.InterfaceTable, i, ovsdb.Row{
				"ofport": -1, "error": "could not open network device " + name + " (No such device)",
			})
		default:
			highest++
			write(vswitch.InterfaceTable, i, ovsdb.Row{"ofport": highest})
		}
	}
	for n, b := range bridges {
		if b["datapath_id"] == nil && b["datapath_type"] == Datapath {
			write(vswitch.BridgeTable, b, ovsdb.Row{"datapath_id": fmt.Sprintf("%016x", n+1)})
		}
	}
	if next := number(root["next_cfg"]); number(root["cur_cfg"]) != next {
		write(vswitch.OpenvSwitchTable, root, ovsdb.Row{"cur_cfg": next})
	}
	if len(writes) == 0 {
		return nil
	}
	if results, err = c.Transact(ctx, writes...); err == nil {
		_, err = ovsdb.CheckOperationResults(results, writes)
	}
	return err
}

// checked makes the database in memory as strict as ovsdb-server in what the provider relies on: a wait compares
// empty columns too, sets in any order, and values must be among those that the schema allows.
type checked struct {
	database.Database
	model model.DatabaseModel
}

type transaction struct {
	database.Transaction
	checked
	name string
}

// NewTransaction implements [database.Database].
func (c checked) NewTransaction(name string) database.Transaction {
	return transaction{c.Database.NewTransaction(name), c, name}
}

// Transact implements [database.Transaction]. The server calls it for one transaction at a time.
func (t transaction) Transact(ops ...ovsdb.Operation) ([]*ovsdb.OperationResult, database.Update) {
	results := make([]*ovsdb.OperationResult, len(ops), len(ops)+1)
	fail := func(i int, text, details string) ([]*ovsdb.OperationResult, database.Update) {
		for done := range i {
			results[done] = &ovsdb.OperationResult{}
		}
		results[i] = &ovsdb.OperationResult{Error: text, Details: details}
		return results, updates.NewDatabaseUpdate(updates.ModelUpdates{}, nil)
	}
	waits := 0
	for i, op := range ops {
		if op.Op == ovsdb.OperationWait {
			if op.Timeout == nil || *op.Timeout != 0 {
				return fail(i, "not supported", "a wait with patience")
			}
			if i != waits { // the library knows what the effects before it have done
				if len(op.Columns) != 1 || op.Columns[0] != "_uuid" {
					return fail(i, "not supported", "a wait after an effect for anything but a row")
				}
				continue
			}
			if ok, err := t.holds(op); err != nil {
				return fail(i, "syntax error", err.Error())
			} else if !ok {
				return fail(i, "timed out", `"wait" timed out`)
			}
			results[i] = &ovsdb.OperationResult{}
			waits++
			continue
		}
		if err := t.allowed(op); err != nil {
			return fail(i, "constraint violation", err.Error())
		}
		if op.Op == ovsdb.OperationInsert && op.UUID != "" {
			taken := ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: op.UUID})
			found, _ := t.Database.NewTransaction(t.name).Transact(ovsdb.Operation{
				Op: ovsdb.OperationSelect, Table: op.Table, Where: []ovsdb.Condition{taken},
			})
			if len(found[0].Rows) > 0 {
				return fail(i, "duplicate uuid", "This UUID would duplicate a UUID already present within the table")
			}
		}
	}
	effects := ops[waits:]
	if err := t.intact(effects); err != nil {
		return append(results[:waits], &ovsdb.OperationResult{Error: "referential integrity violation", Details: err.Error()}),
			updates.NewDatabaseUpdate(updates.ModelUpdates{}, nil)
	}
	if n := len(effects) - 1; n >= 0 && effects[n].Op == ovsdb.OperationCommit { // a database in memory is never durable
		rest, update := t.Transaction.Transact(effects[:n]...)
		return append(append(results[:waits], rest...), &ovsdb.OperationResult{}), update
	}
	rest, update := t.Transaction.Transact(effects...)
	return append(results[:waits], rest...), update
}

// intact returns an error when operations delete a queue that a row of QoS refers to, or make one refer to a queue that does not exist.
// The library loses count of references in the values of a map, so it is not told of these.
func (t transaction) intact(ops []ovsdb.Operation) error {
	read := func(table string, where ...ovsdb.Condition) []ovsdb.Row {
		found, _ := t.Database.NewTransaction(t.name).Transact(ovsdb.Operation{Op: ovsdb.OperationSelect, Table: table, Where: where})
		return found[0].Rows
	}
	queues := map[any]bool{}
	for _, q := range read(vswitch.QueueTable) {
		queues[q["_uuid"]] = true
	}
	refers := map[any]ovsdb.OvsMap{}
	for _, q := range read(vswitch.QoSTable) {
		refers[q["_uuid"]], _ = q["queues"].(ovsdb.OvsMap)
	}
	for i, op := range ops {
		switch {
		case op.Op == ovsdb.OperationInsert && op.Table == vswitch.QueueTable:
			queues[ovsdb.UUID{GoUUID: op.UUID}], queues[ovsdb.UUID{GoUUID: op.UUIDName}] = true, true
		case op.Op == ovsdb.OperationDelete && op.Table == vswitch.QueueTable:
			for _, q := range read(op.Table, op.Where...) {
				delete(queues, q["_uuid"])
			}
		case op.Op == ovsdb.OperationInsert && op.Table == vswitch.QoSTable:
			refers[i], _ = op.Row["queues"].(ovsdb.OvsMap)
		case op.Op == ovsdb.OperationDelete && op.Table == vswitch.QoSTable:
			for _, q := range read(op.Table, op.Where...) {
				delete(refers, q["_uuid"])
			}
		case op.Op == ovsdb.OperationUpdate && op.Table == vswitch.QoSTable && op.Row["queues"] != nil:
			for _, q := range read(op.Table, op.Where...) {
				refers[q["_uuid"]], _ = op.Row["queues"].(ovsdb.OvsMap)
			}
		case op.Table == vswitch.QoSTable && op.Op == ovsdb.OperationMutate && op.Mutations[0].Column == "queues":
			return fmt.Errorf("not supported: a mutation of queues")
		}
	}
	for qos, m := range refers {
		for n, queue := range m.GoMap {
			if !queues[queue] {
				return fmt.Errorf("QoS %v refers to queue %v, which does not exist, as %v", qos, queue, n)
			}
		}
	}
	return nil
}

// holds reports whether a wait is satisfied at once.
func (t transaction) holds(op ovsdb.Operation) (bool, error) {
	found, _ := t.Database.NewTransaction(t.name).Transact(ovsdb.Operation{Op: ovsdb.OperationSelect, Table: op.Table, Where: op.Where})
	if found[0].Error != "" {
		return false, fmt.Errorf("%s: %s", found[0].Error, found[0].Details)
	}
	have, err := t.texts(op.Table, op.Columns, found[0].Rows)
	if err != nil {
		return false, err
	}
	want, err := t.texts(op.Table, op.Columns, op.Rows)
	return slices.Equal(have, want) == (op.Until == string(ovsdb.WaitConditionEqual)), err
}

// texts returns rows as text that is the same for equal columns.
func (t transaction) texts(table string, columns []string, rows []ovsdb.Row) ([]string, error) {
	var texts []string
	for _, row := range rows {
		m, err := t.model.NewModel(table)
		if err != nil {
			return nil, err
		}
		info, err := t.model.NewModelInfo(m)
		if err != nil {
			return nil, err
		}
		if err := t.model.Mapper.GetRowData(&row, info); err != nil {
			return nil, err
		}
		if uuid, ok := row["_uuid"].(ovsdb.UUID); ok {
			if err := info.SetField("_uuid", uuid.GoUUID); err != nil {
				return nil, err
			}
		}
		text := ""
		for _, name := range slices.Sorted(slices.Values(columns)) {
			v, err := info.FieldByColumn(name)
			if err != nil {
				return nil, err
			}
			text += fmt.Sprintf("%s=%q ", name, native(v))
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return texts, nil
}

// native returns a value of a column as text: sets sorted, an absent value like an empty set.
func native(v any) string {
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.Pointer:
		if r.IsNil() {
			return "[]"
		}
		return fmt.Sprintf("[%v]", r.Elem())
	case reflect.Slice:
		var all []string
		for i := range r.Len() {
			all = append(all, fmt.Sprint(r.Index(i)))
		}
		slices.Sort(all)
		return fmt.Sprint(all)
	}
	return fmt.Sprint(v)
}

// allowed checks the values of a row against the schema.
func (t transaction) allowed(op ovsdb.Operation) error {
	for name, v := range op.Row {
		c := t.model.Schema.Table(op.Table).Column(name)
		if c == nil || c.TypeObj == nil || c.TypeObj.Key == nil {
			continue
		}
		for _, e := range elements(v) {
			if enum := c.TypeObj.Key.Enum; enum != nil && !slices.Contains(enum, e) {
				return fmt.Errorf("%v is not one of the allowed values %v", e, enum)
			}
			n, ok := e.(float64)
			if low, err := c.TypeObj.Key.MinInteger(); ok && err == nil && int(n) < low {
				return fmt.Errorf("%v is less than %d", n, low)
			}
			if high, err := c.TypeObj.Key.MaxInteger(); ok && err == nil && high > 0 && int(n) > high {
				return fmt.Errorf("%v is more than %d", n, high)
			}
		}
	}
	return nil
}

// elements returns the elements of a set, and the keys of a map; a single value is a set of one.
func elements(v any) []any {
	switch v := v.(type) {
	case nil:
		return nil
	case ovsdb.OvsSet:
		return v.GoSet
	case ovsdb.OvsMap:
		return slices.Collect(maps.Keys(v.GoMap))
	}
	return []any{v}
}
