package carbide

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
)

// propagates is the longest wait for a security group to be in force on all hosts that it concerns: many rounds of the
// agents, which poll the site twice a minute.
const propagates = 15 * time.Minute

// lacking returns which instances a security group has not reached yet, by the VPC or instance through which it
// concerns them; objects that it has reached are left out. It takes one call for each hundred objects, so that a list
// can afford it and reports the same as a single read. Objects without a group should not be included. A service that
// is too old to report this is assumed to have nothing to wait for.
func (s *service) lacking(ctx context.Context, vpcs, instances []string) (map[string][]string, error) {
	var requests []*forge.GetNetworkSecurityGroupPropagationStatusRequest
	for len(vpcs)+len(instances) > 0 {
		request := &forge.GetNetworkSecurityGroupPropagationStatusRequest{}
		n := min(len(vpcs), s.ids)
		request.VpcIds, vpcs = vpcs[:n], vpcs[n:]
		n = min(len(instances), s.ids-n)
		request.InstanceIds, instances = instances[:n], instances[n:]
		requests = append(requests, request)
	}
	answers := make([]*forge.GetNetworkSecurityGroupPropagationStatusResponse, len(requests))
	err := s.together(ctx, len(requests), func(ctx context.Context, i int) (err error) {
		answers[i], err = s.GetNetworkSecurityGroupPropagationStatus(ctx, requests[i])
		return err
	})
	if status.Code(err) == codes.Unimplemented {
		return nil, nil
	}
	lacks := make(map[string][]string)
	for _, r := range answers {
		for _, o := range r.GetVpcs() { // a VPC that concerns no instance has nothing to wait for
			if ids := behind(o); len(ids) > 0 {
				lacks[o.GetId()] = ids
			}
		}
		for _, o := range r.GetInstances() {
			if o.GetStatus() != fully {
				lacks[o.GetId()] = []string{o.GetId()}
			}
		}
	}
	return lacks, err
}

const fully = forge.NetworkSecurityGroupPropagationStatus_NSG_PROP_STATUS_FULL

// behind returns the instances that lack the group of an object; all that it concerns when the service does not report which.
func behind(o *forge.NetworkSecurityGroupPropagationObjectStatus) []string {
	switch ids := o.GetUnpropagatedInstanceIds(); {
	case o.GetStatus() == fully:
		return nil
	case len(ids) > 0:
		return ids
	}
	return o.GetRelatedInstanceIds()
}

// unfinished returns the detail for objects whose group is not in force everywhere: which instances lack it, "" when none
// does. It reads those instances, at most a page for each object, as many as a read of one object would; instances that are
// being released are not waited for.
func (s *service) unfinished(ctx context.Context, lacks map[string][]string) (map[string]string, error) {
	if len(lacks) == 0 {
		return nil, nil
	}
	var ids []string
	for object, l := range lacks {
		slices.Sort(l)
		l = slices.Compact(l)
		lacks[object] = l
		ids = append(ids, l[:min(len(l), s.ids)]...)
	}
	slices.Sort(ids)
	pages := slices.Collect(slices.Chunk(slices.Compact(ids), s.ids))
	known := make([][]*forge.Instance, len(pages))
	err := s.together(ctx, len(pages), func(ctx context.Context, i int) (err error) {
		known[i], err = instances{service: s}.read(ctx, pages[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	names, leaving := map[string]string{}, map[string]bool{}
	for _, i := range slices.Concat(known...) {
		id := i.GetId().GetValue()
		names[id] = i.GetMetadata().GetName()
		leaving[id] = phaseOf(i.GetStatus().GetTenant().GetState()) == providers.Deleting
	}
	details := make(map[string]string, len(lacks))
	for object, l := range lacks {
		l = slices.DeleteFunc(slices.Clone(l), func(id string) bool { return leaving[id] })
		if len(l) == 0 {
			continue
		}
		details[object] = "the security group is not in effect yet on " + counted(l, func(id string) string {
			if name := names[id]; name != "" {
				return fmt.Sprintf("instance %s (%s)", name, id)
			}
			return "instance " + id
		})
	}
	return details, nil
}

// counted lists a few of many things.
func counted(ids []string, name func(string) string) string {
	const few = 3
	var said []string
	for _, id := range ids[:min(len(ids), few)] {
		said = append(said, name(id))
	}
	text := strings.Join(said, ", ")
	if more := len(ids) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// spreading returns the phase of an object whose security group lacks something.
func spreading(lacks string) providers.Phase {
	if lacks != "" {
		return providers.Pending
	}
	return providers.Ready
}
