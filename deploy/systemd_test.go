package deploy_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// units has each unit, and the exposure that systemd-analyze security may find in it, in tenths: 0 is none and 100 all.
var units = map[string]string{"converge-serve": "15", "converge-agent": "31", "converge-guard": "31"}

// settings returns what a unit sets, by name, in order. A setting may be given several times.
func settings(t *testing.T, unit string) map[string][]string {
	t.Helper()
	set := map[string][]string{}
	for line := range strings.Lines(read(t, "systemd/"+unit+".service")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			set[name] = append(set[name], value)
		}
	}
	return set
}

// words returns all words of a setting.
func words(values []string) []string { return strings.Fields(strings.Join(values, " ")) }

// systemd takes the units as they are, and they stay as confined as docs/deploying.md says.
func TestUnits(t *testing.T) {
	analyze := tool(t, "systemd-analyze", "systemd")
	dir := t.TempDir()
	for unit := range units { // verify wants the program to be there
		write(t, filepath.Join(dir, unit+".service"), strings.ReplaceAll(read(t, "systemd/"+unit+".service"), "/usr/bin/converge", "/bin/true"))
	}
	for unit, most := range units {
		path := filepath.Join(dir, unit+".service")
		if out, err := exec.Command(analyze, "verify", "--man=no", "--recursive-errors=no", path).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
		if out, err := exec.Command(analyze, "security", "--no-pager", "--offline=true", "--threshold="+most, path).CombinedOutput(); err != nil {
			t.Errorf("%s is more exposed than %s: %v\n%s", unit, most, err, out)
		}
	}
}

// What confines the services is there, whatever systemd-analyze makes of it.
func TestUnitsAreConfined(t *testing.T) {
	for unit := range units {
		set := settings(t, unit)
		for name, want := range map[string]string{
			"NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes", "ProtectKernelModules": "yes",
			"RestrictNamespaces": "yes", "RestrictSUIDSGID": "yes", "SystemCallArchitectures": "native", "DevicePolicy": "closed",
			"Restart": "always", "StartLimitIntervalSec": "0", "StateDirectoryMode": "0700", "UMask": "0077", "KillMode": "mixed", "OOMPolicy": "continue",
		} {
			if have := strings.Join(set[name], " "); have != want {
				t.Errorf("%s: %s=%s, want %s", unit, name, have, want)
			}
		}
		for _, name := range []string{"MemoryMax", "TasksMax", "LimitNOFILE", "TimeoutStopSec"} {
			if len(set[name]) != 1 {
				t.Errorf("%s has no %s", unit, name)
			}
		}
		if have := words(set["SystemCallFilter"]); !slices.Equal(have, []string{"@system-service", "~@privileged"}) {
			t.Errorf("%s: SystemCallFilter=%s", unit, have)
		}
		may := []string{"CAP_NET_ADMIN", "CAP_DAC_OVERRIDE", "CAP_SYS_PTRACE"}
		if unit == "converge-serve" {
			may = nil
		}
		if have := set["CapabilityBoundingSet"]; len(have) != 1 || !slices.Equal(words(have), may) {
			t.Errorf("%s: CapabilityBoundingSet=%s, want %s", unit, have, may)
		}
	}
	if user := settings(t, "converge-serve")["User"]; !slices.Equal(user, []string{"converge"}) || !strings.Contains(read(t, "systemd/converge.sysusers"), "\nu converge ") {
		t.Errorf("the site agent runs as %s, which has to be the user that sysusers makes", user)
	}
}

// The guard is up before the agent and before the network counts, and none of the two ends with the other.
func TestGuardStandsAlone(t *testing.T) {
	agent, guard := settings(t, "converge-agent"), settings(t, "converge-guard")
	if !slices.Contains(words(agent["Wants"]), "converge-guard.service") || !slices.Contains(words(agent["After"]), "converge-guard.service") {
		t.Error("the agent does not want the guard before it")
	}
	for _, name := range []string{"converge-agent.service", "network-online.target"} {
		if !slices.Contains(words(guard["Before"]), name) {
			t.Errorf("the guard is not up before %s", name)
		}
	}
	for _, name := range []string{"local-fs.target", "ovsdb-server.service", "ovs-vswitchd.service"} {
		if !slices.Contains(words(guard["After"]), name) {
			t.Errorf("the guard does not wait for %s, with which it undoes", name)
		}
	}
	for _, name := range []string{"Requires", "Requisite", "BindsTo", "PartOf", "Conflicts", "PropagatesStopTo", "StopPropagatedFrom"} {
		if len(guard[name]) > 0 || len(agent[name]) > 0 {
			t.Errorf("%s ties the guard to something that can end", name)
		}
	}
	// That it is up means that what a reboot found is undone, which the program says itself.
	if !slices.Equal(guard["Type"], []string{"notify"}) || !slices.Equal(agent["Type"], []string{"notify"}) || len(guard["TimeoutStartSec"]) != 1 {
		t.Errorf("the guard is up when its process is: Type=%s, TimeoutStartSec=%s; the agent: Type=%s", guard["Type"], guard["TimeoutStartSec"], agent["Type"])
	}
	// The same providers need the same.
	for _, name := range []string{"CapabilityBoundingSet", "DeviceAllow", "RestrictAddressFamilies", "ProtectKernelTunables", "StateDirectory"} {
		if !slices.Equal(guard[name], agent[name]) {
			t.Errorf("%s is %s for the guard and %s for the agent", name, guard[name], agent[name])
		}
	}
}
