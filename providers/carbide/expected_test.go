package carbide_test

import (
	"strings"
	"testing"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

func expectedAt(noun, mac string) schema.Object {
	serial := map[string]string{"expected_machine": "chassis_serial_number", "expected_switch": "switch_serial_number", "expected_power_shelf": "shelf_serial_number"}[noun]
	return schema.Object{"bmc_mac_address": mac, "bmc_username": "root", "bmc_password": "calvin", serial: "SN-0001"}
}

// TestExpected: expected hardware is read by two calls, however much of it there is, with what was found and passwords that
// the engine seals.
func TestExpected(t *testing.T) {
	hosts := hosts(t)
	s := newSite(t, carbidesim.Options{Hosts: lawHosts, Rules: carbidesim.Rules{MaxFindByIDs: 2}})
	macs := map[string]string{
		"expected_machine": strings.ToLower(s.BMC(hosts[0])), "expected_switch": "0a:00:00:00:00:01", "expected_power_shelf": "0a:00:00:00:00:02",
	}
	for noun, calls := range map[string][2]string{
		"expected_machine":     {"GetAllExpectedMachines", "GetAllExpectedMachinesLinked"},
		"expected_switch":      {"GetAllExpectedSwitches", "GetAllExpectedSwitchesLinked"},
		"expected_power_shelf": {"GetAllExpectedPowerShelves", "GetAllExpectedPowerShelvesLinked"},
	} {
		found := map[string]string{"expected_machine": "machine", "expected_switch": "switch", "expected_power_shelf": "power_shelf"}[noun]
		c := s.make(noun, "first", expectedAt(noun, macs[noun]))
		for i, mac := range []string{"0a:00:00:00:01:01", "0a:00:00:00:01:02", "0a:00:00:00:01:03"} {
			other := expectedAt(noun, mac)
			for field := range other {
				if strings.HasSuffix(field, "_serial_number") {
					other[field] = "SN-100" + string(rune('0'+i))
				}
			}
			s.make(noun, "other-"+mac[15:], other)
		}
		if noun != "expected_machine" {
			if th := s.see(noun, c.ID); th.Status[found] != nil {
				t.Errorf("%s: %v was found before anybody looked", noun, th.Status)
			}
			if err := s.Discover(macs[noun]); err != nil {
				t.Fatal(err)
			}
		}
		s.ResetCalls()
		things, err := providers.Collect(s.kind(noun).List(t.Context()))
		if err != nil || len(things) != 4 {
			t.Fatalf("%d things, %v", len(things), err)
		}
		if got := s.Calls(); len(got) != 2 || got[calls[0]] != 1 || got[calls[1]] != 1 {
			t.Errorf("observing all took %v", got)
		}
		s.ResetCalls()
		if things, err = s.kind(noun).Get(t.Context(), []string{}); err != nil || len(things) != 0 || len(s.Calls()) != 0 {
			t.Errorf("observing none took %v and gave %d things, %v", s.Calls(), len(things), err)
		}
		th := s.see(noun, c.ID)
		if id, _ := th.Status[found].(string); id == "" || noun == "expected_machine" && id != hosts[0] {
			t.Errorf("%s: found %v", noun, th.Status)
		}
		if th.Spec["bmc_password"] != "calvin" || th.Spec["bmc_mac_address"] != macs[noun] {
			t.Errorf("%s: it is %v", noun, th.Spec)
		}

		if none, told := th.Spec["nvos_password"]; noun == "expected_switch" && (!told || none != "") {
			t.Errorf("the service has no password of NVOS, and is said to have %v", none)
		}

		twin := call(noun, "twin")
		twin.Want = expectedAt(noun, macs[noun])
		s.class(noun+" with a taken MAC address", s.kind(noun).Create(t.Context(), twin), exists)
		twin.Want = expectedAt(noun, "none")
		s.class(noun+" with what is no MAC address", s.kind(noun).Create(t.Context(), twin), invalid)
		err = s.kind(noun).Delete(t.Context(), c)
		if noun == "expected_machine" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		s.class(noun+" that was found", err, busy)
	}
}

// TestExpectedAddress: an address that another interface has is refused, whatever owns it.
func TestExpectedAddress(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	for i, noun := range []string{"expected_machine", "expected_switch", "expected_power_shelf"} {
		c := s.make(noun, "first", expectedAt(noun, "0a:00:00:00:00:0"+string(rune('1'+i))))
		err := s.kind(noun).Update(t.Context(), s.change(noun, "first", c.ID, schema.Object{"bmc_ip_address": "10.0.0.9"}))
		if i == 0 {
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		s.class(noun+" with another's address", err, invalid)
	}
}
