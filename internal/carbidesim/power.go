package carbidesim

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"converge.dev/converge/providers/carbide/forge"
)

// power is whether a host is on, and what the site's power manager knows about it and wants. The manager checks every host
// once in Timing.PowerPoll; it has not seen any change since then.
type power struct {
	Off     bool      `json:"off,omitempty"`      // the actual state
	Since   time.Time `json:"since,omitzero"`     // when that changed last
	Before  bool      `json:"before,omitempty"`   // whether it was seen off before that
	WantOff bool      `json:"wantOff,omitempty"`  // what the manager was told
	Told    time.Time `json:"told,omitzero"`      // when
	Version token     `json:"version,omitzero"`   // of what it was told
	Deaf    bool      `json:"deaf,omitempty"`     // the guest ignores requests to shut down
	Due     time.Time `json:"due,omitzero"`       // when the guest will have shut down
	Restore time.Time `json:"restore,omitzero"`   // when the manager turns the host on
	Tried   int       `json:"restored,omitempty"` // how often it has done so
}

// polled returns when the manager last checked the host.
func (s *site) polled(m *machine) time.Time {
	if s.timing.PowerPoll <= 0 {
		return s.now
	}
	return m.Discovered.Add(s.now.Sub(m.Discovered).Truncate(s.timing.PowerPoll))
}

// seenOff returns what the manager saw then.
func (s *site) seenOff(m *machine) bool {
	if s.timing.PowerPoll > 0 && !m.Power.Since.Before(s.polled(m)) {
		return m.Power.Before
	}
	return m.Power.Off
}

// setPower switches a host.
func (s *site) setPower(id string, off bool) {
	m := *s.machines.get(id)
	if m.Power.Off == off {
		return
	}
	m.Power.Before = s.seenOff(&m)
	m.Power.Off, m.Power.Since, m.Power.Due = off, s.now, time.Time{}
	if !off {
		m.Rebooted = s.now
	}
	s.machines.put(id, &m)
	s.keepOn(id)
}

// keepOn makes the manager turn on a host that is to be on, once it has seen that it is off.
func (s *site) keepOn(id string) {
	m := *s.machines.get(id)
	if s.rules.NoPowerManager || !m.Power.Off || m.Power.WantOff {
		return
	}
	next := s.polled(&m).Add(s.timing.PowerPoll)
	m.Power.Restore = s.after(next.Sub(s.now), "host restored", id)
	s.machines.put(id, &m)
}

func (s *site) hostRestored(id string) {
	have := s.machines.get(id)
	if have == nil || !have.Power.Restore.Equal(s.now) || have.Power.WantOff || !have.Power.Off {
		return
	}
	m := *have
	m.Power.Tried++
	s.machines.put(id, &m)
	s.setPower(id, false)
}

// hostDown handles a guest that has shut down on request.
func (s *site) hostDown(id string) {
	if m := s.machines.get(id); m != nil && m.Power.Due.Equal(s.now) {
		s.setPower(id, true)
	}
}

// frozen reports whether the site leaves a host alone: everything that is due for a host that is to be off waits.
func (s *site) frozen(host string) bool {
	m := s.machines.get(host)
	return m != nil && m.Power.WantOff
}

// thaw makes up for what was due while a host was left alone.
func (s *site) thaw(host string) {
	for id := range s.instancesByHost.of(host) {
		have := s.instances.get(id)
		deed := map[forge.TenantState]string{
			forge.TenantState_PROVISIONING: "instance ready",
			forge.TenantState_CONFIGURING:  "instance configured",
			forge.TenantState_TERMINATING:  "instance gone",
		}[have.State]
		if deed != "" && !have.Due.After(s.now) {
			i := *have
			i.Due = s.after(0, deed, id)
			s.instances.put(id, &i)
		}
	}
	if have := s.machines.get(host); have.State == hostCleaning && !have.Due.After(s.now) {
		m := *have
		m.Due = s.after(0, "host clean", host)
		s.machines.put(host, &m)
	}
}

// GetPowerOptions returns what the manager knows about the given hosts, or about all. There is no limit, and hosts that it
// does not watch are left out.
func (s *site) GetPowerOptions(_ context.Context, r *forge.PowerOptionRequest) (*forge.PowerOptionResponse, error) {
	out := &forge.PowerOptionResponse{}
	if s.rules.NoPowerManager {
		return out, nil
	}
	var ids []string
	for _, id := range r.MachineId {
		ids = append(ids, id.Id)
	}
	if len(ids) == 0 {
		ids = sortedKeys(s.machines.rows)
	}
	for _, id := range ids {
		if m := s.machines.get(id); m != nil && m.Host == "" {
			out.Response = append(out.Response, s.wirePower(id, m))
		}
	}
	return out, nil
}

// UpdatePowerOption tells the manager whether a host is to be on. It does not turn anything off: people do that, and the
// site only tolerates it. Off is accepted only for a host under maintenance.
func (s *site) UpdatePowerOption(_ context.Context, r *forge.PowerOptionUpdateRequest) (*forge.PowerOptionResponse, error) {
	id := r.MachineId.GetId()
	have := s.machines.get(id)
	switch {
	case r.MachineId == nil:
		return nil, missing("machine_id")
	case machineType(id) == 'd', have == nil, s.rules.NoPowerManager:
		return nil, invalid("only the id of a host is expected")
	case r.PowerState == forge.PowerState_PowerManagerDisabled:
		return nil, unmodelled("hosts that the power manager leaves alone")
	}
	off := r.PowerState == forge.PowerState_Off
	if off && !have.prevents("SuppressExternalAlerting") {
		return nil, invalid("machine %s needs an alert 'Maintenance' with classification SuppressExternalAlerting", id)
	}
	if have.Power.WantOff == off {
		return nil, invalid("power state is already set as %s", r.PowerState)
	}
	m := *have
	m.Power.WantOff, m.Power.Told = off, s.now
	m.Power.Version = s.powerVersion(have).next(s.now)
	s.machines.put(id, &m)
	if !off {
		s.thaw(id)
		s.keepOn(id)
	}
	return &forge.PowerOptionResponse{Response: []*forge.PowerOptions{s.wirePower(id, s.machines.get(id))}}, nil
}

// AdminPowerControl switches a host through its BMC.
func (s *site) AdminPowerControl(_ context.Context, r *forge.AdminPowerControlRequest) (*forge.AdminPowerControlResponse, error) {
	id := r.GetMachineId()
	switch {
	case r.MachineId == nil:
		return nil, invalid("machine_id is required: the simulator knows no BMC by its address")
	case machineType(id) == 0:
		return nil, invalid("invalid machine id %q", id)
	case machineType(id) == 'd':
		return nil, unmodelled("the power of DPUs")
	}
	have := s.machines.get(id)
	if have == nil {
		return nil, notFound("machine", id)
	}
	out := &forge.AdminPowerControlResponse{}
	switch r.Action {
	case forge.AdminPowerControlRequest_On:
		s.setPower(id, false)
	case forge.AdminPowerControlRequest_ForceOff:
		s.setPower(id, true)
		if !have.Power.WantOff && !s.rules.NoPowerManager {
			out.Msg = proto.String("the host is to be on: the site will turn it on again")
		}
	case forge.AdminPowerControlRequest_GracefulShutdown:
		if !have.Power.Off && !have.Power.Deaf {
			m := *have
			m.Power.Due = s.after(s.timing.Shutdown, "host down", id)
			s.machines.put(id, &m)
		}
	case forge.AdminPowerControlRequest_GracefulRestart, forge.AdminPowerControlRequest_ForceRestart, forge.AdminPowerControlRequest_ACPowercycle:
		s.setPower(id, false)
		m := *s.machines.get(id)
		m.Rebooted, m.Power.Due = s.now, time.Time{}
		s.machines.put(id, &m)
	default:
		return nil, invalid("invalid action %d", r.Action)
	}
	return out, nil
}

// deafen makes the guest of a host ignore requests to shut down.
func (s *site) deafen(id string, deaf bool) error {
	have := s.machines.get(id)
	if have == nil {
		return notFound("machine", id)
	}
	m := *have
	m.Power.Deaf = deaf
	s.machines.put(id, &m)
	return nil
}

func (s *site) powerVersion(m *machine) token {
	if m.Power.Version == (token{}) {
		return firstToken(m.Discovered)
	}
	return m.Power.Version
}

func (s *site) wirePower(id string, m *machine) *forge.PowerOptions {
	word := func(off bool) forge.PowerState {
		if off {
			return forge.PowerState_Off
		}
		return forge.PowerState_On
	}
	told := m.Power.Told
	if told.IsZero() {
		told = m.Discovered
	}
	polled := s.polled(m)
	return &forge.PowerOptions{
		HostId:                   &forge.MachineId{Id: id},
		DesiredState:             word(m.Power.WantOff),
		DesiredStateUpdatedAt:    timestamppb.New(told),
		DesiredPowerStateVersion: s.powerVersion(m).String(),
		ActualState:              word(s.seenOff(m)),
		ActualStateUpdatedAt:     timestamppb.New(polled),
		NextPowerStateFetchAt:    timestamppb.New(polled.Add(s.timing.PowerPoll)),
		TriedTriggeringOnCounter: int32(m.Power.Tried),
	}
}
