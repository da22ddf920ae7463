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

// expectedShelveRefusals are codes with a special meaning.
var expectedShelveRefusals = refusals{
	opCreate: {
		codes.Internal: providers.Exists, // the MAC address is taken
	},
}

type expectedShelves struct {
	*service
	uuidKind
}

// An expectedShelf is an entry, and the power shelf that was found, if any.
type expectedShelf struct {
	*forge.ExpectedPowerShelf
	found *forge.LinkedExpectedPowerShelf
}

func (k expectedShelves) all(ctx context.Context) ([]expectedShelf, error) {
	said, found, err := both(ctx, k.GetAllExpectedPowerShelves, k.GetAllExpectedPowerShelvesLinked)
	links := map[string]*forge.LinkedExpectedPowerShelf{}
	for _, l := range found.GetExpectedPowerShelves() {
		if id := l.GetExpectedPowerShelfId().GetValue(); links[id].GetExploredEndpointAddress() == "" { // one row for each address
			links[id] = l
		}
	}
	out := make([]expectedShelf, len(said.GetExpectedPowerShelves()))
	for i, o := range said.GetExpectedPowerShelves() {
		out[i] = expectedShelf{o, links[o.GetExpectedPowerShelfId().GetValue()]}
	}
	return out, err
}

func (expectedShelves) thing(o expectedShelf) providers.Thing {
	s := spec.ExpectedPowerShelf{
		BMCMACAddress: strings.ToLower(o.GetBmcMacAddress()), BMCUsername: o.GetBmcUsername(), BMCPassword: o.GetBmcPassword(),
		BMCRetainCredentials: o.GetBmcRetainCredentials(), BMCIPAddress: unlessZero(o.GetBmcIpAddress()),
		ShelfSerialNumber: o.GetShelfSerialNumber(), RackID: unlessZero(o.GetRackId().GetId()),
	}
	var mark providers.Mark
	s.Description, s.Labels, mark = described(o.GetMetadata())
	status := spec.ExpectedPowerShelfStatus{
		PowerShelf: unlessZero(o.found.GetPowerShelfId().GetId()), BMCEndpoint: unlessZero(o.found.GetExploredEndpointAddress()),
	}
	return providers.Thing{
		ID: o.GetExpectedPowerShelfId().GetValue(), Name: expectedName(o.GetMetadata(), o.GetBmcMacAddress()), Mark: mark,
		Spec: s.Object(), Status: status.Object(), Phase: providers.Ready,
	}
}

func (k expectedShelves) create(ctx context.Context, c *call[spec.ExpectedPowerShelf]) error {
	_, err := k.AddExpectedPowerShelf(ctx, writeExpectedShelf(c, &forge.ExpectedPowerShelf{ExpectedPowerShelfId: &forge.UUID{Value: c.ID}}))
	return err
}

func (k expectedShelves) update(ctx context.Context, c *call[spec.ExpectedPowerShelf], now expectedShelf) error {
	_, err := k.UpdateExpectedPowerShelf(ctx, writeExpectedShelf(c, proto.CloneOf(now.ExpectedPowerShelf)))
	return err
}

func (k expectedShelves) delete(ctx context.Context, c *call[spec.ExpectedPowerShelf]) error {
	_, err := k.DeleteExpectedPowerShelf(ctx, &forge.ExpectedPowerShelfRequest{ExpectedPowerShelfId: &forge.UUID{Value: c.ID}})
	return err
}

// writeExpectedShelf changes an entry to the desired state. The service keeps bmc_retain_credentials when it is absent.
func writeExpectedShelf(c *call[spec.ExpectedPowerShelf], o *forge.ExpectedPowerShelf) *forge.ExpectedPowerShelf {
	retain := c.want.BMCRetainCredentials
	o.BmcMacAddress = c.want.BMCMACAddress
	o.BmcUsername = c.want.BMCUsername
	o.BmcPassword = c.want.BMCPassword
	o.BmcRetainCredentials = &retain
	o.BmcIpAddress = value(c.want.BMCIPAddress)
	o.ShelfSerialNumber = c.want.ShelfSerialNumber
	o.Metadata = writeMetadata(c.Call, o.Metadata, c.Called(), c.want.Description, c.want.Labels)
	o.RackId = writeRack(value(c.want.RackID), o.RackId)
	return o
}
