package carbidesim

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// site is the state of a site and the rules by which calls and time change it. It has no lock and no clock: its world
// calls it from one goroutine at a time and passes it the current time. Its methods are the service's methods.
type site struct {
	forge.UnimplementedForgeServer
	rules      Rules
	timing     Timing
	old        bool
	later      bool      // v2.0 or newer
	generation string    // as reported in its build info
	names      uuid.UUID // the name space of generated ids
	now        time.Time

	serial uint64          // counts generated ids
	burned map[string]bool // "kind/id" of what was deleted softly and remains reserved
	timers timers
	due    []timer // started by the running call
	log    changes // of the running call

	tenants        *table[tenant]
	keysets        *table[keyset]
	vpcs           *table[vpc]
	prefixes       *table[vpcPrefix]
	segments       *table[segment]
	securityGroups *table[securityGroup]
	instanceTypes  *table[instanceType]
	instances      *table[instance]
	machines       *table[machine]

	peerings          *table[peering]
	ibPartitions      *table[ibPartition]
	nvlinkPartitions  *table[nvlinkPartition]
	spxPartitions     *table[spxPartition]
	operatingSystems  *table[operatingSystem]
	osImages          *table[osImage]
	extensionServices *table[extensionService]

	servicesByName     *lookup[extensionService] // by "organization/name in lower case"
	instancesByService *lookup[instance]

	expectedMachines *table[expected[*forge.ExpectedMachine]]
	expectedSwitches *table[expected[*forge.ExpectedSwitch]]
	expectedShelves  *table[expected[*forge.ExpectedPowerShelf]]
	expectedRacks    *table[expectedRack]
	expectedByMAC    *lookup[expected[*forge.ExpectedMachine]]
	switchesByMAC    *lookup[expected[*forge.ExpectedSwitch]]
	shelvesByMAC     *lookup[expected[*forge.ExpectedPowerShelf]]
	devices          *table[device] // switches and power shelves that were found, by the MAC addresses of their BMCs
	devicesBySerial  *lookup[device]
	reserved         *table[netip.Addr] // addresses that operators have chosen for interfaces, by MAC address
	reservedFor      *lookup[netip.Addr]
	machinesByBMC    *lookup[machine]

	skus              *table[sku]
	skusByParts       *lookup[sku] // by sameness
	machinesBySKU     *lookup[machine]
	allocations       *table[allocation]
	allocationsByName *lookup[allocation] // by "organization/name"
	allocationsByType *lookup[allocation]
	instancesByType   *lookup[instance] // by "organization/instance type"

	vpcNumbers       *numbers[vpc]
	vpcsByOrg        *lookup[vpc]
	vpcsByGroup      *lookup[vpc]
	prefixSpace      *prefixes[vpcPrefix]
	prefixesByVpc    *lookup[vpcPrefix]
	segmentSpace     *prefixes[segment]
	segmentVLANs     *numbers[segment]
	segmentsByVpc    *lookup[segment]
	segmentsByPrefix *lookup[segment]
	groupsByName     *lookup[securityGroup]
	typesByName      *lookup[instanceType]
	instancesByHost  *lookup[instance]
	instancesByGroup *lookup[instance]
	instancesByNet   *lookup[instance] // by segment id, and by "segment id/address"
	instancesByName  *lookup[instance] // by "organization/host name"
	machinesByType   *lookup[machine]
	machinesByNet    *lookup[machine]

	peeringsByVpc        *lookup[peering]
	peeringsByPair       *lookup[peering]
	ibKeys               *numbers[ibPartition]
	ibPartitionsByOrg    *lookup[ibPartition]
	spxNumbers           *numbers[spxPartition]
	instancesByPartition *lookup[instance]
}

func newSite(o Options) *site {
	s := &site{
		rules:      o.Rules,
		timing:     o.Timing,
		old:        o.Old,
		later:      o.Generation.later(),
		generation: string(cmp.Or(o.Generation, May)),
		names:      uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "carbidesim %d", o.Seed)),
		burned:     map[string]bool{},
	}
	s.vpcNumbers = newNumbers(func(v *vpc) uint32 { return v.VNI })
	s.vpcsByOrg = newLookup(func(v *vpc) []string { return some(v.Organization) })
	s.vpcsByGroup = newLookup(func(v *vpc) []string { return some(v.SecurityGroup) })
	s.prefixSpace = newPrefixes(func(p *vpcPrefix) []netip.Prefix { return []netip.Prefix{p.Prefix} })
	s.prefixesByVpc = newLookup(func(p *vpcPrefix) []string { return []string{p.VPC} })
	s.segmentSpace = newPrefixes((*segment).spans)
	s.segmentVLANs = newNumbers(func(n *segment) uint32 { return n.VLAN })
	s.segmentsByVpc = newLookup(func(n *segment) []string { return some(n.VPC) })
	s.segmentsByPrefix = newLookup((*segment).parents)
	s.groupsByName = newLookup(func(g *securityGroup) []string { return []string{g.Metadata.Name} })
	s.typesByName = newLookup(func(t *instanceType) []string { return []string{t.Metadata.Name} })
	s.instancesByHost = newLookup(func(i *instance) []string { return []string{i.Machine} })
	s.instancesByGroup = newLookup(func(i *instance) []string { return some(i.config().GetNetworkSecurityGroupId()) })
	s.instancesByNet = newLookup((*instance).networks)
	s.instancesByName = newLookup((*instance).hostNames)
	s.machinesByType = newLookup(func(m *machine) []string { return some(m.Type) })
	s.machinesByNet = newLookup(func(m *machine) []string { return some(m.Segment) })
	s.servicesByName = newLookup(func(e *extensionService) []string { return []string{serviceName(e.Organization, e.Name)} })
	s.instancesByService = newLookup((*instance).serviceIDs)

	s.peeringsByVpc = newLookup(func(p *peering) []string { return p.VPCs[:] })
	s.peeringsByPair = newLookup(func(p *peering) []string { return []string{p.pair()} })
	s.ibKeys = newNumbers(func(p *ibPartition) uint32 { return p.Key })
	s.ibPartitionsByOrg = newLookup(func(p *ibPartition) []string { return []string{p.Organization} })
	s.spxNumbers = newNumbers((*spxPartition).held)
	s.instancesByPartition = newLookup((*instance).partitions)

	s.expectedMachines, s.expectedByMAC = newExpected(&s.log, (*forge.ExpectedMachine).GetBmcMacAddress)
	s.expectedSwitches, s.switchesByMAC = newExpected(&s.log, (*forge.ExpectedSwitch).GetBmcMacAddress)
	s.expectedShelves, s.shelvesByMAC = newExpected(&s.log, (*forge.ExpectedPowerShelf).GetBmcMacAddress)
	s.expectedRacks = newTable[expectedRack](&s.log)
	s.devicesBySerial = newLookup(func(d *device) []string { return some(d.Serial) })
	s.devices = newTable[device](&s.log, s.devicesBySerial)
	s.reservedFor = newLookup(func(a *netip.Addr) []string { return []string{a.String()} })
	s.reserved = newTable[netip.Addr](&s.log, s.reservedFor)
	s.machinesByBMC = newLookup(func(m *machine) []string { return some(m.BMC) })
	s.skusByParts = newLookup(func(t *sku) []string { return []string{sameness(t.Components.message)} })
	s.machinesBySKU = newLookup(func(m *machine) []string { return some(m.SKU) })
	s.allocationsByName = newLookup(func(a *allocation) []string { return []string{a.name()} })
	s.allocationsByType = newLookup(func(a *allocation) []string { return []string{a.Type} })
	s.instancesByType = newLookup(func(i *instance) []string { return []string{i.organization() + "/" + i.Type} })

	s.tenants = newTable[tenant](&s.log)
	s.keysets = newTable[keyset](&s.log)
	s.vpcs = newTable[vpc](&s.log, s.vpcNumbers, s.vpcsByOrg, s.vpcsByGroup)
	s.prefixes = newTable[vpcPrefix](&s.log, s.prefixSpace, s.prefixesByVpc)
	s.segments = newTable[segment](&s.log, s.segmentSpace, s.segmentVLANs, s.segmentsByVpc, s.segmentsByPrefix)
	s.securityGroups = newTable[securityGroup](&s.log, s.groupsByName)
	s.instanceTypes = newTable[instanceType](&s.log, s.typesByName)
	s.instances = newTable[instance](&s.log, s.instancesByHost, s.instancesByGroup, s.instancesByNet, s.instancesByName, s.instancesByPartition, s.instancesByService, s.instancesByType)
	s.peerings = newTable[peering](&s.log, s.peeringsByVpc, s.peeringsByPair)
	s.ibPartitions = newTable[ibPartition](&s.log, s.ibKeys, s.ibPartitionsByOrg)
	s.nvlinkPartitions = newTable[nvlinkPartition](&s.log)
	s.spxPartitions = newTable[spxPartition](&s.log, s.spxNumbers)
	s.operatingSystems = newTable[operatingSystem](&s.log)
	s.osImages = newTable[osImage](&s.log)
	s.extensionServices = newTable[extensionService](&s.log, s.servicesByName)
	s.allocations = newTable[allocation](&s.log, s.allocationsByName, s.allocationsByType)
	s.skus = newTable[sku](&s.log, s.skusByParts)
	s.machines = newTable[machine](&s.log, s.machinesByType, s.machinesByNet, s.machinesBySKU, s.machinesByBMC)
	return s
}

// transact runs one call. Its changes count only when it succeeds. It reports whether anything changed.
func (s *site) transact(call func() error) (bool, error) {
	err := call()
	if err != nil {
		for i := len(s.log.undo) - 1; i >= 0; i-- {
			s.log.undo[i]()
		}
	} else {
		for _, t := range s.due {
			heap.Push(&s.timers, t)
		}
	}
	changed := err == nil && len(s.log.undo) > 0
	s.log.undo, s.due = nil, nil
	return changed, err
}

// timer is something that the site will do on its own.
type timer struct {
	At time.Time `json:"at"`
	Do string    `json:"do"` // a key of deeds
	ID string    `json:"id"`
}

// deeds are what timers may do. An object remembers when the site acts on it next; a timer with another time has been
// superseded by a later change or by another object with the same id.
var deeds = map[string]func(s *site, id string){
	"prefix ready":          (*site).prefixReady,
	"prefix gone":           (*site).prefixGone,
	"segment ready":         (*site).segmentReady,
	"segment drained":       (*site).segmentDrained,
	"instance ready":        (*site).instanceReady,
	"instance configured":   (*site).instanceConfigured,
	"instance gone":         (*site).instanceGone,
	"host clean":            (*site).hostClean,
	"ib partition ready":    (*site).ibPartitionReady,
	"ib partition gone":     (*site).ibPartitionGone,
	"nvlink partition gone": (*site).nvlinkPartitionGone,
	"host down":             (*site).hostDown,
	"host restored":         (*site).hostRestored,
}

// after starts a timer, unless the running call fails, and returns its time.
func (s *site) after(d time.Duration, do, id string) time.Time {
	at := s.now.Add(d)
	s.due = append(s.due, timer{at, do, id})
	return at
}

// settle moves the site to a point in time, running all due timers in order. It reports whether anything changed.
func (s *site) settle(now time.Time) bool {
	changed := false
	for len(s.timers) > 0 && !s.timers[0].At.After(now) {
		t := heap.Pop(&s.timers).(timer)
		s.now = t.At
		did, _ := s.transact(func() error {
			deeds[t.Do](s, t.ID)
			return nil
		})
		changed = changed || did
	}
	if now.After(s.now) { // setting a clock back does not undo what has happened
		s.now = now
	}
	return changed
}

// timers is a heap, earliest first.
type timers []timer

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].At.Before(t[j].At) }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)        { *t = append(*t, x.(timer)) }
func (t *timers) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

// newID generates an id; the same world generates the same ones.
func (s *site) newID() string {
	s.serial++
	return uuid.NewSHA1(s.names, fmt.Appendf(nil, "%d", s.serial)).String()
}

// derived returns the id of something that belongs to an object and comes and goes with it.
func (s *site) derived(what, id string) string {
	return uuid.NewSHA1(s.names, fmt.Appendf(nil, "%s %s", what, id)).String()
}

// chosen returns the id that the client chose, or a generated one.
func (s *site) chosen(id string) string {
	if id == "" {
		return s.newID()
	}
	return id
}

// burn permanently reserves the id of something that was deleted softly.
func (s *site) burn(kind, id string) {
	key := kind + "/" + id
	s.burned[key] = true
	s.log.undo = append(s.log.undo, func() { delete(s.burned, key) })
}

func (s *site) isBurned(kind, id string) bool { return s.burned[kind+"/"+id] }

// page checks the number of ids in a Find…ByIds call.
func (s *site) page(ids int) error {
	if ids == 0 {
		return invalid("at least one id must be given")
	}
	return s.atMost(ids)
}

func (s *site) atMost(ids int) error {
	if ids > s.rules.MaxFindByIDs {
		return invalid("at most %d ids are allowed, got %d", s.rules.MaxFindByIDs, ids)
	}
	return nil
}

// each returns the rows that exist among the ids; the others are silently left out.
func each[T any, W any](t *table[T], ids []string, wire func(string, *T) W) []W {
	out := make([]W, 0, len(ids))
	for _, id := range ids {
		if row := t.get(id); row != nil {
			out = append(out, wire(id, row))
		}
	}
	return out
}

// where returns an id for each row that passes.
func where[T any, W any](t *table[T], pass func(*T) bool, wire func(string) W) []W {
	out := []W{}
	for id, row := range t.rows {
		if pass(row) {
			out = append(out, wire(id))
		}
	}
	return out
}

// texts unwraps ids.
func texts[I interface{ GetValue() string }](ids []I) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.GetValue()
	}
	return out
}

// is reports whether an optional filter passes a value.
func is(filter *string, have string) bool { return filter == nil || *filter == have }

// Version returns the build info, and the settings if requested.
func (s *site) Version(_ context.Context, r *forge.VersionRequest) (*forge.BuildInfo, error) {
	out := &forge.BuildInfo{
		BuildVersion: "v0.0.0-simulator-" + s.generation, BuildDate: "2026-05-30T00:00:00Z", GitSha: "a02fa34b71dc",
		RustVersion: "1.90.0", BuildUser: "carbidesim", BuildHostname: "carbidesim",
	}
	if r.DisplayConfig {
		c := &forge.RuntimeConfig{
			Listen:               "[::]:1079",
			MaxFindByIds:         uint32(s.rules.MaxFindByIDs),
			Sitename:             proto.String(s.rules.SiteName),
			VpcIsolationBehavior: "mutual_isolation",
		}
		for _, p := range s.rules.FabricPrefixes {
			c.SiteFabricPrefixes = append(c.SiteFabricPrefixes, p.String())
		}
		out.RuntimeConfig = c
	}
	return out, nil
}
