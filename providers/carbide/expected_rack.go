package carbide

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// An expected rack is an entry in the site's inventory, under an id that is the operator's. A rack that was found stays when it goes.
var expectedRackTraits = providers.Traits{
	ID:     "{name}",
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	Mark: true, EffectWithin: late,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Exact,
}

// expectedRackRefusals are codes that mean something of their own.
var expectedRackRefusals = refusals{
	opCreate: {
		codes.FailedPrecondition: providers.Exists, // the id is taken
	},
}

type expectedRacks struct{ *service }

func (expectedRacks) known(id string) bool { return id != "" }

func (k expectedRacks) all(ctx context.Context) ([]*forge.ExpectedRack, error) {
	r, err := k.GetAllExpectedRacks(ctx, &emptypb.Empty{})
	return r.GetExpectedRacks(), err
}

func (expectedRacks) thing(o *forge.ExpectedRack) providers.Thing {
	s := spec.ExpectedRack{Profile: o.GetRackProfileId().GetId()}
	var mark providers.Mark
	s.Description, s.Labels, mark = described(o.GetMetadata())
	id := o.GetRackId().GetId()
	return providers.Thing{ID: id, Name: id, Mark: mark, Spec: s.Object(), Phase: providers.Ready}
}

func (k expectedRacks) create(ctx context.Context, c *call[spec.ExpectedRack]) error {
	_, err := k.AddExpectedRack(ctx, writeExpectedRack(c, &forge.ExpectedRack{RackId: &forge.RackId{Id: c.ID}}))
	return err
}

func (k expectedRacks) update(ctx context.Context, c *call[spec.ExpectedRack], now *forge.ExpectedRack) error {
	_, err := k.UpdateExpectedRack(ctx, writeExpectedRack(c, proto.CloneOf(now)))
	return err
}

func (k expectedRacks) delete(ctx context.Context, c *call[spec.ExpectedRack]) error {
	_, err := k.DeleteExpectedRack(ctx, &forge.ExpectedRackRequest{RackId: c.ID})
	return err
}

// writeExpectedRack changes an entry to what is wanted.
func writeExpectedRack(c *call[spec.ExpectedRack], o *forge.ExpectedRack) *forge.ExpectedRack {
	if o.GetRackProfileId().GetId() != c.want.Profile {
		o.RackProfileId = &forge.RackProfileId{Id: c.want.Profile}
	}
	o.Metadata = writeMetadata(c.Call, o.Metadata, c.Called(), c.want.Description, c.want.Labels)
	return o
}
