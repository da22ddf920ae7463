package carbidetest

import (
	"fmt"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/schema"
)

var instances = Kind{
	Noun: "instance",
	CasesOn: func(hosts []string) []providertest.Case {
		keys := made("tenant_keyset", "ops", schema.Object{"tenant": "acme", "keys": []any{"ssh-ed25519 AAAA"}})
		net := segment("net", map[string]any{"prefix": "10.1.0.0/24", "gateway": "10.1.0.1", "reserve_first": int64(4)})
		second := segment("net-2", map[string]any{"prefix": "10.2.0.0/24", "reserve_first": int64(0)})
		want, changed := frontEnd(hosts[0])
		beside := func(i int) string { return hosts[(i+1)%len(hosts)] }
		return []providertest.Case{
			{
				Name: "web", Needs: []providertest.Made{acme, keys, web, prod, net, second},
				Want: want, Update: changed,
				Invalid: with(instance(hosts[0]), "os", map[string]any{}),
				Other: func(i int) providertest.Made {
					return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: instance(beside(i))}
				},
			},
			{
				Name: "asleep", Needs: []providertest.Made{acme, prod, net},
				Want: with(instance(hosts[0]), "power", "on"), Update: with(instance(hosts[0]), "power", "off"),
				Other: func(i int) providertest.Made {
					return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: with(instance(beside(i)), "power", "off")}
				},
			},
			{
				Name: "train", Needs: []providertest.Made{acme, prod, net,
					made("ib_partition", "ranks", schema.Object{"tenant": "acme"}), made("nvlink_logical_partition", "rack", schema.Object{"tenant": "acme"}),
					made("dpu_extension_service", "agent", schema.Object{"tenant": "acme", "manifest": Pod("one")}),
				},
				Want: fabrics(instance(hosts[0]), 0), Update: fabrics(instance(hosts[0]), 1),
				Invalid: fabrics(instance(hosts[0]), 7),
				Other: func(i int) providertest.Made {
					return providertest.Made{Name: fmt.Sprintf("other-%d", i), Spec: instance(beside(i))}
				},
			},
		}
	},
	Populations: []Population{
		{Site: plainHosts, Once: 1, Page: 1, After: 1, Why: "whether hosts are on is told by another call, once for all", Plant: func(b *Bed, n int) []string {
			return b.instances(n, "")
		}},
		{As: "with security groups", Site: plainHosts, Once: 1, Page: 2, After: 1, Why: "whether hosts are on is told by another call, once for all, and where a group is in force by a third, for a page of them", Plant: func(b *Bed, n int) []string {
			b.must(b.tenant("acme"))
			group, err := b.group("web")
			b.must(err)
			return b.instances(n, group)
		}},
	},
	Internal: "exists is busy",
	Scenes: []Scene{
		{
			Needs: `vpc: net: {tenant: "acme", virtualization: "fnn"}, vpc_prefix: links: {vpc: "net", prefix: "10.1.0.0/16"}`,
			One:   `{tenant: "acme", machine: _host, interfaces: [{vpc_prefix: "links"}], os: ipxe: "#!ipxe", labels: n: "1"}`,
			Two:   `{tenant: "acme", machine: _host, interfaces: [{vpc_prefix: "links"}], os: ipxe: "#!ipxe", labels: n: "2"}`,
		},
		{
			As: "boots", Ways: "update", Needs: `vpc: net: {tenant: "acme", virtualization: "fnn"}, vpc_prefix: links: {vpc: "net", prefix: "10.1.0.0/16"}`,
			One: `{tenant: "acme", machine: _host, interfaces: [{vpc_prefix: "links"}], os: ipxe: "#!ipxe one"}`,
			Two: `{tenant: "acme", machine: _host, interfaces: [{vpc_prefix: "links"}], os: ipxe: "#!ipxe two"}`,
		},
		{
			As: "off", Needs: `vpc: net: {tenant: "acme", virtualization: "fnn"}, vpc_prefix: links: {vpc: "net", prefix: "10.1.0.0/16"}`,
			One: `{tenant: "acme", machine: _host, interfaces: [{vpc_prefix: "links"}], os: ipxe: "#!ipxe", power: "off"}`,
			Two: `{tenant: "acme", machine: _host, interfaces: [{vpc_prefix: "links"}], os: ipxe: "#!ipxe", power: "on"}`,
			Otherwise: []Otherwise{
				{"one of several calls never succeeds: what the others did is undone as far as that does not need the same call", map[string]string{
					"delete/ReleaseInstance/busy for good":    "forward/",
					"delete/ReleaseInstance/late each time":   "forward/",
					"delete/SetMaintenance/busy for good":     "forward/",
					"delete/SetMaintenance/late each time":    "forward/",
					"~create/ReleaseInstance/busy for good":   "half~?",
					"~create/SetMaintenance/busy for good":    "half~?",
					"~update/SetMaintenance/busy for good":    "stuck?",
					"~update/UpdatePowerOption/busy for good": "stuck?",
				}},
				{"every one of several calls comes late: the verb gives up before the last has come", map[string]string{
					"~create/SetMaintenance/late each time":    "half~?+",
					"~create/UpdatePowerOption/late each time": "half~?+",
				}},
				{"a host that is shut down before the site knows that it is to be off is turned on again by the site", map[string]string{
					"~update/AdminPowerControl/cut":                  "adrift~+",
					"~update/AdminPowerControl/replies lost":         "stuck?+",
					"~update/AdminPowerControl/late each time":       "stuck?+",
					"~update/AdminPowerControl/done, said invalid":   "stuck",
					"~update/AdminPowerControl/done, said exhausted": "undone",
					"~update/AdminPowerControl/done, said internal":  "undone",
				}},
				{"so many calls get no answer that no attempt makes the rest: what was made is undone", map[string]string{
					"create/AllocateInstance/flapping":        "done+",
					"create/AdminPowerControl/flapping":       "done+",
					"create/AdminPowerControl/cut":            "away/+",
					"create/AdminPowerControl/replies lost":   "failed+",
					"create/AdminPowerControl/late each time": "failed+",
				}},
				{"the power of an instance that was made is set by an update of its own, whose refusal is definite, and whose effect shows", map[string]string{
					"create/AdminPowerControl/not there, said exists":  "done",
					"create/AdminPowerControl/not done, said internal": "done",
					"create/AdminPowerControl/done, said exhausted":    "done",
					"create/AdminPowerControl/done, said internal":     "done",
					"create/AdminPowerControl/busy":                    "done",
					"create/AdminPowerControl/done, said invalid":      "failed",
					"create/AdminPowerControl/refused":                 "failed",
				}},
				{"a look between two calls fails: it is unknown how far the verb came", map[string]string{
					"~update/AdminPowerControl/partial list": "undone+",
					"~update/SetMaintenance/partial list":    "undone+",
					"~update/UpdatePowerOption/partial list": "undone+",
				}},
				{"a host that the answer about power leaves out is one that nobody watches, and its power cannot be set: nothing is begun", map[string]string{
					"create/AllocateInstance/half a batch":  "refused",
					"create/AdminPowerControl/half a batch": "refused",
					"create/SetMaintenance/half a batch":    "refused",
					"create/UpdatePowerOption/half a batch": "refused",
				}},
			},
		},
		{
			As: "on", Ways: "update", Needs: `vpc: net: {tenant: "acme", virtualization: "fnn"}, vpc_prefix: links: {vpc: "net", prefix: "10.1.0.0/16"}`,
			One: `{tenant: "acme", machine: _host, interfaces: [{vpc_prefix: "links"}], os: ipxe: "#!ipxe", power: "on"}`,
			Two: `{tenant: "acme", machine: _host, interfaces: [{vpc_prefix: "links"}], os: ipxe: "#!ipxe", power: "off"}`,
			Otherwise: []Otherwise{
				{"one of several calls never succeeds: what the others did is undone as far as that does not need the same call", map[string]string{
					"update/SetMaintenance/busy for good":    "settled",
					"update/UpdatePowerOption/busy for good": "settled",
				}},
				{"a host that is shut down before the site knows that it is to be off is turned on again by the site", map[string]string{
					"update/AdminPowerControl/cut":                  "away?+",
					"update/AdminPowerControl/flapping":             "done+",
					"update/AdminPowerControl/late each time":       "settled+",
					"update/AdminPowerControl/replies lost":         "settled+",
					"update/AdminPowerControl/done, said invalid":   "refused",
					"update/AdminPowerControl/done, said exhausted": "done",
					"update/AdminPowerControl/done, said internal":  "done",
				}},
				{"a look between two calls fails: it is unknown how far the verb came", map[string]string{
					"update/AdminPowerControl/partial list": "done+",
					"update/SetMaintenance/partial list":    "done+",
					"update/UpdatePowerOption/partial list": "done+",
				}},
			},
		},
	},
	Whole: `
instance: bare: {tenant: "acme", machine: _bare, auto_network: true, auto_vpc: "level", os: ipxe: "#!ipxe"}
instance: train: {
	_meta, tenant: "acme", machine: _host, instance_type: "big", hostname: "train", keysets: ["ops"]
	os: {ipxe: "#!ipxe", user_data: "#cloud-config", run_provisioning_instructions_on_every_boot: true}
	interfaces: [
		{vpc_prefix: "links", ip_address: "10.1.0.1", device: "MT43244 BlueField-3 SuperNIC"},
		{function: "virtual", virtual_function_id: 3, segment: "net", device: "MT43244 BlueField-3 SuperNIC"},
	]
	infiniband: [{ib_partition: "ranks", device: "MT2910 Family [ConnectX-7]", vendor: "Mellanox"}]
	nvlink: [{gpu: 0, logical_partition: "rack"}]
	spx: [{spx_partition: "east", device: "MT43244 BlueField-3 SuperNIC"}]
	dpu_extension_services: [{service: "agent", version: 1}]
	network_security_group: "web", power: "on"
	depends_on: ["site/carbide.machine/\(_host)"]
}
`,
}

// ConnectX is the model of the InfiniBand adapters of simulated hosts.
const ConnectX = "MT2910 Family [ConnectX-7]"

func instance(host string) schema.Object {
	return schema.Object{
		"tenant": "acme", "machine": host, "auto_network": false,
		"os":         map[string]any{"ipxe": "#!ipxe\nboot", "phone_home_enabled": false, "run_provisioning_instructions_on_every_boot": false},
		"interfaces": []any{map[string]any{"function": "physical", "device_instance": int64(0), "segment": ID("network_segment", "net")}},
	}
}

// frontEnd returns an instance without networks of other kinds, and what it becomes.
func frontEnd(host string) (o, changed schema.Object) {
	o, changed = instance(host), instance(host)
	o["description"], o["labels"] = "front end", labels("app", "web", "empty", "")
	o["hostname"], o["keysets"] = "web", []any{"acme/ops"}
	o["network_security_group"] = ID("network_security_group", "web")
	changed["hostname"], changed["labels"] = "web", labels("app", "shop")
	changed["os"] = map[string]any{
		"ipxe": "#!ipxe\nchain", "user_data": "#cloud-config", "phone_home_enabled": false, "run_provisioning_instructions_on_every_boot": true,
	}
	changed["interfaces"] = []any{
		map[string]any{"function": "physical", "device_instance": int64(0), "segment": ID("network_segment", "net")},
		map[string]any{"function": "virtual", "device_instance": int64(0), "virtual_function_id": int64(3), "segment": ID("network_segment", "net-2")},
	}
	return o, changed
}

// with returns an instance in which one field is different.
func with(o schema.Object, field string, v any) schema.Object {
	o = o.Clone()
	o[field] = v
	return o
}

// fabrics adds to an instance a port on InfiniBand, a GPU and a service.
func fabrics(o schema.Object, device int64) schema.Object {
	o["infiniband"] = []any{map[string]any{"ib_partition": ID("ib_partition", "ranks"), "device": ConnectX, "device_instance": device}}
	o["nvlink"] = []any{map[string]any{"gpu": device, "logical_partition": ID("nvlink_logical_partition", "rack")}}
	o["dpu_extension_services"] = []any{map[string]any{"service": ID("dpu_extension_service", "agent"), "version": int64(1)}}
	return o
}
