package carbidesim

import (
	"cmp"
	"crypto/sha256"
	"net"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// expected is hardware that is to be found, as an operator has declared it.
type expected[M proto.Message] struct {
	Metadata metadata `json:"metadata"`
	Said     kept[M]  `json:"said"` // as it reads back, without metadata
}

func newExpected[M proto.Message](log *changes, mac func(M) string) (*table[expected[M]], *lookup[expected[M]]) {
	byMAC := newLookup(func(e *expected[M]) []string { return []string{mac(e.Said.message)} })
	return newTable[expected[M]](log, byMAC), byMAC
}

// device is a switch or a power shelf that was found.
type device struct {
	ID     string `json:"id"`
	Serial string `json:"serial,omitempty"` // of a power shelf, which is identified by it
}

// chosenUUID returns the id in a request about expected hardware, whose handlers parse it themselves: hence the refusal
// differs from others. A missing one is generated.
func (s *site) chosenUUID(id *forge.UUID) (string, error) {
	if id == nil {
		return s.newID(), nil
	}
	parsed, err := uuid.Parse(id.Value)
	if err != nil {
		return "", invalid("invalid id %q", id.Value)
	}
	return parsed.String(), nil
}

// selected finds what a request refers to: by id when it has one, else by MAC address. The last result names it in a refusal.
func selected[M proto.Message](t *table[expected[M]], byMAC *lookup[expected[M]], id *forge.UUID, mac string) (string, *expected[M], string, error) {
	if id != nil {
		parsed, err := uuid.Parse(id.Value)
		if err != nil {
			return "", nil, "", invalid("invalid id %q", id.Value)
		}
		return parsed.String(), t.get(parsed.String()), parsed.String(), nil
	}
	if mac == "" {
		return "", nil, "", invalid("either id or bmc_mac_address must be provided")
	}
	mac, ok := hardwareAddress(mac)
	if !ok {
		return "", nil, "", invalid("invalid MAC address %q", mac)
	}
	for found := range byMAC.of(mac) {
		return found, t.get(found), mac, nil
	}
	return "", nil, mac, nil
}

// hardwareAddress returns a MAC address as the service spells it.
func hardwareAddress(text string) (string, bool) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return text, false
	}
	return strings.ToUpper(mac.String()), true
}

// tooLong returns what the database says about a text with more characters than its column has.
func tooLong(text string, most int) error {
	if utf8.RuneCountInString(text) > most {
		return internal("Database Error: value too long for type character varying(%d)", most)
	}
	return nil
}

// freeMetadata reads metadata that is only checked for duplicate keys and for what the database has room for.
func freeMetadata(m *forge.Metadata) (metadata, error) {
	out, err := uniqueLabels(m)
	return out, cmp.Or(err, out.tooLong())
}

func (m metadata) tooLong() error { return cmp.Or(tooLong(m.Name, 256), tooLong(m.Description, 1024)) }

// uniqueLabels reads metadata that is only checked for duplicate keys.
func uniqueLabels(m *forge.Metadata) (metadata, error) {
	out := metadata{Name: m.GetName(), Description: m.GetDescription(), Labels: map[string]string{}}
	for _, l := range m.GetLabels() {
		if _, ok := out.Labels[l.Key]; ok {
			return out, invalid("duplicate label key %s", l.Key)
		}
		out.Labels[l.Key] = l.GetValue()
	}
	return out, nil
}

// reserve assigns an address to an interface before it is seen. An interface that has an address keeps it.
func (s *site) reserve(mac, address string) error {
	if address == "" || s.reserved.get(mac) != nil {
		return nil
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return invalid("invalid address %q", address)
	}
	if len(s.reservedFor.of(ip.String())) > 0 {
		return precondition("address %s belongs to another interface", ip)
	}
	s.reserved.put(mac, &ip)
	return nil
}

// Discover makes the device behind an expected switch or power shelf, given by the MAC address of its BMC, be found.
// Machines are found when the world is created.
func (w *World) Discover(mac string) error {
	return w.transact(func() error {
		s := w.site
		mac, _ := hardwareAddress(mac)
		hash := sha256.Sum256([]byte(mac))
		if len(s.switchesByMAC.of(mac)) > 0 {
			s.devices.put(mac, &device{ID: "sw100ns" + hardwareHash.EncodeToString(hash[:])})
			return nil
		}
		for id := range s.shelvesByMAC.of(mac) {
			s.devices.put(mac, &device{"ps100rs" + hardwareHash.EncodeToString(hash[:]), s.expectedShelves.get(id).Said.message.ShelfSerialNumber})
			return nil
		}
		return notFound("expected device", mac)
	})
}

// BMC returns the MAC address of a machine's BMC, as on its label; empty when there is no such machine.
func (w *World) BMC(machine string) string {
	mac := ""
	_ = w.transact(func() error {
		if m := w.site.machines.get(machine); m != nil {
			mac = m.BMC
		}
		return nil
	})
	return mac
}
