package carbide

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// A peering has no place for a mark, no name and nothing that can change: only its id shows whose it is.
var peeringTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Never, Delete: providers.Blind,
	EffectWithin: late,
	UndoCreate:   providers.Exact, UndoDelete: providers.Replace,
	Exclusive: []providers.Exclusive{{Field: "vpcs", Whole: true}},
}

// peeringRefusals are codes with a special meaning.
var peeringRefusals = refusals{
	opCreate: {
		codes.FailedPrecondition: providers.Exists, // the pair is peered already
		codes.Internal:           providers.Absent, // one of the VPCs
	},
}

type peerings struct {
	*service
	uuidKind
}

func (k peerings) list(ctx context.Context) ([]string, error) {
	r, err := k.FindVpcPeeringIds(ctx, &forge.VpcPeeringSearchFilter{})
	return texts(r.GetVpcPeeringIds()), err
}

func (k peerings) get(ctx context.Context, ids []string) ([]*forge.VpcPeering, error) {
	r, err := k.FindVpcPeeringsByIds(ctx, &forge.VpcPeeringsByIdsRequest{VpcPeeringIds: wrapped(ids, func(id string) *forge.VpcPeeringId { return &forge.VpcPeeringId{Value: id} })})
	return r.GetVpcPeerings(), err
}

// thing sorts the pair: the service may return it the other way round.
func (peerings) thing(o *forge.VpcPeering) providers.Thing {
	pair := []string{o.GetVpcId().GetValue(), o.GetPeerVpcId().GetValue()}
	slices.Sort(pair)
	t := providers.Thing{
		ID: o.GetId().GetValue(), Name: pair[0] + "/" + pair[1], Phase: providers.Ready,
		Spec: (&spec.VPCPeering{VPCs: pair}).Object(),
	}
	if pair[0] == "" {
		t.Unfilled = []string{"vpcs"}
	}
	return t
}

func (k peerings) create(ctx context.Context, c *call[spec.VPCPeering]) error {
	request := &forge.VpcPeeringCreationRequest{Id: &forge.VpcPeeringId{Value: c.ID}}
	for i, id := range c.want.VPCs {
		switch i {
		case 0:
			request.VpcId = &forge.VpcId{Value: id}
		case 1:
			request.PeerVpcId = &forge.VpcId{Value: id}
		}
	}
	made, err := k.CreateVpcPeering(ctx, request)
	c.Chose(made.GetId().GetValue())
	return err
}

func (peerings) update(context.Context, *call[spec.VPCPeering], *forge.VpcPeering) error {
	return errNone
}

// delete reads first: the service reports an unknown id as an internal error, and a peering is gone when one of its VPCs is.
func (k peerings) delete(ctx context.Context, c *call[spec.VPCPeering]) error {
	found, err := k.get(ctx, []string{c.ID})
	if err != nil {
		return unsentError{err}
	}
	if len(found) == 0 {
		return nil
	}
	_, err = k.DeleteVpcPeering(ctx, &forge.VpcPeeringDeletionRequest{Id: &forge.VpcPeeringId{Value: c.ID}})
	return err
}
