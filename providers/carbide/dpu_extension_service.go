package carbide

import (
	"cmp"
	"context"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// A name stays taken for ever. So a deleted service cannot be restored, and undoing a create would use up the name: a
// create comes after everything that can be undone, and only when it was approved.
var extensionServiceTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Blind,
	IDsNotReusable: true, EffectWithin: late,
	UndoCreate: providers.Replace, UndoUpdate: providers.Exact, UndoDelete: providers.NoUndo,
	Exclusive: []providers.Exclusive{{Field: "{name}", Within: "tenant", Folded: true}},
}

// Refusals of what the service would refuse less clearly, or would do silently.
const (
	refusedAlone = "the service changes observability only together with the manifest or the credential: change one of them too"
	refusedLoss  = "the service has a credential that is not specified, and a new version would lose it: specify the credential, or remove it in a separate change"
	refusedParts = "a credential needs a registry, a user and a password, each of 1 to 255 bytes"
	nameTaken    = "the name is taken in its tenant, perhaps by a deleted service: the service never releases a name, so choose another"
)

// extensionServiceRefusals are codes with a special meaning.
var extensionServiceRefusals = refusals{
	opCreate: {
		codes.FailedPrecondition: providers.Exists, // the name is taken
		codes.Internal:           providers.Absent, // the tenant
	},
	opUpdate: {
		codes.FailedPrecondition: providers.Exists, // the name is taken
	},
	opDelete: {
		codes.FailedPrecondition: providers.Busy, // instances use it
	},
}

type extensionServices struct {
	*service
	uuidKind
}

func (k extensionServices) list(ctx context.Context) ([]string, error) {
	r, err := k.FindDpuExtensionServiceIds(ctx, &forge.DpuExtensionServiceSearchFilter{})
	return r.GetServiceIds(), err
}

func (k extensionServices) get(ctx context.Context, ids []string) ([]*forge.DpuExtensionService, error) {
	r, err := k.FindDpuExtensionServicesByIds(ctx, &forge.DpuExtensionServicesByIdsRequest{ServiceIds: ids})
	return r.GetServices(), err
}

func (extensionServices) thing(o *forge.DpuExtensionService) providers.Thing {
	latest := o.GetLatestVersionInfo()
	s := spec.DPUExtensionService{
		Tenant: o.GetTenantOrganizationId(), Manifest: latest.GetData(), Description: unlessZero(o.GetDescription()),
		Observability: each(latest.GetObservability().GetConfigs(), readCollector),
	}
	if none := ""; !latest.GetHasCredential() {
		s.Registry, s.RegistryUsername, s.RegistryPassword = &none, &none, &none
	}
	got := spec.DPUExtensionServiceStatus{Version: unlessZero(latest.GetVersion()), ActiveVersions: o.GetActiveVersions()}
	return providers.Thing{
		ID: o.GetServiceId(), Name: o.GetServiceName(), Version: serviceToken(o), Spec: s.Object(), Status: got.Object(), Phase: providers.Ready,
	}
}

// serviceToken adds the time to the service's own version token, which a change of name or description does not move.
func serviceToken(o *forge.DpuExtensionService) string {
	return strconv.Itoa(int(o.GetVersionCtr())) + "/" + o.GetUpdated()
}

func (k extensionServices) create(ctx context.Context, c *call[spec.DPUExtensionService]) error {
	credential, err := credentialOf(&c.want)
	if err != nil {
		return err
	}
	made, err := k.CreateDpuExtensionService(ctx, &forge.CreateDpuExtensionServiceRequest{
		ServiceId:            &c.ID,
		ServiceName:          c.Called(),
		Description:          c.want.Description,
		ServiceType:          forge.DpuExtensionServiceType_KUBERNETES_POD,
		TenantOrganizationId: c.want.Tenant,
		Data:                 c.want.Manifest,
		Credential:           credential,
		Observability:        writeObservability(c.want.Observability, nil),
	})
	c.Chose(made.GetServiceId())
	if status.Code(err) == codes.FailedPrecondition || status.Code(err) == codes.AlreadyExists {
		return toldError{nameTaken, err}
	}
	return err
}

// A toldError adds an explanation to a refusal that does not say enough.
type toldError struct {
	words string
	error
}

func (e toldError) Error() string { return e.words + ": " + e.error.Error() }
func (e toldError) Unwrap() error { return e.error }

// update makes a new version only when what runs changes: the service refuses one equal to the last. The credential
// cannot be read back. A desired one is sent with everything else, and when the service then sees no change,
// there was none.
func (k extensionServices) update(ctx context.Context, c *call[spec.DPUExtensionService], now *forge.DpuExtensionService) error {
	credential, err := credentialOf(&c.want)
	if err != nil {
		return err
	}
	latest, description := now.GetLatestVersionInfo(), value(c.want.Description)
	described := now.GetServiceName() != c.Called() || now.GetDescription() != description
	data := c.want.Manifest != latest.GetData()
	observability := writeObservability(c.want.Observability, latest.GetObservability())
	collected := asJSON(each(observability.GetConfigs(), readCollector)) != asJSON(each(latest.GetObservability().GetConfigs(), readCollector))
	taken := credential == nil && latest.GetHasCredential()
	request := &forge.UpdateDpuExtensionServiceRequest{ServiceId: c.ID, IfVersionCtrMatch: &now.VersionCtr}
	if described {
		request.ServiceName, request.Description = proto.String(c.Called()), &description
	}
	switch {
	case taken && (data || collected || described):
		return refuse(refusedLoss)
	case !data && credential == nil && !taken:
		if collected {
			return refuse(refusedAlone)
		}
		return k.describe(ctx, request, described)
	}
	whole := &forge.UpdateDpuExtensionServiceRequest{
		ServiceId: request.ServiceId, IfVersionCtrMatch: request.IfVersionCtrMatch,
		ServiceName: request.ServiceName, Description: request.Description,
		Data: c.want.Manifest, Credential: credential, Observability: observability,
	}
	_, err = k.UpdateDpuExtensionService(ctx, whole)
	if status.Code(err) == codes.InvalidArgument && !data && !taken { // everything is as it was accepted before, so nothing runs differently
		if collected {
			return toldError{refusedAlone, err}
		}
		return k.describe(ctx, request, described)
	}
	return err
}

// describe changes name and description, and sends nothing that would make a version.
func (k extensionServices) describe(ctx context.Context, request *forge.UpdateDpuExtensionServiceRequest, needed bool) error {
	if !needed {
		return nil
	}
	_, err := k.UpdateDpuExtensionService(ctx, request)
	return err
}

func (k extensionServices) delete(ctx context.Context, c *call[spec.DPUExtensionService]) error {
	_, err := k.DeleteDpuExtensionService(ctx, &forge.DeleteDpuExtensionServiceRequest{ServiceId: c.ID})
	return err
}

// refuse returns a refusal of our own, before anything is sent.
func refuse(words string) error {
	return unsentError{status.Error(codes.InvalidArgument, words)}
}

// credentialOf returns the credential of a spec; nil when there is none. It is checked here, so that a refusal of the
// service cannot be about it.
func credentialOf(want *spec.DPUExtensionService) (*forge.DpuExtensionServiceCredential, error) {
	registry, user, password := value(want.Registry), value(want.RegistryUsername), value(want.RegistryPassword)
	given := 0
	for _, part := range []string{registry, user, password} {
		switch n := len(part); {
		case n > 255:
			return nil, refuse(refusedParts)
		case n > 0:
			given++
		}
	}
	switch given {
	case 0:
		return nil, nil
	case 3:
		return &forge.DpuExtensionServiceCredential{
			RegistryUrl: registry,
			Type: &forge.DpuExtensionServiceCredential_UsernamePassword{UsernamePassword: &forge.UsernamePassword{
				Username: user, Password: password,
			}},
		}, nil
	}
	return nil, refuse(refusedParts)
}

func readCollector(c *forge.DpuExtensionServiceObservabilityConfig) spec.Observability {
	one := spec.Observability{Name: unlessZero(c.GetName())}
	if p := c.GetPrometheus(); p != nil {
		one.Prometheus = &spec.ObservabilityPrometheus{Endpoint: p.GetEndpoint(), ScrapeIntervalSeconds: int64(p.GetScrapeIntervalSeconds())}
	}
	if l := c.GetLogging(); l != nil {
		one.Logging = &spec.ObservabilityLogging{Path: l.GetPath()}
	}
	return one
}

// writeObservability changes what is collected, nil for a new service, to the desired state. It returns nil when nothing is
// to be collected.
func writeObservability(want []spec.Observability, now *forge.DpuExtensionServiceObservability) *forge.DpuExtensionServiceObservability {
	configs := renew(now.GetConfigs(), want, readCollector, writeCollector, func(w *spec.Observability) string { return value(w.Name) })
	if len(configs) == 0 {
		return nil
	}
	out := &forge.DpuExtensionServiceObservability{}
	if now != nil {
		out = proto.CloneOf(now)
	}
	out.Configs = configs
	return out
}

func writeCollector(w *spec.Observability, c *forge.DpuExtensionServiceObservabilityConfig) {
	c.Name = w.Name
	if p := w.Prometheus; p != nil {
		prometheus := cmp.Or(c.GetPrometheus(), &forge.DpuExtensionServiceObservabilityConfigPrometheus{})
		prometheus.Endpoint, prometheus.ScrapeIntervalSeconds = p.Endpoint, uint32(p.ScrapeIntervalSeconds)
		c.Config = &forge.DpuExtensionServiceObservabilityConfig_Prometheus{Prometheus: prometheus}
	}
	if l := w.Logging; l != nil {
		logging := cmp.Or(c.GetLogging(), &forge.DpuExtensionServiceObservabilityConfigLogging{})
		logging.Path = l.Path
		c.Config = &forge.DpuExtensionServiceObservabilityConfig_Logging{Logging: logging}
	}
}
