package carbide

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// expectedSwitcheRefusals are codes with a special meaning.
var expectedSwitcheRefusals = refusals{
	opCreate: {
		codes.Internal: providers.Exists, // the MAC address is taken
	},
}

type expectedSwitches struct {
	*service
	uuidKind
}

// An expectedSwitch is an entry, and the switch that was found, if any.
type expectedSwitch struct {
	*forge.ExpectedSwitch
	found *forge.LinkedExpectedSwitch
}

func (k expectedSwitches) all(ctx context.Context) ([]expectedSwitch, error) {
	said, found, err := both(ctx, k.GetAllExpectedSwitches, k.GetAllExpectedSwitchesLinked)
	links := map[string]*forge.LinkedExpectedSwitch{}
	for _, l := range found.GetExpectedSwitches() {
		if id := l.GetExpectedSwitchId().GetValue(); links[id].GetExploredEndpointAddress() == "" { // one row for each address
			links[id] = l
		}
	}
	out := make([]expectedSwitch, len(said.GetExpectedSwitches()))
	for i, o := range said.GetExpectedSwitches() {
		out[i] = expectedSwitch{o, links[o.GetExpectedSwitchId().GetValue()]}
	}
	return out, err
}

func (expectedSwitches) thing(o expectedSwitch) providers.Thing {
	password := o.GetNvosPassword() // empty when there is none: the service reports it
	s := spec.ExpectedSwitch{
		BMCMACAddress: strings.ToLower(o.GetBmcMacAddress()), BMCUsername: o.GetBmcUsername(), BMCPassword: o.GetBmcPassword(),
		BMCRetainCredentials: o.GetBmcRetainCredentials(), BMCIPAddress: unlessZero(o.GetBmcIpAddress()),
		SwitchSerialNumber: o.GetSwitchSerialNumber(), RackID: unlessZero(o.GetRackId().GetId()),
		NVOSUsername: unlessZero(o.GetNvosUsername()), NVOSPassword: &password, NVOSIPAddress: unlessZero(o.GetNvosIpAddress()),
		NVOSMACAddresses: each(o.GetNvosMacAddresses(), strings.ToLower),
	}
	var mark providers.Mark
	s.Description, s.Labels, mark = described(o.GetMetadata())
	status := spec.ExpectedSwitchStatus{
		Switch: unlessZero(o.found.GetSwitchId().GetId()), BMCEndpoint: unlessZero(o.found.GetExploredEndpointAddress()),
	}
	return providers.Thing{
		ID: o.GetExpectedSwitchId().GetValue(), Name: expectedName(o.GetMetadata(), o.GetBmcMacAddress()), Mark: mark,
		Spec: s.Object(), Status: status.Object(), Phase: providers.Ready,
	}
}

func (k expectedSwitches) create(ctx context.Context, c *call[spec.ExpectedSwitch]) error {
	_, err := k.AddExpectedSwitch(ctx, writeExpectedSwitch(c, &forge.ExpectedSwitch{ExpectedSwitchId: &forge.UUID{Value: c.ID}}))
	return err
}

func (k expectedSwitches) update(ctx context.Context, c *call[spec.ExpectedSwitch], now expectedSwitch) error {
	_, err := k.UpdateExpectedSwitch(ctx, writeExpectedSwitch(c, proto.CloneOf(now.ExpectedSwitch)))
	return err
}

func (k expectedSwitches) delete(ctx context.Context, c *call[spec.ExpectedSwitch]) error {
	_, err := k.DeleteExpectedSwitch(ctx, &forge.ExpectedSwitchRequest{ExpectedSwitchId: &forge.UUID{Value: c.ID}})
	return err
}

// writeExpectedSwitch changes an entry to the desired state. The service keeps bmc_retain_credentials when it is absent.
func writeExpectedSwitch(c *call[spec.ExpectedSwitch], o *forge.ExpectedSwitch) *forge.ExpectedSwitch {
	retain := c.want.BMCRetainCredentials
	o.BmcMacAddress = c.want.BMCMACAddress
	o.BmcUsername = c.want.BMCUsername
	o.BmcPassword = c.want.BMCPassword
	o.BmcRetainCredentials = &retain
	o.BmcIpAddress = value(c.want.BMCIPAddress)
	o.SwitchSerialNumber = c.want.SwitchSerialNumber
	o.Metadata = writeMetadata(c.Call, o.Metadata, c.Called(), c.want.Description, c.want.Labels)
	o.RackId = writeRack(value(c.want.RackID), o.RackId)
	o.NvosUsername = c.want.NVOSUsername
	o.NvosPassword = unlessZero(value(c.want.NVOSPassword))
	o.NvosMacAddresses = c.want.NVOSMACAddresses
	o.NvosIpAddress = c.want.NVOSIPAddress
	return o
}
