package carbidesim

import (
	"net/netip"
	"time"
)

// Options describe a world. The zero value is an empty site with the real service's timing and limits.
type Options struct {
	Seed   uint64           // optional: another seed results in other generated ids and machines
	Now    func() time.Time // optional: the clock; time.Now when nil
	Timing Timing           // optional: RealTiming when zero
	Rules  Rules            // optional: what the operator of the site has configured
	Hosts  Hosts            // optional: the machines that the site has discovered
	File   string           // optional: where the world is stored between runs; it takes precedence over Hosts

	// Generation is the version of the service; May when empty.
	Generation Generation
	// Old makes the world speak the older generation: plain names, flat segments, no newer fields.
	Old bool
	// Later makes the world keep the fields that we do not know, like a service of a later version.
	Later bool
	// Unimplemented names methods that this site's version lacks.
	Unimplemented []string
}

// Timing says how long the site takes for what it does on its own.
type Timing struct {
	Tick      time.Duration // one round of a controller: a segment becomes ready, a security group reaches the hosts
	Drain     time.Duration // a deleted segment waits this long for its last address to be released
	Provision time.Duration // from the allocation of an instance to ready
	Configure time.Duration // a change of an instance's network, or a reboot into its own iPXE script
	Release   time.Duration // from the release of an instance to its disappearance
	Cleanup   time.Duration // from there until the host is ready for the next tenant
	Shutdown  time.Duration // a guest that is requested to shut down
	PowerPoll time.Duration // how often the site checks whether a host is on
	Purge     time.Duration // from the deletion of an NVLink logical partition to its disappearance
}

// RealTiming is how a real site behaves: controllers every 30 seconds, addresses drained for five minutes, slow hosts.
var RealTiming = Timing{
	Tick:      30 * time.Second,
	Drain:     5 * time.Minute,
	Provision: 10 * time.Minute,
	Configure: time.Minute,
	Release:   5 * time.Minute,
	Cleanup:   20 * time.Minute,
	Shutdown:  time.Minute,
	PowerPoll: 5 * time.Minute,
	Purge:     time.Minute,
}

// FastTiming passes through the same states in milliseconds.
var FastTiming = Timing{
	Tick:      2 * time.Millisecond,
	Drain:     5 * time.Millisecond,
	Provision: 5 * time.Millisecond,
	Configure: 3 * time.Millisecond,
	Release:   3 * time.Millisecond,
	Cleanup:   5 * time.Millisecond,
	Shutdown:  3 * time.Millisecond,
	PowerPoll: 2 * time.Millisecond,
	Purge:     3 * time.Millisecond,
}

// Range is a span of numbers, both ends included. The zero value is empty.
type Range struct {
	First, Last uint32
}

// Rules are what the operator of a site has configured. Zero fields mean the real service's defaults.
type Rules struct {
	SiteName       string
	MaxFindByIDs   int            // ids per Find…ByIds call; 100
	FabricPrefixes []netip.Prefix // tenant addresses must lie inside; none: anywhere
	AutoVNIs       Range          // for VPCs that request none in particular
	RequestedVNIs  Range          // may be requested by number
	VLANs          Range          // for tenant segments on the Ethernet virtualizer
	MaxRules       int            // size of a security group after expansion; 200
	NoPowerManager bool           // nothing checks whether hosts are on, or turns them on

	Peering          PeeringPolicy // which VPCs may be peered; none
	NoInfiniband     bool          // the site has no InfiniBand fabric
	AutoPKeys        Range         // for InfiniBand partitions that request no key in particular
	RequestedPKeys   Range         // may be requested by key
	MaxIBPartitions  int           // InfiniBand partitions of a tenant, including those being deleted; 31
	NoNVLink         bool          // the site has no NVLink: deleted logical partitions never disappear
	AutoSPXVNIs      Range         // for Spectrum-X partitions that request none in particular
	RequestedSPXVNIs Range         // may be requested by number
	Allocations      Enforcement   // whether tenants are held to their compute allocations; WarnOnly

	// RoutingProfiles turn the FNN fabric on. The first one is the site's default.
	RoutingProfiles []RoutingProfile
	// RackProfiles are the names of the profiles that expected racks may have; NVL72 and NVL36.
	RackProfiles []string
	// OperatingSystems and OSImages, by id, are the initial library of a new site.
	OperatingSystems []OperatingSystem
	OSImages         []string

	// FreeServiceNames makes the name of a deleted extension service available again, as later versions of the service do.
	FreeServiceNames bool
}

// RoutingProfile is a way in which VPCs on the FNN fabric reach the outside.
type RoutingProfile struct {
	Name string
	Tier int // a VPC may not use a profile with a higher tier than its tenant's
}

// OperatingSystem is an initial entry of the site's operating system library.
type OperatingSystem struct {
	ID       string
	Script   string // iPXE text; when empty the entry is created from a template
	UserData string
	Inactive bool
}

// Hosts describe the machines that the site has discovered.
type Hosts struct {
	Count       int // all of them
	WithoutDPU  int // this many of the last ones have no managed DPU and use networks of type HOST_INBAND
	Unhealthy   int // this many of the first ones carry an alert that prevents allocation
	Maintenance int // this many of the following ones are under maintenance

	// Lived makes a site of at least a hundred machines look as if it had long been in use: some have alerts, are under
	// maintenance, have failed or are not ready yet. The seed decides which.
	Lived bool
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Timing == (Timing{}) {
		o.Timing = RealTiming
	}
	r := &o.Rules
	if r.SiteName == "" {
		r.SiteName = "simulated"
	}
	if r.MaxFindByIDs == 0 {
		r.MaxFindByIDs = 100
	}
	if r.RackProfiles == nil {
		r.RackProfiles = []string{"NVL72", "NVL36"}
	}
	if r.MaxRules == 0 {
		r.MaxRules = 200
	}
	if r.MaxIBPartitions == 0 {
		r.MaxIBPartitions = 31
	}
	if r.AutoPKeys == (Range{}) {
		r.AutoPKeys = Range{0x100, 0x3fff}
	}
	if r.RequestedPKeys == (Range{}) {
		r.RequestedPKeys = Range{0x4000, 0x7ffe}
	}
	if r.AutoSPXVNIs == (Range{}) {
		r.AutoSPXVNIs = Range{2_024_000, 2_123_999}
	}
	if r.RequestedSPXVNIs == (Range{}) {
		r.RequestedSPXVNIs = Range{70_000, 79_999}
	}
	if r.AutoVNIs == (Range{}) {
		r.AutoVNIs = Range{1_024_000, 1_123_999}
	}
	if r.RequestedVNIs == (Range{}) {
		r.RequestedVNIs = Range{60_000, 69_999}
	}
	if r.VLANs == (Range{}) {
		r.VLANs = Range{100, 99_999}
	}
	return o
}
