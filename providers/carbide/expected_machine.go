package carbide

import (
	"context"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
	"converge.dev/converge/schema"
)

// What is expected is an entry in the site's inventory. What was found by it stays when the entry goes.
var expectedTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	Mark: true, Late: late,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Replace,
	Exclusive: []providers.Exclusive{{Field: "bmc_mac_address"}},
}

var dpuModes = enum[forge.DpuMode]{
	{"dpu_mode", forge.DpuMode_DPU_MODE},
	{"dpu_mode", forge.DpuMode_DPU_MODE_UNSPECIFIED},
	{"nic_mode", forge.DpuMode_NIC_MODE},
	{"no_dpu", forge.DpuMode_NO_DPU},
}

// expectedMachineRefusals are codes that mean something of their own.
var expectedMachineRefusals = refusals{
	opCreate: {
		codes.FailedPrecondition: providers.Exists,  // the MAC address is taken
		codes.Internal:           providers.Invalid, // the MAC address cannot be read
	},
}

type expectedMachines struct {
	*service
	uuidKind
}

// An expectedMachine is what was said, and the machine that was found, if any.
type expectedMachine struct {
	*forge.ExpectedMachine
	found *forge.LinkedExpectedMachine
}

func (k expectedMachines) all(ctx context.Context) ([]expectedMachine, error) {
	said, found, err := both(ctx, k.GetAllExpectedMachines, k.GetAllExpectedMachinesLinked)
	links := map[string]*forge.LinkedExpectedMachine{}
	for _, l := range found.GetExpectedMachines() {
		if id := l.GetExpectedMachineId().GetValue(); links[id].GetMachineId() == nil { // one row for each address of the BMC
			links[id] = l
		}
	}
	out := make([]expectedMachine, len(said.GetExpectedMachines()))
	for i, o := range said.GetExpectedMachines() {
		out[i] = expectedMachine{o, links[o.GetId().GetValue()]}
	}
	return out, err
}

// both asks what was said and what was found at the same time. The latter only completes the status: when it cannot be had,
// or the service has no such call, nothing is found.
func both[S, F proto.Message, O any](ctx context.Context, said func(context.Context, *emptypb.Empty, ...O) (S, error), found func(context.Context, *emptypb.Empty, ...O) (F, error)) (s S, f F, err error) {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		s, err = said(gctx, &emptypb.Empty{})
		return err
	})
	g.Go(func() error {
		if known, err := found(gctx, &emptypb.Empty{}); err == nil {
			f = known
		}
		return nil
	})
	err = g.Wait()
	return s, f, err
}

func (expectedMachines) thing(o expectedMachine) providers.Thing {
	spec := schema.Object{
		"bmc_mac_address":                     strings.ToLower(o.GetBmcMacAddress()),
		"bmc_username":                        o.GetBmcUsername(),
		"bmc_password":                        o.GetBmcPassword(),
		"bmc_retain_credentials":              o.GetBmcRetainCredentials(),
		"chassis_serial_number":               o.GetChassisSerialNumber(),
		"dpu_mode":                            dpuModes.word(o.GetDpuMode()),
		"default_pause_ingestion_and_poweron": o.GetDefaultPauseIngestionAndPoweron(),
		"is_dpf_enabled":                      o.IsDpfEnabled == nil || o.GetIsDpfEnabled(),
		"disable_lockdown":                    o.GetHostLifecycleProfile().GetDisableLockdown(),
	}
	mark := readMetadata(o.GetMetadata(), spec)
	put(spec, "bmc_ip_address", o.GetBmcIpAddress())
	put(spec, "sku", o.GetSkuId())
	put(spec, "rack_id", o.GetRackId().GetId())
	putList(spec, "fallback_dpu_serial_numbers", list(o.GetFallbackDpuSerialNumbers(), func(s string) any { return s }))
	putList(spec, "host_nics", list(o.GetHostNics(), func(n *forge.ExpectedHostNic) any { return readNIC(n) }))
	status := schema.Object{}
	put(status, "machine", o.found.GetMachineId().GetId())
	put(status, "bmc_endpoint", o.found.GetExploredEndpointAddress())
	return providers.Thing{
		ID: o.GetId().GetValue(), Name: expectedName(o.GetMetadata(), o.GetBmcMacAddress()), Mark: mark, Spec: spec, Status: status, Phase: providers.Ready,
	}
}

// expectedName gives the name of an entry, which may have none.
func expectedName(m *forge.Metadata, mac string) string {
	if name := m.GetName(); name != "" {
		return name
	}
	return strings.ToLower(mac)
}

func (k expectedMachines) create(ctx context.Context, c *call[spec.ExpectedMachine]) error {
	_, err := k.AddExpectedMachine(ctx, writeExpectedMachine(c, &forge.ExpectedMachine{Id: &forge.UUID{Value: c.ID}}))
	return err
}

func (k expectedMachines) update(ctx context.Context, c *call[spec.ExpectedMachine], now expectedMachine) error {
	request := writeExpectedMachine(c, proto.CloneOf(now.ExpectedMachine))
	// From v2.0 of the service on an entry that is a BMC stays unless the list is said to be whole.
	request.ReplaceHostNics = len(request.HostNics) < len(now.HostNics)
	if request.BmcIpAddress == nil && now.BmcIpAddress != nil {
		// There the empty text takes the address away, and its absence keeps it. Before, it is the other way round.
		emptied := proto.CloneOf(request)
		emptied.BmcIpAddress = new(string)
		if _, err := k.UpdateExpectedMachine(ctx, emptied); status.Code(err) != codes.InvalidArgument {
			return err
		}
	}
	_, err := k.UpdateExpectedMachine(ctx, request)
	return err
}

func (k expectedMachines) delete(ctx context.Context, c *call[spec.ExpectedMachine]) error {
	_, err := k.DeleteExpectedMachine(ctx, &forge.ExpectedMachineRequest{Id: &forge.UUID{Value: c.ID}})
	return err
}

// writeExpectedMachine changes an entry to what is wanted. Every switch is stated, because the service keeps those that are
// absent.
func writeExpectedMachine(c *call[spec.ExpectedMachine], o *forge.ExpectedMachine) *forge.ExpectedMachine {
	retain, pause, lockdown := c.want.BMCRetainCredentials, c.want.DefaultPauseIngestionAndPoweron, c.want.DisableLockdown
	dpf, said := c.Want["is_dpf_enabled"].(bool)
	dpf = dpf || !said
	o.BmcMacAddress = c.want.BMCMACAddress
	o.BmcUsername = c.want.BMCUsername
	o.BmcPassword = c.want.BMCPassword
	o.BmcRetainCredentials = &retain
	o.BmcIpAddress = c.want.BMCIPAddress
	o.ChassisSerialNumber = c.want.ChassisSerialNumber
	o.FallbackDpuSerialNumbers = c.want.FallbackDPUSerialNumbers
	o.Metadata = writeMetadata(c.Call, o.Metadata, c.Called(), c.want.Description, c.want.Labels)
	o.SkuId = c.want.SKU
	o.RackId = writeRack(value(c.want.RackID), o.RackId)
	if mode := c.Want["dpu_mode"]; mode != dpuModes.word(o.GetDpuMode()) {
		o.DpuMode = dpuModes.value(mode).Enum()
	}
	o.DefaultPauseIngestionAndPoweron = &pause
	o.IsDpfEnabled = &dpf
	//lint:ignore SA1019 it must not contradict its successor
	o.DpfEnabled = dpf
	if o.HostLifecycleProfile == nil {
		o.HostLifecycleProfile = &forge.HostLifecycleProfile{}
	}
	o.HostLifecycleProfile.DisableLockdown = &lockdown
	o.HostNics = renewMaps(o.HostNics, structs(c.Want, "host_nics"), readNIC, writeNIC, "mac_address")
	return o
}

func readNIC(n *forge.ExpectedHostNic) map[string]any {
	nic := map[string]any{"mac_address": strings.ToLower(n.GetMacAddress()), "primary": n.GetPrimary()}
	put(nic, "nic_type", n.GetNicType())
	put(nic, "fixed_ip", n.GetFixedIp())
	put(nic, "fixed_mask", n.GetFixedMask())
	put(nic, "fixed_gateway", n.GetFixedGateway())
	return nic
}

func writeNIC(n map[string]any, nic *forge.ExpectedHostNic) {
	nic.MacAddress, nic.NicType = text(n, "mac_address"), optional(n, "nic_type")
	nic.FixedIp, nic.FixedMask, nic.FixedGateway = optional(n, "fixed_ip"), optional(n, "fixed_mask"), optional(n, "fixed_gateway")
	nic.Primary = nil
	if primary := truth(n, "primary"); primary {
		nic.Primary = &primary
	}
}

func writeRack(id string, now *forge.RackId) *forge.RackId {
	switch id {
	case "":
		return nil
	case now.GetId():
		return now
	default:
		return &forge.RackId{Id: id}
	}
}
