package carbide

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers/carbide/forge"
)

// What is known about power comes from the site's power manager: it checks each host every few minutes and stores its
// desired power state. It turns on by itself a host that should be on. It leaves alone one that should be off, and so does
// the rest of the site, so of an instance that is off only the settings can change, and it cannot be released. Turning a
// host off takes a call of its own.
const (
	powerOn  = "on"
	powerOff = "off"

	// offReference marks the maintenance that we set, without which the service does not allow a host to be off.
	offReference = "converge: its instance is to be off"

	shutdownGrace = 2 * time.Minute // for a guest to shut down before its power is cut
)

// powers reads the power of hosts. It is empty where power is not monitored, or where we may not read it. One call is enough
// for all: the service does not limit their number, and reports every host when none is named.
func (s *service) powers(ctx context.Context, hosts ...*forge.MachineId) (map[string]*forge.PowerOptions, error) {
	request := &forge.PowerOptionRequest{MachineId: slices.DeleteFunc(hosts, func(id *forge.MachineId) bool { return id == nil })}
	if len(request.MachineId) == 0 {
		return nil, nil
	}
	r, err := s.GetPowerOptions(ctx, request)
	switch status.Code(err) {
	case codes.Unimplemented, codes.PermissionDenied:
		return nil, nil
	}
	powers := make(map[string]*forge.PowerOptions, len(r.GetResponse()))
	for _, p := range r.GetResponse() {
		if p.GetActualState() == forge.PowerState_Off {
			s.switchings.Delete(p.GetHostId().GetId())
		}
		if p.GetDesiredState() != forge.PowerState_PowerManagerDisabled {
			powers[p.GetHostId().GetId()] = p
		}
	}
	return powers, err
}

// powerWord returns a power state in the schema's words; "" when it is unknown.
func powerWord(p *forge.PowerOptions, state forge.PowerState) string {
	switch {
	case p == nil:
		return ""
	case state == forge.PowerState_Off:
		return powerOff
	case state == forge.PowerState_On:
		return powerOn
	}
	return ""
}

// powerDiffers returns a text when the power of a host is not yet as the site wants it, but becomes so without another
// call; "" when it is, or when it is unknown.
func (s *service) powerDiffers(p *forge.PowerOptions) string {
	if p == nil || p.GetActualState() == p.GetDesiredState() || s.deaf(p) {
		return ""
	}
	return fmt.Sprintf("its host should be %s but is %s", powerWord(p, p.GetDesiredState()), powerWord(p, p.GetActualState()))
}

// A switching is what was done to a host that should be off, with times by the power manager's last check before each action.
type switching struct{ asked, cut time.Time }

// patience is how long a request to a guest to shut down counts: a guest that was turned on since is asked again.
const patience = time.Hour

// deaf reports whether a host that should be off stays on: it was observed on long after the desired state was set, after its
// guest was asked to shut down, and since its power was cut. Times are by the site's clock; what counts is when its power
// manager has checked.
func (s *service) deaf(p *forge.PowerOptions) bool {
	if p.GetDesiredState() != forge.PowerState_Off || p.GetActualState() != forge.PowerState_On {
		return false
	}
	looked, done := p.GetActualStateUpdatedAt().AsTime(), s.switched(p)
	return !looked.Before(p.GetDesiredStateUpdatedAt().AsTime().Add(shutdownGrace)) && !looked.Before(done.asked.Add(shutdownGrace)) && done.cut != looked
}

// switched returns what this process recently did to a host. Another process starts over, and so asks the guest first.
func (s *service) switched(p *forge.PowerOptions) switching {
	v, _ := s.switchings.Load(p.GetHostId().GetId())
	done, _ := v.(switching)
	if p.GetActualStateUpdatedAt().AsTime().Sub(done.asked) > patience {
		return switching{}
	}
	return done
}

// errUnwatched is the refusal to change power where the change could not be observed.
var errUnwatched = status.Error(codes.Unimplemented, "the site's power manager does not monitor this host, so its power can be neither observed nor maintained: omit power")

// turnOn sets the desired power of the host to on, and turns it on. Where we may not do that, the power manager does it,
// at its own pace.
func (k instances) turnOn(ctx context.Context, now seenInstance) error {
	if now.power.GetDesiredState() != forge.PowerState_On {
		if err := k.wantPower(ctx, now, forge.PowerState_On); err != nil {
			return err
		}
	}
	if now.power.GetActualState() != forge.PowerState_On {
		switch err := k.switchPower(ctx, now, forge.AdminPowerControlRequest_On); status.Code(err) {
		case codes.OK, codes.PermissionDenied, codes.Unimplemented:
		default:
			return halfwayError{err}
		}
	}
	if err := k.endMaintenance(ctx, now); err != nil {
		return halfwayError{err}
	}
	return nil
}

// turnOff asks the guest to shut down and sets the desired power of the host to off. When the guest was already asked and
// does not react, it cuts the power. The first of these calls is the one that we may not be allowed to make.
func (k instances) turnOff(ctx context.Context, now seenInstance) error {
	told := now.power.GetDesiredState() == forge.PowerState_Off
	if told && !k.deaf(now.power) {
		return nil
	}
	if now.power.GetActualState() != forge.PowerState_Off {
		looked, done := now.power.GetActualStateUpdatedAt().AsTime(), k.switched(now.power)
		action := forge.AdminPowerControlRequest_GracefulShutdown
		if told && !done.asked.IsZero() {
			action, done.cut = forge.AdminPowerControlRequest_ForceOff, looked
		} else {
			done.asked = looked
		}
		if err := k.switchPower(ctx, now, action); err != nil {
			if status.Code(err) == codes.PermissionDenied {
				return fmt.Errorf("this service lets only administrators power off hosts; shut down the guest from inside, or use an administrator's certificate: %w", err)
			}
			return err
		}
		k.switchings.Store(now.GetMachineId().GetId(), done)
	}
	if told {
		return nil
	}
	if err := k.beginMaintenance(ctx, now); err != nil {
		return halfwayError{err}
	}
	if err := k.wantPower(ctx, now, forge.PowerState_Off); err != nil {
		return halfwayError{err}
	}
	return nil
}

// endMaintenance ends the maintenance that beginMaintenance began.
func (k instances) endMaintenance(ctx context.Context, now seenInstance) error {
	found, err := machines{k.service}.get(ctx, []string{now.GetMachineId().GetId()})
	if err != nil {
		return unsentError{err}
	}
	if len(found) == 1 && found[0].GetMaintenanceReference() == offReference {
		return machines{k.service}.setMaintenance(ctx, now.MachineId, "")
	}
	return nil
}

// beginMaintenance puts a host under maintenance, unless it already is.
func (k instances) beginMaintenance(ctx context.Context, now seenInstance) error {
	found, err := machines{k.service}.get(ctx, []string{now.GetMachineId().GetId()})
	if err != nil || len(found) == 1 && found[0].GetMaintenanceReference() != "" {
		return err
	}
	return machines{k.service}.setMaintenance(ctx, now.MachineId, offReference)
}

func (k instances) wantPower(ctx context.Context, now seenInstance, state forge.PowerState) error {
	_, err := k.UpdatePowerOption(ctx, &forge.PowerOptionUpdateRequest{MachineId: now.MachineId, PowerState: state})
	return err
}

func (k instances) switchPower(ctx context.Context, now seenInstance, action forge.AdminPowerControlRequest_SystemPowerControl) error {
	id := now.GetMachineId().GetId()
	_, err := k.AdminPowerControl(ctx, &forge.AdminPowerControlRequest{MachineId: &id, Action: action})
	return err
}
