package carbide

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
	"converge.dev/converge/schema"
)

// expectedSwitcheRefusals are codes that mean something of their own.
var expectedSwitcheRefusals = refusals{
	opCreate: {
		codes.Internal: providers.Exists, // the MAC address is taken
	},
}

type expectedSwitches struct {
	*service
	uuidKind
}

// An expectedSwitch is what was said, and the switch that was found, if any.
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
	spec := schema.Object{
		"bmc_mac_address":        strings.ToLower(o.GetBmcMacAddress()),
		"bmc_username":           o.GetBmcUsername(),
		"bmc_password":           o.GetBmcPassword(),
		"bmc_retain_credentials": o.GetBmcRetainCredentials(),
		"switch_serial_number":   o.GetSwitchSerialNumber(),
		"nvos_password":          o.GetNvosPassword(), // empty when there is none: the service tells
	}
	mark := readMetadata(o.GetMetadata(), spec)
	put(spec, "bmc_ip_address", o.GetBmcIpAddress())
	put(spec, "rack_id", o.GetRackId().GetId())
	put(spec, "nvos_username", o.GetNvosUsername())
	put(spec, "nvos_ip_address", o.GetNvosIpAddress())
	putList(spec, "nvos_mac_addresses", list(o.GetNvosMacAddresses(), func(mac string) any { return strings.ToLower(mac) }))
	status := schema.Object{}
	put(status, "switch", o.found.GetSwitchId().GetId())
	put(status, "bmc_endpoint", o.found.GetExploredEndpointAddress())
	return providers.Thing{
		ID: o.GetExpectedSwitchId().GetValue(), Name: expectedName(o.GetMetadata(), o.GetBmcMacAddress()), Mark: mark, Spec: spec, Status: status, Phase: providers.Ready,
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

// writeExpectedSwitch changes an entry to what is wanted. The service keeps bmc_retain_credentials when it is absent.
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
