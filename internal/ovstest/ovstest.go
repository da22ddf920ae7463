// Package ovstest gives tests an Open vSwitch of their own: [Start] a real one in a network namespace, [Fake] a
// database in memory with something that acts on it like ovs-vswitchd.
//
// Both play the outside world: tests change and read the database through a [Switch] like another client, past the
// provider under test. Nothing on the machine is touched.
package ovstest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/providers/ovs/vswitch"
	"github.com/go-logr/logr"
	"github.com/ovn-org/libovsdb/client"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// Datapath is the datapath_type that a bridge needs here; other bridges are never created.
const Datapath = "netdev"

// A Switch is one running Open vSwitch.
type Switch struct {
	Endpoint string // of its database: unix:PATH
	Real     bool   // made by Start

	dir    string
	pid    int    // of the process whose namespaces a real one runs in
	end    func() // ends that process, and waits for it
	freeze func(frozen bool) error
	client client.Client
	root   string // UUID of the row of Open_vSwitch
}

// connect gives the switch its own client, and the database its first row when it has none.
func (s *Switch) connect(t testing.TB) {
	t.Helper()
	tables, err := vswitch.FullDatabaseModel()
	if err != nil {
		t.Fatal(err)
	}
	log := logr.Discard()
	if s.client, err = client.NewOVSDBClient(tables, client.WithEndpoint(s.Endpoint), client.WithLogger(&log)); err != nil {
		t.Fatal(err)
	}
	if err := s.client.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	roots := s.Rows(t, vswitch.OpenvSwitchTable)
	if len(roots) == 0 {
		s.Transact(t, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: vswitch.OpenvSwitchTable, Row: ovsdb.Row{"next_cfg": 0}})
		roots = s.Rows(t, vswitch.OpenvSwitchTable)
	}
	s.root = roots[0]["_uuid"].(ovsdb.UUID).GoUUID
}

// Transact carries out one transaction, which must succeed.
func (s *Switch) Transact(t testing.TB, ops ...ovsdb.Operation) []ovsdb.OperationResult {
	t.Helper()
	results, err := s.client.Transact(context.Background(), ops...)
	if err == nil {
		var errs []ovsdb.OperationError
		if errs, err = ovsdb.CheckOperationResults(results, ops); err != nil {
			err = fmt.Errorf("%w: %v", err, errs)
		}
	}
	if err != nil {
		t.Fatalf("transaction: %v", err)
	}
	return results
}

// Rows returns all rows of a table.
func (s *Switch) Rows(t testing.TB, table string) []ovsdb.Row {
	t.Helper()
	return s.Transact(t, ovsdb.Operation{Op: ovsdb.OperationSelect, Table: table})[0].Rows
}

// Row returns the row with a name; nil when there is none.
func (s *Switch) Row(t testing.TB, table, name string) ovsdb.Row {
	t.Helper()
	rows := s.Rows(t, table)
	i := slices.IndexFunc(rows, func(r ovsdb.Row) bool { return r["name"] == name })
	if i < 0 {
		return nil
	}
	return rows[i]
}

// Set writes one column of the row with a name, without asking ovs-vswitchd to report when it is done.
func (s *Switch) Set(t testing.TB, table, name, column string, value any) {
	t.Helper()
	s.Transact(t, ovsdb.Operation{
		Op: ovsdb.OperationUpdate, Table: table, Row: ovsdb.Row{column: value},
		Where: []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, name)},
	})
}

// AddPort adds an internal port to a bridge like libvirt, with external ids on its interface, and waits until it is created.
func (s *Switch) AddPort(t testing.TB, bridge, name string, ids map[string]string) {
	t.Helper()
	notes, err := ovsdb.NewOvsMap(ids)
	if err != nil {
		t.Fatal(err)
	}
	port := ovsdb.OvsSet{GoSet: []any{ovsdb.UUID{GoUUID: "port"}}}
	s.Transact(t,
		ovsdb.Operation{
			Op: ovsdb.OperationInsert, Table: vswitch.InterfaceTable, UUIDName: "interface",
			Row: ovsdb.Row{"name": name, "type": "internal", "external_ids": notes},
		},
		ovsdb.Operation{
			Op: ovsdb.OperationInsert, Table: vswitch.PortTable, UUIDName: "port",
			Row: ovsdb.Row{"name": name, "interfaces": ovsdb.OvsSet{GoSet: []any{ovsdb.UUID{GoUUID: "interface"}}}},
		},
		ovsdb.Operation{
			Op: ovsdb.OperationMutate, Table: vswitch.BridgeTable,
			Where:     []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, bridge)},
			Mutations: []ovsdb.Mutation{{Column: "ports", Mutator: ovsdb.MutateOperationInsert, Value: port}},
		})
	s.Settle(t)
}

// AddBridges adds bridges with their local ports like another client, all of them in one transaction.
func (s *Switch) AddBridges(t testing.TB, names ...string) {
	t.Helper()
	one := func(name string) ovsdb.OvsSet { return ovsdb.OvsSet{GoSet: []any{ovsdb.UUID{GoUUID: name}}} }
	var ops []ovsdb.Operation
	for i, name := range names {
		row, local, device := fmt.Sprint("bridge", i), fmt.Sprint("port", i), fmt.Sprint("interface", i)
		ops = append(ops,
			ovsdb.Operation{Op: ovsdb.OperationInsert, Table: vswitch.InterfaceTable, UUIDName: device, Row: ovsdb.Row{"name": name, "type": "internal"}},
			ovsdb.Operation{Op: ovsdb.OperationInsert, Table: vswitch.PortTable, UUIDName: local, Row: ovsdb.Row{"name": name, "interfaces": one(device)}},
			ovsdb.Operation{
				Op: ovsdb.OperationInsert, Table: vswitch.BridgeTable, UUIDName: row, Row: ovsdb.Row{"name": name, "datapath_type": Datapath, "ports": one(local)},
			},
			ovsdb.Operation{
				Op: ovsdb.OperationMutate, Table: vswitch.OpenvSwitchTable, Where: s.isRoot(),
				Mutations: []ovsdb.Mutation{{Column: "bridges", Mutator: ovsdb.MutateOperationInsert, Value: one(row)}},
			})
	}
	s.Transact(t, ops...)
	s.Settle(t)
}

// AddMirror adds a mirror to a bridge like another client. References to ports are their UUIDs.
func (s *Switch) AddMirror(t testing.TB, bridge, name string, columns ovsdb.Row) {
	t.Helper()
	row := ovsdb.Row{"name": name}
	maps.Copy(row, columns)
	mirror := ovsdb.OvsSet{GoSet: []any{ovsdb.UUID{GoUUID: "mirror"}}}
	s.Transact(t,
		ovsdb.Operation{Op: ovsdb.OperationInsert, Table: vswitch.MirrorTable, UUIDName: "mirror", Row: row},
		ovsdb.Operation{
			Op: ovsdb.OperationMutate, Table: vswitch.BridgeTable,
			Where:     []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, bridge)},
			Mutations: []ovsdb.Mutation{{Column: "mirrors", Mutator: ovsdb.MutateOperationInsert, Value: mirror}},
		})
	s.Settle(t)
}

// AddRow adds a row to a table whose rows stay without references, like another client, and returns its UUID.
func (s *Switch) AddRow(t testing.TB, table string, row ovsdb.Row) string {
	t.Helper()
	return s.Transact(t, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: table, Row: row})[0].UUID.GoUUID
}

// Clear deletes every bridge, and what the database would keep without them, with all settings, and waits until they are gone.
func (s *Switch) Clear(t testing.TB) {
	t.Helper()
	s.Transact(t, ovsdb.Operation{
		Op: ovsdb.OperationUpdate, Table: vswitch.OpenvSwitchTable, Where: s.isRoot(), Row: ovsdb.Row{"bridges": ovsdb.OvsSet{}, "other_config": ovsdb.OvsMap{}},
	})
	for _, table := range []string{vswitch.QoSTable, vswitch.QueueTable} {
		for _, row := range s.Rows(t, table) {
			s.Transact(t, ovsdb.Operation{
				Op: ovsdb.OperationDelete, Table: table, Where: []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, row["_uuid"])},
			})
		}
	}
	s.Settle(t)
}

// Settle waits until ovs-vswitchd has applied the current contents of the database.
func (s *Switch) Settle(t testing.TB) {
	t.Helper()
	next := s.Request(t)
	for number(s.Rows(t, vswitch.OpenvSwitchTable)[0]["cur_cfg"]) < next {
		if err := t.Context().Err(); err != nil {
			t.Fatalf("ovs-vswitchd does not act: %v", err)
		}
	}
}

// Request asks ovs-vswitchd to report when it has applied the contents of the database, and returns the number of that
// configuration.
func (s *Switch) Request(t testing.TB) int {
	t.Helper()
	results := s.Transact(t,
		ovsdb.Operation{
			Op: ovsdb.OperationMutate, Table: vswitch.OpenvSwitchTable, Where: s.isRoot(),
			Mutations: []ovsdb.Mutation{{Column: "next_cfg", Mutator: ovsdb.MutateOperationAdd, Value: 1}},
		},
		ovsdb.Operation{Op: ovsdb.OperationSelect, Table: vswitch.OpenvSwitchTable, Where: s.isRoot(), Columns: []string{"next_cfg"}})
	return number(results[1].Rows[0]["next_cfg"])
}

// Reach writes, as ovs-vswitchd would, that it has applied a configuration.
func (s *Switch) Reach(t testing.TB, config int) {
	t.Helper()
	s.Transact(t, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: vswitch.OpenvSwitchTable, Where: s.isRoot(), Row: ovsdb.Row{"cur_cfg": config}})
}

// ChangeRoot changes the only row of Open_vSwitch like another client; the table and the row are added to the operation.
func (s *Switch) ChangeRoot(t testing.TB, op ovsdb.Operation) {
	t.Helper()
	op.Table, op.Where = vswitch.OpenvSwitchTable, s.isRoot()
	s.Transact(t, op)
}

func (s *Switch) isRoot() []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: s.root})}
}

// number reads a whole number from a row; rows omit zero.
func number(v any) int {
	f, _ := v.(float64)
	return int(f)
}

// Freeze stops ovs-vswitchd without ending it, until Thaw or the end of the test.
func (s *Switch) Freeze(t testing.TB) {
	t.Helper()
	if err := s.freeze(true); err != nil {
		t.Fatalf("freezing ovs-vswitchd: %v", err)
	}
}

// Thaw lets ovs-vswitchd continue.
func (s *Switch) Thaw(t testing.TB) {
	t.Helper()
	if err := s.freeze(false); err != nil {
		t.Fatalf("thawing ovs-vswitchd: %v", err)
	}
}

// reported are the columns that ovs-vswitchd writes at times of its own, beside those that the schema calls ephemeral.
var reported = []string{"bond_active_slave", "cfm_flap_count", "datapath_version"}

// Dump returns what the database holds below the row of Open_vSwitch as text, and the settings in that row, without what changes by
// itself.
func (s *Switch) Dump(t testing.TB) string {
	t.Helper()
	tables := maps.Clone(vswitch.Parsed().Tables)
	var reads []ovsdb.Operation
	for table := range tables {
		reads = append(reads, ovsdb.Operation{Op: ovsdb.OperationSelect, Table: table})
	}
	out := map[string][]string{}
	for i, result := range s.Transact(t, reads...) {
		table := reads[i].Table
		for _, row := range result.Rows {
			maps.DeleteFunc(row, func(name string, _ any) bool {
				c := tables[table].Columns[name]
				if table == vswitch.OpenvSwitchTable {
					return name != "other_config"
				}
				return name != "_uuid" && (c == nil || c.Ephemeral() || slices.Contains(reported, name))
			})
			for name, v := range row {
				if set, ok := v.(ovsdb.OvsSet); ok {
					row[name] = slices.SortedFunc(slices.Values(set.GoSet), func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
				}
				if m, ok := v.(ovsdb.OvsMap); ok {
					row[name] = fmt.Sprint(m.GoMap)
				}
			}
			text, err := json.Marshal(row)
			if err != nil {
				t.Fatal(err)
			}
			out[table] = append(out[table], string(text))
		}
		slices.Sort(out[table])
	}
	text, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Command prepares a command that runs in the namespaces of a real switch and finds its daemons.
func (s *Switch) Command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	if !s.Real {
		t.Fatalf("%s cannot run in a switch that is in memory", name)
	}
	cmd := exec.CommandContext(context.Background(), "nsenter", append([]string{
		fmt.Sprintf("--target=%d", s.pid), "--net", "--pid", "--", name,
	}, args...)...)
	cmd.Env = append(os.Environ(), s.environ()...)
	return cmd
}

// Vsctl runs ovs-vsctl on a real switch and returns its output.
func (s *Switch) Vsctl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := s.Command(t, "ovs-vsctl", append([]string{"--timeout=20"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ovs-vsctl %q: %v: %s", args, err, out)
	}
	return string(out)
}

func (s *Switch) environ() []string {
	return []string{"OVS_RUNDIR=" + s.dir, "OVS_LOGDIR=" + s.dir, "OVS_DBDIR=" + s.dir, "OVS_SYSCONFDIR=" + s.dir}
}

// tempDir returns a directory with a short name: the path of a socket has at most 107 bytes, for which t.TempDir of a
// subtest leaves no room.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ovs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func socket(dir string) string { return filepath.Join(dir, "db.sock") }
