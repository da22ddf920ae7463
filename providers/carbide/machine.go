package carbide

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// Machines appear by discovery. They are never ours, so they bear no mark. Of the calls that change a machine, only the
// one for its metadata is guarded by the version, so an update is blind.
var machineTraits = providers.Traits{
	ID:     "{name}",
	Create: providers.Never, Update: providers.Blind, Delete: providers.Never,
	EffectWithin: late,
	UndoUpdate:   providers.Exact,
}

// preventAllocations is the classification of alerts that keep instances off a machine.
const preventAllocations = "PreventAllocations"

// machineReady is the state of a host that can take an instance.
const machineReady = "Ready"

// machineRefusals are codes with a special meaning.
var machineRefusals = refusals{
	opUpdate: {
		codes.FailedPrecondition: providers.Busy, // an instance runs on it, which fixes type and SKU
	},
}

type machines struct{ *service }

// known accepts hosts, but not their DPUs.
func (machines) known(id string) bool {
	rest, ok := strings.CutPrefix(id, "fm100h")
	return ok && len(rest) == 53 && (rest[0] == 't' || rest[0] == 's') && strings.Trim(rest[1:], "0123456789abcdefghijklmnopqrstuv") == ""
}

func (k machines) list(ctx context.Context) ([]string, error) {
	r, err := k.FindMachineIds(ctx, &forge.MachineSearchConfig{})
	ids := make([]string, len(r.GetMachineIds()))
	for i, id := range r.GetMachineIds() {
		ids[i] = id.GetId()
	}
	return ids, err
}

func (k machines) get(ctx context.Context, ids []string) ([]*forge.Machine, error) {
	r, err := k.FindMachinesByIds(ctx, &forge.MachinesByIdsRequest{MachineIds: wrapped(ids, func(id string) *forge.MachineId { return &forge.MachineId{Id: id} })})
	for _, o := range r.GetMachines() {
		flatten(o)
	}
	return r.GetMachines(), err
}

// flatten fills the flat fields of a machine, which are all that older servers have, from config and status. Where both are
// set the newer place counts, except for the state, which has other words there.
func flatten(o *forge.Machine) {
	if c := o.GetConfig(); c != nil {
		o.MaintenanceReference = cmp.Or(c.MaintenanceReference, o.MaintenanceReference)
		o.InstanceTypeId = cmp.Or(c.InstanceTypeId, o.InstanceTypeId)
		o.HwSku = cmp.Or(c.HwSku, o.HwSku)
	}
	if s := o.GetStatus(); s != nil {
		o.Health = cmp.Or(s.Health, o.Health)
		o.FailureDetails = cmp.Or(s.FailureDetails, o.FailureDetails)
		o.State = cmp.Or(o.State, stateOf(s.GetLifecycle()))
		if len(s.AssociatedDpuMachineIds) > 0 {
			o.AssociatedDpuMachineIds = s.AssociatedDpuMachineIds
		}
	}
}

// stateOf returns the state of a machine from its lifecycle, in the words of the flat field: {"state":"ready"} is Ready.
func stateOf(l *forge.LifecycleStatus) string {
	var at struct {
		State    string `json:"state"`
		Instance struct {
			State string `json:"state"`
		} `json:"instance_state"`
	}
	if json.Unmarshal([]byte(l.GetState()), &at) != nil {
		return l.GetState()
	}
	title := func(s string) string { return strings.ToUpper(s[:min(len(s), 1)]) + s[min(len(s), 1):] }
	return strings.TrimSuffix(title(at.State)+"/"+title(at.Instance.State), "/")
}

func (machines) thing(o *forge.Machine) providers.Thing {
	s := spec.Machine{InstanceType: unlessZero(o.GetInstanceTypeId()), SKU: unlessZero(o.GetHwSku())}
	s.Description, s.Labels, _ = described(o.GetMetadata())
	if reference := maintained(o); reference != "" {
		s.Maintenance = &spec.MachineMaintenance{Reference: reference}
	}
	state := o.GetState()
	status := spec.MachineStatus{
		State: &state, Unavailable: unlessZero(unavailable(o)), Rack: unlessZero(o.GetRackId().GetId()),
		Alerts: each(o.GetHealth().GetAlerts(), (*forge.HealthProbeAlert).GetId), DPUs: each(o.GetAssociatedDpuMachineIds(), (*forge.MachineId).GetId),
	}
	return providers.Thing{
		ID: o.GetId().GetId(), Name: o.GetId().GetId(), Version: o.GetVersion(),
		Spec: s.Object(), Status: status.Object(), Phase: providers.Ready, Detail: unwell(o),
	}
}

// unwell returns what is wrong with a machine, or that it is not ready yet; empty when it waits for an instance or has one.
func unwell(o *forge.Machine) string {
	var words []string
	if state := o.GetState(); state != machineReady && !strings.HasPrefix(state, "Assigned/") {
		words = append(words, strings.TrimSuffix("in state "+state+": "+o.GetFailureDetails(), ": "))
	}
	for _, a := range o.GetHealth().GetAlerts() {
		words = append(words, strings.TrimSuffix("alert "+a.GetId()+": "+a.GetMessage(), ": "))
	}
	return strings.Join(words, "; ")
}

// unavailable returns why the service would place no new instance on a machine; empty when it would.
func unavailable(o *forge.Machine) string {
	if state := o.GetState(); state != machineReady {
		return "in state " + state
	}
	for _, a := range o.GetHealth().GetAlerts() {
		if slices.Contains(a.GetClassifications(), preventAllocations) {
			return "alert " + a.GetId()
		}
	}
	return ""
}

func (machines) create(context.Context, *call[spec.Machine]) error { return errNone }

// update makes one call for each of metadata, maintenance and type that changes, and one or two for the SKU. The SKU goes
// first because most roles may not change it; of the others, only metadata is guarded by the version.
func (k machines) update(ctx context.Context, c *call[spec.Machine], now *forge.Machine) error {
	unmarked := *c.Call
	unmarked.Mark = providers.Mark{}
	before := now.GetMetadata()
	name := before.GetName()
	if len(name) < 2 { // the service refuses to keep its current name
		name = c.ID
	}
	after := writeMetadata(&unmarked, proto.CloneOf(before), name, c.want.Description, c.want.Labels)
	maintenance := value(c.want.Maintenance).Reference
	type step struct {
		needed bool
		do     func() error
	}
	steps := []step{
		{now.GetHwSku() != "" && now.GetHwSku() != value(c.want.SKU), func() error {
			_, err := k.RemoveSkuAssociation(ctx, &forge.RemoveSkuRequest{MachineId: now.Id})
			return administrators(err)
		}},
		{value(c.want.SKU) != "" && now.GetHwSku() != value(c.want.SKU), func() error {
			_, err := k.AssignSkuToMachine(ctx, &forge.SkuMachinePair{MachineId: now.Id, SkuId: value(c.want.SKU)})
			return administrators(err)
		}},
		{!sameMetadata(before, after), func() error {
			_, err := k.UpdateMachineMetadata(ctx, &forge.MachineMetadataUpdateRequest{
				MachineId: now.Id, IfVersionMatch: &now.Version, Metadata: after,
			})
			return err
		}},
		{maintenance != maintained(now), func() error { return k.setMaintenance(ctx, now.Id, maintenance) }},
		{value(c.want.InstanceType) != now.GetInstanceTypeId(), func() error { return k.setType(ctx, c.ID, value(c.want.InstanceType)) }},
	}
	steps = slices.DeleteFunc(steps, func(s step) bool { return !s.needed })
	for i, s := range steps {
		switch err := s.do(); {
		case err != nil && i > 0:
			return halfwayError{err}
		case err != nil && len(steps) > 1:
			return firstError{err}
		case err != nil:
			return err
		}
	}
	return nil
}

func (machines) delete(context.Context, *call[spec.Machine]) error { return errNone }

// maintained returns the maintenance that was requested. Maintenance that comes with an instance that is off belongs to
// the instance.
func maintained(o *forge.Machine) string {
	if r := o.GetMaintenanceReference(); r != offReference {
		return r
	}
	return ""
}

func (k machines) setMaintenance(ctx context.Context, id *forge.MachineId, reference string) error {
	request := &forge.MaintenanceRequest{Operation: forge.MaintenanceOperation_Disable, HostId: id}
	if reference != "" {
		request.Operation, request.Reference = forge.MaintenanceOperation_Enable, &reference
	}
	_, err := k.SetMaintenance(ctx, request)
	return err
}

func (k machines) setType(ctx context.Context, id, instanceType string) error {
	if instanceType == "" {
		_, err := k.RemoveMachineInstanceTypeAssociation(ctx, &forge.RemoveMachineInstanceTypeAssociationRequest{MachineId: id})
		return err
	}
	_, err := k.AssociateMachinesWithInstanceType(ctx, &forge.AssociateMachinesWithInstanceTypeRequest{
		InstanceTypeId: instanceType, MachineIds: []string{id},
	})
	return err
}
