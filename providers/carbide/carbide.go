// Package carbide serves the kinds of a site's control service, Carbide: tenants and their keys, VPCs, prefixes,
// peerings, segments, security groups, partitions of the other fabrics, instance types and what is allocated of them,
// instances and machines; operating systems, images, services on DPUs; and the expected hardware, with its SKUs.
//
// One file per kind holds what is particular to it: its traits, its calls, and the translation between messages and
// specs. Everything else is shared: kind.go has the four verbs, whole.go reads kinds without ids, refusal.go classifies
// failed calls, metadata.go handles name, description, labels and our mark, dial.go connects and calls, tls.go reads and
// checks certificates, link.go replaces them, health.go counts.
//
// Words: an *object* is a message that represents one thing; *now* is the object as it was read right before an
// update.
//
// Promises:
//
//   - Observing all of a kind takes one call for the ids and one for each hundred of them (or whatever the site
//     allows), several at a time; kinds that the service returns as a whole take one or two. Security groups and
//     instances take one more for each hundred, and what has a security group one or two, because the service reports
//     less at once. TestCallsToList counts them for every kind.
//   - The service's updates replace everything. Ours start from the object as it is, so that fields outside the schema
//     are kept.
//   - The service's codes are ambiguous: a taken id is INTERNAL, a machine that is not ready yet is INVALID_ARGUMENT.
//     After a refusal the object is read again, and an error claims no more than what that proves.
//   - A change whose request was sent but not answered is Unknown; one whose request was never sent is Transient.
//   - A call takes at most three quarters of its caller's remaining time, so that some is left to observe.
//   - Certificates may be replaced at any time without any call failing. A new connection takes over once the service
//     has answered on it; calls in flight end on the old one, which closes with the last of them. Files that do not
//     match, or that one of the sides refuses, change nothing, and are logged. TestRotation replaces all certificates
//     of both sides fifty times, with two hundred calls a second, and none fails.
//   - A service that cannot be reached, or does not authenticate us, makes the provider's Health bad; errors about its
//     objects do not; any success makes it good. A service that answers but accepts no changes, as during a failover
//     of it or its database, also makes it bad: for a while, after which the next change tries again.
//   - No state is kept, and no change is tried twice. Reads are: what is missing from an answer is requested once
//     more, because an answer cannot say that it is incomplete. Observations of a kind that is read as a whole share a
//     list.
package carbide

import (
	"cmp"
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

	Parallel int           // optional: concurrent calls; 8
	Timeout  time.Duration // optional: longest wait for the answer to one call; 30 s

	// Late bounds how long after our side gave up a call may still have its effect. Optional: a minute, because the service
	// ends a call when its deadline has passed.
	Late time.Duration

	// Recheck is how often, at most, calls trigger a check of the certificate files. Optional: 5 s; without calls it is
	// twelve times as long.
	Recheck time.Duration

	// Trace is sent with every call, as W3C trace context: 00-TRACE-PARENT-FLAGS. Optional.
	Trace string

	Dial   func(ctx context.Context, address string) (net.Conn, error) // optional: for tests
	Logger *slog.Logger                                                // optional: every call, at debug level
}

// Open connects and asks the service for its version, waiting at most 15 s. Errors are [*providers.Error] with Op "open":
// Invalid for options that cannot work, Denied when one side refuses the other's certificate or the caller, Transient
// when there is no answer.
func Open(ctx context.Context, o Options) (*providers.Provider, error) {
	s, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	return s.provider(s.close), nil
}

// kinds returns the kinds of the service, each with its particulars.
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
		serveWhole(s, "expected_rack", expectedRackTraits, expectedRackRefusals, expectedRacks{s}),
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
	p.Limit = max(cmp.Or(s.options.Parallel, defaultParallel), 1)
	p.Health, p.Permit, s.together = s.healthy, s.permit, p.Together
	p.Identity = func(context.Context) (string, error) { return *s.site.Load(), nil } // each connection begins with a greeting
	p.Build = func(context.Context) (string, error) { return *s.build.Load(), nil }
	return p
}
