package carbide

import (
	"context"
	"strings"

	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

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

func (k expectedSwitches) create(ctx context.Context, c *providers.Call) error {
	_, err := k.AddExpectedSwitch(ctx, writeExpectedSwitch(c, &forge.ExpectedSwitch{ExpectedSwitchId: &forge.UUID{Value: c.ID}}))
	return err
}

func (k expectedSwitches) update(ctx context.Context, c *providers.Call, now expectedSwitch) error {
	_, err := k.UpdateExpectedSwitch(ctx, writeExpectedSwitch(c, proto.CloneOf(now.ExpectedSwitch)))
	return err
}

func (k expectedSwitches) delete(ctx context.Context, c *providers.Call) error {
	_, err := k.DeleteExpectedSwitch(ctx, &forge.ExpectedSwitchRequest{ExpectedSwitchId: &forge.UUID{Value: c.ID}})
	return err
}

// writeExpectedSwitch changes an entry to what is wanted. The service keeps bmc_retain_credentials when it is absent.
func writeExpectedSwitch(c *providers.Call, o *forge.ExpectedSwitch) *forge.ExpectedSwitch {
	retain := truth(c.Want, "bmc_retain_credentials")
	o.BmcMacAddress = text(c.Want, "bmc_mac_address")
	o.BmcUsername = text(c.Want, "bmc_username")
	o.BmcPassword = text(c.Want, "bmc_password")
	o.BmcRetainCredentials = &retain
	o.BmcIpAddress = text(c.Want, "bmc_ip_address")
	o.SwitchSerialNumber = text(c.Want, "switch_serial_number")
	o.Metadata = writeMetadata(c, o.Metadata, c.Called())
	o.RackId = writeRack(c, o.RackId)
	o.NvosUsername = optional(c.Want, "nvos_username")
	o.NvosPassword = optional(c.Want, "nvos_password")
	o.NvosMacAddresses = words(c.Want, "nvos_mac_addresses")
	o.NvosIpAddress = optional(c.Want, "nvos_ip_address")
	return o
}
