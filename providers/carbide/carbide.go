// Package carbide serves the kinds of a site's control service, Carbide: tenants and their keys, VPCs, prefixes,
// peerings, segments, security groups, partitions of the other fabrics, instance types and what is allocated of them,
// instances and machines; operating systems, images, services on DPUs; and the hardware that is to be found, with its SKUs.
//
// One file per kind holds what is particular to it: its traits, its calls, and the translation between messages and
// specs. Everything else is shared: kind.go has the four verbs, whole.go reads kinds without ids, refusal.go says what a
// failed call means, metadata.go keeps name, description, labels and our mark, dial.go connects and calls, tls.go reads
// certificates and says what is wrong with them, link.go replaces them, health.go counts.
//
// Words: an *object* is a message that stands for one thing; *now* is the object as it was read right before an
// update.
//
// Promises:
//
//   - Observing all of a kind costs one call for the ids and one for each hundred of them (or whatever the site
//     allows), several at a time; of what the service tells whole, one or two. Security groups and instances take one
//     more for each hundred, and what has a security group one or two, for the service tells less at once.
//     TestCallsToList counts them for every kind.
//   - The service's updates replace everything. Ours start from the object as it is, so that what the schema does
//     not know is kept.
//   - The service's codes do not say what they mean: a taken id is INTERNAL, a machine that is not ready yet is
//     INVALID_ARGUMENT. After a refusal the object is read again, and an error says no more than what that proves.
//   - A change whose request left the process and whose answer did not come back is Unknown; one whose request never
//     left is Transient.
//   - A call has at most three quarters of the time that its caller has left, so that there is some left to look.
//   - Certificates may be replaced at any time: nothing fails. A new connection takes over once the service has answered on
//     it; calls under way end on the old one, which closes with the last of them. Files that do not fit together, or that
//     one of the sides refuses, change nothing, and are logged. TestRotation replaces all certificates of both sides fifty
//     times, with two hundred calls a second, and none fails.
//   - A service that cannot be reached, or does not know us, makes the provider's Health bad; what it says about its objects
//     does not; any success makes it good. So does one that answers and takes no changes, as when it or its database is
//     handed over: for a while, after which the next change finds out.
//   - No state is kept, and no change is tried twice. A look is: what is missing from an answer is asked for once more, for
//     an answer has no place to say that it is not whole. Looks at a kind that is told whole share a list.
package carbide

import (
	"context"
	"log/slog"
	"net"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// Name is the name of the provider.
const Name = "carbide"

// Options say where the service is and how to speak to it.
type Options struct {
	Address string // required: HOST:PORT or unix:PATH
	TLS     TLS    // required, unless the address is on this machine

	// AllowInsecure permits a connection without TLS to another machine.
	AllowInsecure bool

	Parallel int           // optional: calls at the same time; 8
	Timeout  time.Duration // optional: longest wait for the answer to one call; 30 s

	// Late bounds how long after our side gave up a call may still have its effect. Optional: a minute, for the service
	// ends a call when its deadline has passed.
	Late time.Duration

	// Recheck is how often, at most, calls have the files of certificates looked at. Optional: 5 s; without calls it is
	// twelve times as long.
	Recheck time.Duration

	// Trace is sent with every call, as W3C trace context: 00-TRACE-PARENT-FLAGS. Optional.
	Trace string

	Dial   func(ctx context.Context, address string) (net.Conn, error) // optional: for tests
	Logger *slog.Logger                                                // optional: every call, at debug level
}

// Open connects and asks the service for its version, waiting at most 5 s. Errors are [*providers.Error] with Op "open":
// Invalid for options that cannot work, Denied when one side refuses the other's certificate or the caller, Transient
// when nobody answers.
func Open(ctx context.Context, o Options) (*providers.Provider, error) {
	s, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	return s.provider(s.close), nil
}

// kinds are those that the service has, each with what is its own.
func (s *service) kinds() []providers.Served {
	return []providers.Served{
		serve(s, "tenant", tenantTraits, tenantRefusals, tenants{service: s}),
		serve(s, "tenant_keyset", keysetTraits, nil, keysets{service: s}),
		serve(s, "vpc", vpcTraits, vpcRefusals, vpcs{service: s}),
		serve(s, "vpc_prefix", prefixTraits, prefixeRefusals, prefixes{service: s}),
		serve(s, "network_segment", segmentTraits, segmentRefusals, segments{service: s}),
		serve(s, "network_security_group", groupTraits, groupRefusals, groups{service: s}),
		serve(s, "instance_type", instanceTypeTraits, instanceTypeRefusals, instanceTypes{service: s}),
		serve(s, "compute_allocation", allocationTraits, allocationRefusals, allocations{service: s}),
		serve(s, "instance", instanceTraits, instanceRefusals, instances{service: s}),
		serveWhole(s, "expected_machine", expectedTraits, expectedMachineRefusals, expectedMachines{service: s}),
		serveWhole(s, "expected_switch", expectedTraits, expectedSwitcheRefusals, expectedSwitches{service: s}),
		serveWhole(s, "expected_power_shelf", expectedTraits, expectedShelveRefusals, expectedShelves{service: s}),
		serve(s, "sku", skuTraits, skuRefusals, skus{service: s}),
		serve(s, "machine", machineTraits, machineRefusals, machines{service: s}),
		serve(s, "vpc_peering", peeringTraits, peeringRefusals, peerings{service: s}),
		serve(s, "ib_partition", ibTraits, ibPartitionRefusals, ibPartitions{service: s}),
		serve(s, "nvlink_logical_partition", nvlinkTraits, nvlinkPartitionRefusals, nvlinkPartitions{service: s}),
		serveListed(s, "spx_partition", spxTraits, nil, spxPartitions{service: s}),
		serve(s, "operating_system", operatingSystemTraits, nil, operatingSystems{service: s}),
		serveWhole(s, "os_image", osImageTraits, osImageRefusals, osImages{service: s}),
		serve(s, "dpu_extension_service", extensionServiceTraits, extensionServiceRefusals, extensionServices{service: s}),
	}
}

func (s *service) provider(close func() error) *providers.Provider {
	p := providers.New(Name, schema.ScopeSite, close, s.kinds()...)
	p.Limit, p.Health, p.Permit = cap(s.slots), s.healthy, s.permit
	p.Identity = func(context.Context) (string, error) { return *s.site.Load(), nil } // each connection begins with a greeting
	p.Build = func(context.Context) (string, error) { return *s.build.Load(), nil }
	return p
}
