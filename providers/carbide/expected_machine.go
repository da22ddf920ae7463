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
)

// An expected machine is an entry in the site's inventory. What was found through it stays when the entry is deleted.
var expectedTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	Mark: true, EffectWithin: late,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Replace,
	Exclusive: []providers.Exclusive{{Field: "bmc_mac_address"}},
}

var dpuModes = enum[forge.DpuMode]{
	{"dpu_mode", forge.DpuMode_DPU_MODE},
	{"dpu_mode", forge.DpuMode_DPU_MODE_UNSPECIFIED},
	{"nic_mode", forge.DpuMode_NIC_MODE},
	{"no_dpu", forge.DpuMode_NO_DPU},
}

// expectedMachineRefusals are codes with a special meaning.
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

// An expectedMachine is an entry, and the machine that was found, if any.
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

// both reads the entries and what was found, concurrently. The latter only completes the status: when it cannot be read,
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
	mode, dpf := dpuModes.word(o.GetDpuMode()), o.IsDpfEnabled == nil || o.GetIsDpfEnabled()
	s := spec.ExpectedMachine{
		BMCMACAddress: strings.ToLower(o.GetBmcMacAddress()), BMCUsername: o.GetBmcUsername(), BMCPassword: o.GetBmcPassword(),
		BMCRetainCredentials: o.GetBmcRetainCredentials(), BMCIPAddress: unlessZero(o.GetBmcIpAddress()),
		ChassisSerialNumber: o.GetChassisSerialNumber(), FallbackDPUSerialNumbers: o.GetFallbackDpuSerialNumbers(),
		DPUMode: &mode, IsDpfEnabled: &dpf, DefaultPauseIngestionAndPoweron: o.GetDefaultPauseIngestionAndPoweron(),
		DisableLockdown: o.GetHostLifecycleProfile().GetDisableLockdown(), SKU: unlessZero(o.GetSkuId()),
		RackID: unlessZero(o.GetRackId().GetId()), HostNICs: each(o.GetHostNics(), readNIC),
	}
	var mark providers.Mark
	s.Description, s.Labels, mark = described(o.GetMetadata())
	status := spec.ExpectedMachineStatus{
		Machine: unlessZero(o.found.GetMachineId().GetId()), BMCEndpoint: unlessZero(o.found.GetExploredEndpointAddress()),
	}
	return providers.Thing{
		ID: o.GetId().GetValue(), Name: expectedName(o.GetMetadata(), o.GetBmcMacAddress()), Mark: mark,
		Spec: s.Object(), Status: status.Object(), Phase: providers.Ready,
	}
}

// expectedName returns the name of an entry; its MAC address when it has none.
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
	// From v2.0 of the service on, an entry that is a BMC stays unless the list is declared complete.
	request.ReplaceHostNics = len(request.HostNics) < len(now.HostNics)
	if request.BmcIpAddress == nil && now.BmcIpAddress != nil {
		// There the empty text removes the address, and its absence keeps it. In earlier versions it is the other way round.
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

// writeExpectedMachine changes an entry to the desired state. Every switch is stated, because the service keeps absent ones.
func writeExpectedMachine(c *call[spec.ExpectedMachine], o *forge.ExpectedMachine) *forge.ExpectedMachine {
	retain, pause, lockdown := c.want.BMCRetainCredentials, c.want.DefaultPauseIngestionAndPoweron, c.want.DisableLockdown
	dpf := c.want.IsDpfEnabled == nil || *c.want.IsDpfEnabled
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
	if mode := value(c.want.DPUMode); mode != dpuModes.word(o.GetDpuMode()) {
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
	o.HostNics = renew(o.HostNics, c.want.HostNICs, readNIC, writeNIC, func(n *spec.ExpectedNIC) string { return n.MACAddress })
	return o
}

func readNIC(n *forge.ExpectedHostNic) spec.ExpectedNIC {
	return spec.ExpectedNIC{
		MACAddress: strings.ToLower(n.GetMacAddress()), Primary: n.GetPrimary(), NICType: unlessZero(n.GetNicType()),
		FixedIP: unlessZero(n.GetFixedIp()), FixedMask: unlessZero(n.GetFixedMask()), FixedGateway: unlessZero(n.GetFixedGateway()),
	}
}

func writeNIC(n *spec.ExpectedNIC, nic *forge.ExpectedHostNic) {
	nic.MacAddress, nic.NicType, nic.Primary = n.MACAddress, n.NICType, unlessZero(n.Primary)
	nic.FixedIp, nic.FixedMask, nic.FixedGateway = n.FixedIP, n.FixedMask, n.FixedGateway
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
