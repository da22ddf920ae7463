package carbide

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
)

// A machine exists whatever happens to it; the detail says what did.
func TestUnwellMachine(t *testing.T) {
	alerts := func(alerts ...*forge.HealthProbeAlert) *forge.HealthReport {
		return &forge.HealthReport{Alerts: alerts}
	}
	for want, m := range map[string]*forge.Machine{
		"": {State: "Ready"},
		"in state HostInitializing/WaitingForDiscovery": {State: "HostInitializing/WaitingForDiscovery"},
		"in state Failed/Discovery: no memory":          {State: "Failed/Discovery", FailureDetails: proto.String("no memory")},
		"alert FanSpeed: slow; alert Heartbeat": {
			State: "Assigned/Ready", Health: alerts(&forge.HealthProbeAlert{Id: "FanSpeed", Message: "slow"}, &forge.HealthProbeAlert{Id: "Heartbeat"}),
		},
		"in state WaitingForCleanup/HostCleanup; alert FanSpeed": {
			State: "WaitingForCleanup/HostCleanup", Health: alerts(&forge.HealthProbeAlert{Id: "FanSpeed"}),
		},
	} {
		if got := (machines{}).thing(m); got.Detail != want || got.Phase != providers.Ready {
			t.Errorf("%v is %s: %q, want %q", m, got.Phase, got.Detail, want)
		}
	}
}
