package carbide

//lint:file-ignore SA1019 the deprecated flat fields are all that older servers have

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// A segment becomes ready with the next round of the service's controller, about every 30 s. A deleted one disappears
// when none of its addresses has been used for 5 min.
var segmentTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Never, Delete: providers.Blind,
	EffectWithin: late, ReadyWithin: 5 * time.Minute, GoneWithin: 20 * time.Minute,
	UndoCreate: providers.Exact, UndoDelete: providers.Replace,
	Exclusive: []providers.Exclusive{{Field: "prefixes.prefix"}},
}

var segmentTypes = enum[forge.NetworkSegmentType]{
	{"tenant", forge.NetworkSegmentType_TENANT},
	{"admin", forge.NetworkSegmentType_ADMIN},
	{"underlay", forge.NetworkSegmentType_UNDERLAY},
	{"host_inband", forge.NetworkSegmentType_HOST_INBAND},
}

// linknetName is the prefix of the names of the segments that the site makes for interfaces on VPC prefixes.
const linknetName = "vpc_prefix_"

// segmentRefusals are codes with a special meaning.
var segmentRefusals = refusals{
	opCreate: {
		codes.Internal: providers.Absent, // the VPC; a row that refers to nothing
	},
	opDelete: {
		codes.InvalidArgument: providers.Busy, // interfaces use it
	},
}

type segments struct {
	*service
	uuidKind
}

func (k segments) list(ctx context.Context) ([]string, error) {
	r, err := k.FindNetworkSegmentIds(ctx, &forge.NetworkSegmentSearchFilter{})
	return texts(r.GetNetworkSegmentsIds()), err
}

func (k segments) get(ctx context.Context, ids []string) ([]*forge.NetworkSegment, error) {
	r, err := k.FindNetworkSegmentsByIds(ctx, &forge.NetworkSegmentsByIdsRequest{NetworkSegmentsIds: wrapped(ids, func(id string) *forge.NetworkSegmentId { return &forge.NetworkSegmentId{Value: id} })})
	return r.GetNetworkSegments(), err
}

func (segments) thing(o *forge.NetworkSegment) providers.Thing {
	o = nested(o)
	config, state := o.GetConfig(), o.GetStatus().GetTenantState()
	kind := segmentTypes.word(config.GetSegmentType())
	s := spec.NetworkSegment{
		VPC: config.GetVpcId().GetValue(), Type: &kind, MTU: widen(config.Mtu),
		SubdomainID: unlessZero(config.GetSubdomainId().GetValue()),
		Prefixes: each(config.GetPrefixes(), func(p *forge.NetworkPrefix) spec.SegmentPrefix {
			return spec.SegmentPrefix{Prefix: p.GetPrefix(), ReserveFirst: int64(p.GetReserveFirst()), Gateway: unlessZero(p.GetGateway())}
		}),
	}
	untold := func(p spec.SegmentPrefix) bool { return p.Prefix == "" }
	var unfilled []string
	if len(s.Prefixes) == 0 || slices.ContainsFunc(s.Prefixes, untold) { // the service reports all of this elsewhere
		unfilled = []string{"vpc", "type", "prefixes", "mtu", "subdomain_id"}
	}
	written := s.Object()
	if s.VPC == "" { // the site's own segments are in no VPC
		delete(written, "vpc")
	}
	name := cmp.Or(o.GetMetadata().GetName(), o.GetName())
	stretches := slices.Contains(o.GetStatus().GetFlags(), forge.NetworkSegmentFlag_CAN_STRETCH)
	linknet := strings.HasPrefix(name, linknetName) && !stretches
	word, phase, detail := stateWords[state], phaseOf(state), ""
	if phase != providers.Ready {
		detail = because(word, o.GetStatus().GetLifecycle().GetStateReason(), o.GetStateReason())
	}
	return providers.Thing{
		ID: o.GetId().GetValue(), Name: name, Spec: written, Unfilled: unfilled,
		Status: (&spec.NetworkSegmentStatus{State: &word, Linknet: &linknet}).Object(), Derived: linknet,
		Phase: phase, Detail: detail,
	}
}

// nested returns a segment whose configuration and status are filled in; older servers have them flat.
func nested(o *forge.NetworkSegment) *forge.NetworkSegment {
	if o.GetConfig() == nil {
		o.Config = &forge.NetworkSegmentConfig{
			VpcId: o.GetVpcId(), SubdomainId: o.GetSubdomainId(), Mtu: o.Mtu, SegmentType: o.GetSegmentType(), Prefixes: o.GetPrefixes(),
		}
	}
	if o.GetStatus() == nil {
		o.Status = &forge.NetworkSegmentStatus{Flags: o.GetFlags(), TenantState: o.GetState()}
	}
	return o
}

func (k segments) create(ctx context.Context, c *call[spec.NetworkSegment]) error {
	request := &forge.NetworkSegmentCreationRequest{
		Id:          &forge.NetworkSegmentId{Value: c.ID},
		Name:        c.Called(),
		VpcId:       &forge.VpcId{Value: c.want.VPC},
		SegmentType: segmentTypes.value(value(c.want.Type)),
		Mtu:         narrow[int32](c.want.MTU),
	}
	if id := value(c.want.SubdomainID); id != "" {
		request.SubdomainId = &forge.DomainId{Value: id}
	}
	for _, p := range c.want.Prefixes {
		request.Prefixes = append(request.Prefixes, &forge.NetworkPrefix{Prefix: p.Prefix, Gateway: p.Gateway, ReserveFirst: int32(p.ReserveFirst)})
	}
	made, err := k.CreateNetworkSegment(ctx, request)
	c.Chose(made.GetId().GetValue())
	return unless(ctx, err, vpcs{service: k.service}.get, c.want.VPC)
}

func (segments) update(context.Context, *call[spec.NetworkSegment], *forge.NetworkSegment) error {
	return errNone
}

func (k segments) delete(ctx context.Context, c *call[spec.NetworkSegment]) error {
	_, err := k.DeleteNetworkSegment(ctx, &forge.NetworkSegmentDeletionRequest{Id: &forge.NetworkSegmentId{Value: c.ID}})
	return err
}

// stateWords are the tenant states as the schema writes them.
var stateWords = func() map[forge.TenantState]string {
	words := make(map[forge.TenantState]string, len(forge.TenantState_name))
	for n, name := range forge.TenantState_name {
		words[forge.TenantState(n)] = strings.ToLower(name)
	}
	return words
}()

// because adds to a state why it lasts, as far as the service reports it; each generation of servers reports it in one place.
func because(word string, told ...*forge.ControllerStateReason) string {
	for _, r := range told {
		if msg := r.GetOutcomeMsg(); msg != "" {
			return word + ": " + msg
		}
	}
	return word
}

// phaseOf returns the phase of an object with a tenant state.
func phaseOf(s forge.TenantState) providers.Phase {
	switch s {
	case forge.TenantState_READY, forge.TenantState_REPAIRING: // under repair, still usable
		return providers.Ready
	case forge.TenantState_TERMINATING, forge.TenantState_TERMINATED:
		return providers.Deleting
	case forge.TenantState_FAILED, forge.TenantState_INVALID:
		return providers.Failed
	}
	return providers.Pending
}
