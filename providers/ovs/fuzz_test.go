package ovs

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/ovn-org/libovsdb/model"
	"github.com/ovn-org/libovsdb/ovsdb"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/internal/budget"
	"converge.dev/converge/schema"
)

// FuzzView passes replies that a database may send to every kind: rows with the wrong columns, dangling references, duplicate
// names. They become things of plain values, or an error; a row that could be read is written as it was read.
func FuzzView(tf *testing.F) {
	f := fuzzed.New(tf)
	const (
		root  = `[{"rows":[{"_uuid":["uuid","00000000-0000-4000-8000-000000000001"],"next_cfg":1,"cur_cfg":1}]},`
		a     = `["uuid","00000000-0000-4000-8000-00000000000a"]`
		b     = `["uuid","00000000-0000-4000-8000-00000000000b"]`
		c     = `["uuid","00000000-0000-4000-8000-00000000000c"]`
		empty = `{"rows":[]}`
	)
	bridge := func(extra string) string {
		return `{"rows":[{"_uuid":` + a + `,"name":"br","ports":` + b + `,"datapath_type":"netdev","fail_mode":"secure","external_ids":["map",[["x","<y>"]]],` +
			`"other_config":["map",[]],"protocols":["set",["OpenFlow14"]],"stp_enable":false,"rstp_enable":false,"mcast_snooping_enable":false,"mirrors":["set",[]]` + extra + `}]}`
	}
	port := `{"rows":[{"_uuid":` + b + `,"name":"p","interfaces":` + c + `,"tag":7,"trunks":["set",[1,2]],"vlan_mode":"access","protected":false,"external_ids":["map",[["converge.dev/mark","s/n/ovs.port/p#1"]]],"other_config":["map",[]]}]}`
	iface := `{"rows":[{"_uuid":` + c + `,"name":"p","type":"internal","ofport":3,"mac":["set",[]],"options":["map",[["peer","q"]]],"error":["set",[]]}]}`
	mirror := `{"rows":[{"_uuid":` + c + `,"name":"m","select_all":true,"output_port":` + b + `,"select_src_port":["set",[` + a + `]],"select_vlan":["set",[1]]}]}`
	controller := `{"rows":[{"_uuid":` + c + `,"target":"tcp:h","max_backoff":1000,"is_connected":true,"role":"slave","external_ids":["map",[["converge.dev/name","c"]]]}]}`
	for kind := range byte(len(nouns)) {
		for _, answers := range []string{
			root + bridge("") + "," + port + "," + iface + "]", root + bridge(`,"mirrors":`+c) + "," + mirror + "," + port + "]",
			root + empty + "," + empty + "," + empty + "]", root + bridge("") + "," + empty + "," + empty + "]", root + bridge("") + "," + mirror + "," + port + "]",
			root + bridge(`,"controller":`+c) + "," + controller + "]", root + bridge("") + "," + controller + "]",
			root + empty + "," + mirror + "," + empty + "]", `[]`, `[{"rows":[]},{"rows":[]},{"rows":[]},{"rows":[]}]`, `[{"error":"x","details":"y"}]`, `null`, `{}`,
			root + `{"rows":[{"name":"br"}]},` + empty + "," + empty + "]", root + `{"rows":[{"_uuid":"x","name":5}]},` + empty + "," + empty + "]",
			root + bridge(`,"ports":["set",[`+b+`,`+b+`,`+c+`]]`) + "," + port + "," + iface + "]", root + bridge(`,"datapath_id":"00"`) + "," + port + "," + port + "]",
			root + `{"rows":[null]},` + empty + "," + empty + "]", root + `{"rows":[{"_uuid":` + a + `,"external_ids":["map",[["a","b"],["a","c"]]]}]},` + empty + "," + empty + "]",
			root + `{"rows":[{"_uuid":` + a + `,"ports":["set",["x"]]}]},` + empty + "," + empty + "]", root + `{"rows":[{"_uuid":` + a + `,"name":["map",[["a","b"]]]}]},` + empty + "," + empty + "]",
		} {
			f.Add(kind, []byte(answers))
		}
	}
	d, err := newDB(Options{Node: "n", Site: "s"}, nouns)
	if err != nil {
		f.Fatal(err)
	}
	names := slices.Sorted(maps.Keys(nouns))
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		if len(b) > budget.Largest {
			return
		}
		var results []ovsdb.OperationResult
		if !answered(b, &results) {
			return
		}
		n := nouns[names[int(kind)%len(names)]]
		ops := []ovsdb.Operation{rootRows.selects()}
		for _, r := range n.reads() {
			ops = append(ops, r.selects())
		}
		if _, err := ovsdb.CheckOperationResults(results, ops); err != nil || len(results) < len(ops) {
			return // which the caller detects first
		}
		var v *view
		var seen []observed
		var err error
		budget.Spend(t, func() {
			if v, err = d.picture(ops, results); err == nil {
				seen, err = n.list(v)
			}
		})
		if err != nil {
			return
		}
		for _, s := range seen {
			text, err := json.Marshal(s.Spec)
			var again schema.Object
			if err == nil {
				err = json.Unmarshal(text, &again)
			}
			if err != nil || again.Digest() != s.Spec.Digest() {
				t.Errorf("%s comes back as %v, %v", text, again, err)
			}
		}
		for uuid, m := range v.rows {
			for _, r := range append(n.reads(), rootRows) {
				if reflect.TypeOf(r.row) == reflect.TypeOf(m) {
					if err := rewritten(d, uuid, m, r.columns); err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
}

// rewritten writes the columns of a row like a change, sends them over the wire and reads them again.
func rewritten(d *db, uuid string, m model.Model, columns []string) error {
	c := &change{db: d, means: map[int]error{}}
	row := c.row(m, columns)
	if c.err != nil {
		return fmt.Errorf("the row %s cannot be written: %w", uuid, c.err)
	}
	for _, name := range columns {
		if _, ok := row[name]; !ok {
			return fmt.Errorf("the row %s is written without %s", uuid, name)
		}
	}
	row["_uuid"] = ovsdb.UUID{GoUUID: uuid}
	text, err := json.Marshal(row)
	if err != nil {
		return err
	}
	var wire ovsdb.Row
	if err := json.Unmarshal(text, &wire); err != nil {
		return fmt.Errorf("%s does not read: %w", text, err)
	}
	again := reflect.New(reflect.TypeOf(m).Elem()).Interface()
	if _, err := d.read(wire, again); err != nil {
		return fmt.Errorf("%s does not read: %w", text, err)
	}
	back := c.row(again, columns)
	back["_uuid"] = ovsdb.UUID{GoUUID: uuid}
	if more, err := json.Marshal(back); err != nil || !sameJSON(text, more) {
		return fmt.Errorf("%s comes back as %s, %v", text, more, err)
	}
	return nil
}

// sameJSON compares rows, whose sets and maps have no order.
func sameJSON(a, b []byte) bool {
	var x, y map[string]any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	for _, row := range []map[string]any{x, y} {
		for _, v := range row {
			if l, ok := v.([]any); ok && len(l) == 2 {
				if elements, ok := l[1].([]any); ok {
					slices.SortFunc(elements, func(a, b any) int { return slices.Compare(fmt.Appendf(nil, "%q", a), fmt.Appendf(nil, "%q", b)) })
				}
			}
		}
	}
	return reflect.DeepEqual(x, y)
}

// answered decodes a reply like the protocol library. That panics on malformed rows, which no ovsdb-server sends; we have
// to cope with what it makes of others.
func answered(b []byte, results *[]ovsdb.OperationResult) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return json.Unmarshal(b, results) == nil
}
