package ovs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/spec"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// controllerSettings are the columns of Controller that a spec holds.
var controllerSettings = []string{
	"connection_mode", "controller_burst_limit", "controller_queue_size", "controller_rate_limit", "enable_async_messages",
	"external_ids", "inactivity_probe", "max_backoff", "other_config", "target", "type",
}

// controllerExtras are the columns in which others set what a spec does not hold; a controller is not deleted while they
// are set.
var controllerExtras = []string{"local_gateway", "local_ip", "local_netmask"}

// controllers is the kind ovs.controller.
type controllers struct{}

// reads has all controllers: names and targets are compared with those of the others.
func (controllers) reads() []reading {
	return []reading{bridgeRows, {
		table: vswitch.ControllerTable, row: &vswitch.Controller{},
		columns: slices.Concat([]string{"is_connected", "role"}, controllerSettings, controllerExtras),
	}}
}

// traits: the first primary controller of a bridge empties its flow table, and so does the removal of the last, so that an
// undo brings back the configuration and not the flows. What OVS does with one target twice on a bridge is not specified.
func (controllers) traits(common providers.Traits) providers.Traits {
	common.UndoCreate, common.UndoUpdate, common.UndoDelete = providers.Restart, providers.Restart, providers.Restart
	common.Exclusive = []providers.Exclusive{{Field: "target", Within: "bridge"}}
	return common
}

func (controllers) list(v *view) ([]observed, error) {
	var seen []observed
	ids := ids[vswitch.Controller](v)
	for o := range all[vswitch.Controller](v) {
		bridges := v.controlled(o)
		if len(bridges) == 0 {
			return nil, fmt.Errorf("controller %s does not belong to any bridge in the database", o.UUID)
		}
		b := bridges[0]
		rest, name, mark := shown(o)
		s := spec.Controller{
			Bridge: b.Name, ConnectionMode: o.ConnectionMode, ControllerBurstLimit: wide(o.ControllerBurstLimit),
			ControllerQueueSize: wide(o.ControllerQueueSize), ControllerRateLimit: wide(o.ControllerRateLimit),
			EnableAsyncMessages: o.EnableAsyncMessages, ExternalIDs: rest, InactivityProbe: wide(o.InactivityProbe),
			MaxBackoff: wide(o.MaxBackoff), OtherConfig: filled(o.OtherConfig), Target: o.Target, Type: o.Type,
		}
		status := spec.ControllerStatus{IsConnected: &o.IsConnected}
		if o.IsConnected {
			status.Role = o.Role
		}
		th := providers.Thing{ID: ids[o.UUID], UID: o.UUID, Name: name, Mark: mark, Spec: s.Object(), Status: status.Object()}
		th.Phase, th.Detail = v.phaseOfController(o, bridges)
		seen = append(seen, observed{Thing: th, rows: []string{b.UUID, o.UUID}})
	}
	return seen, nil
}

// phaseOfController tells how far ovs-vswitchd is with a controller, and what is not well with it. Whether a controller
// answers is no part of its configuration, so one that does not is ready all the same.
func (v *view) phaseOfController(o *vswitch.Controller, bridges []*vswitch.Bridge) (providers.Phase, string) {
	switch b := bridges[0]; {
	case b.DatapathID == nil:
		return providers.Pending, "ovs-vswitchd did not create bridge " + b.Name + "; see its log"
	case len(bridges) > 1:
		return providers.Ready, "bridge " + bridges[1].Name + " has the same controller"
	case v.rival(b, o.Target, o.UUID) != nil:
		return providers.Ready, "another controller of bridge " + b.Name + " has the same target"
	case !o.IsConnected && !strings.HasPrefix(o.Target, "p"):
		return providers.Ready, "not connected"
	}
	return providers.Ready, ""
}

func (controllers) create(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	if err := free[vswitch.Controller](v, name, "controller"); err != nil {
		return err
	}
	o, b, err := wantedController(v, want, name, mark, &vswitch.Controller{})
	if err != nil {
		return err
	}
	c.unnamed(name)
	c.present(b)
	c.insert(vswitch.ControllerTable, "controller", o, controllerSettings...)
	c.refer(vswitch.BridgeTable, b.UUID, "controller", ovsdb.MutateOperationInsert, "controller")
	return nil
}

func (controllers) update(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	have := called[vswitch.Controller](v, name)
	o, b, err := wantedController(v, want, kept(have, name), mark, have)
	switch {
	case err != nil:
		return err
	case b.UUID != v.controlled(have)[0].UUID:
		return refuse(providers.Invalid, "bridge cannot be changed in place")
	case value(o.Type) != value(have.Type): // the database takes it, and ovs-vswitchd goes on as before
		return refuse(providers.Invalid, "type cannot be changed in place")
	}
	c.unchanged(vswitch.ControllerTable, have.UUID, have, controllerSettings...)
	c.update(vswitch.ControllerTable, have.UUID, o, controllerSettings...)
	return nil
}

// remove refuses whenever something would go that the spec of the controller does not hold, so that a delete can be undone.
func (controllers) remove(_ context.Context, v *view, c *change, name string) error {
	o := called[vswitch.Controller](v, name)
	bridges := v.controlled(o)
	if len(bridges) > 1 {
		return refuse(providers.Invalid, "another client has also added controller %s to bridge %s, which would keep it", name, bridges[1].Name)
	}
	c.unchanged(vswitch.ControllerTable, o.UUID, o, slices.Concat(controllerSettings, controllerExtras)...)
	if extras := c.set(o, &vswitch.Controller{}, controllerExtras); len(extras) > 0 {
		return refuse(providers.Invalid, "%s set by another client on controller %s would be lost", strings.Join(extras, ", "), name)
	}
	c.guard(refuse(providers.Conflict, "it has just been added to another bridge"), vswitch.BridgeTable,
		ovsdb.NewCondition("controller", ovsdb.ConditionIncludes, ovsdb.UUID{GoUUID: o.UUID}), ovsdb.WaitConditionEqual,
		ovsdb.Row{"name": bridges[0].Name})
	c.refer(vswitch.BridgeTable, bridges[0].UUID, "controller", ovsdb.MutateOperationDelete, o.UUID)
	return nil
}

// controlled returns the bridges that have a controller, by name. The database lets several have the same.
func (v *view) controlled(o *vswitch.Controller) []*vswitch.Bridge {
	var bridges []*vswitch.Bridge
	for b := range all[vswitch.Bridge](v) {
		if slices.Contains(b.Controller, o.UUID) {
			bridges = append(bridges, b)
		}
	}
	slices.SortFunc(bridges, func(a, b *vswitch.Bridge) int { return cmp.Compare(a.Name, b.Name) })
	return bridges
}

// rival returns a controller of a bridge, other than the one with a UUID, that has a target; nil when there is none.
func (v *view) rival(b *vswitch.Bridge, target, but string) *vswitch.Controller {
	return find(v, func(o *vswitch.Controller) bool {
		return o.UUID != but && o.Target == target && slices.Contains(b.Controller, o.UUID)
	})
}

// unnamed guards that no controller has a name. A wait compares the rows that it finds with those that it is given, and the
// library cannot give it none: so what it finds must be neither of the two rows that a boolean column can make.
func (c *change) unnamed(name string) {
	has := ovsdb.NewCondition("external_ids", ovsdb.ConditionIncludes, ovsdb.OvsMap{GoMap: map[any]any{nameKey: name}})
	for _, is := range []bool{false, true} {
		c.guard(refuse(providers.Exists, "the name %s has just been taken", name),
			vswitch.ControllerTable, has, ovsdb.WaitConditionNotEqual, ovsdb.Row{"is_connected": is})
	}
}

// wantedController returns the row of a controller as wanted, with its name unless that is empty, and its bridge.
func wantedController(
	v *view, want schema.Object, name string, mark providers.Mark, had *vswitch.Controller,
) (*vswitch.Controller, *vswitch.Bridge, error) {
	var s spec.Controller
	if err := read(want, &s); err != nil {
		return nil, nil, err
	}
	ids, err := labelled(s.ExternalIDs, name, mark)
	if err != nil {
		return nil, nil, err
	}
	b := v.bridge(s.Bridge)
	switch {
	case b == nil:
		return nil, nil, refuse(providers.Absent, "bridge %s does not exist", s.Bridge)
	case s.Target != had.Target && v.rival(b, s.Target, had.UUID) != nil:
		return nil, nil, refuse(providers.Invalid, "bridge %s already has a controller with target %s", b.Name, s.Target)
	}
	return &vswitch.Controller{
		ConnectionMode: s.ConnectionMode, ControllerBurstLimit: narrow(s.ControllerBurstLimit),
		ControllerQueueSize: narrow(s.ControllerQueueSize), ControllerRateLimit: narrow(s.ControllerRateLimit),
		EnableAsyncMessages: s.EnableAsyncMessages, ExternalIDs: ids, InactivityProbe: narrow(s.InactivityProbe),
		MaxBackoff: narrow(s.MaxBackoff), OtherConfig: s.OtherConfig, Target: s.Target, Type: s.Type,
	}, b, nil
}
