package carbide

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
	"converge.dev/converge/schema"
)

// What an instance has beside its Ethernet: ports on InfiniBand, GPUs in NVLink partitions, ports on Spectrum-X, and
// services on its DPUs. The service drops a section that is empty.

// readFabrics puts these sections into a spec.
func readFabrics(config *forge.InstanceConfig, spec schema.Object) {
	putList(spec, "infiniband", list(config.GetInfiniband().GetIbInterfaces(), func(i *forge.InstanceIBInterfaceConfig) any { return readIB(i) }))
	putList(spec, "nvlink", list(config.GetNvlink().GetGpuConfigs(), func(g *forge.InstanceNVLinkGpuConfig) any { return readGPU(g) }))
	putList(spec, "spx", list(config.GetSpxconfig().GetSpxAttachments(), func(a *forge.InstanceSpxAttachment) any { return readSpx(a) }))
	putList(spec, "dpu_extension_services", list(config.GetDpuExtensionServices().GetServiceConfigs(), func(e *forge.InstanceDpuExtensionServiceConfig) any { return readService(e) }))
}

// readFabricStatus puts what became of them into a status.
func readFabricStatus(s *forge.InstanceStatus, got schema.Object) {
	putList(got, "infiniband_status", list(s.GetInfiniband().GetIbInterfaces(), func(i *forge.InstanceIBInterfaceStatus) any {
		o := map[string]any{}
		put(o, "pf_guid", i.GetPfGuid())
		put(o, "guid", i.GetGuid())
		put(o, "lid", int64(i.GetLid()))
		return o
	}))
	putList(got, "nvlink_status", list(s.GetNvlink().GetGpuStatuses(), func(g *forge.InstanceNVLinkGpuStatus) any {
		o := map[string]any{}
		put(o, "gpu_guid", g.GetGpuGuid())
		put(o, "domain", g.GetDomainId().GetValue())
		put(o, "logical_partition", g.GetLogicalPartitionId().GetValue())
		return o
	}))
	putList(got, "spx_status", list(s.GetSpxStatus().GetAttachmentStatuses(), func(a *forge.InstanceSpxAttachmentStatus) any {
		o := map[string]any{}
		put(o, "mac_address", strings.ToLower(a.GetMacAddr()))
		put(o, "ip_address", a.GetIpAddress())
		put(o, "partition", a.GetSpxPartitionId().GetValue())
		return o
	}))
	putList(got, "dpu_extension_service_status", list(s.GetDpuExtensionServices().GetDpuExtensionServices(), func(e *forge.InstanceDpuExtensionServiceStatus) any {
		o := map[string]any{"service": e.GetServiceId(), "status": deployments.word(e.GetDeploymentStatus())}
		put(o, "version", versionNumber(e.GetVersion()))
		put(o, "removed", e.GetRemoved())
		return o
	}))
}

var deployments = enum[forge.DpuExtensionServiceDeploymentStatus]{
	{"unknown", forge.DpuExtensionServiceDeploymentStatus_DPU_EXTENSION_SERVICE_UNKNOWN},
	{"pending", forge.DpuExtensionServiceDeploymentStatus_DPU_EXTENSION_SERVICE_PENDING},
	{"running", forge.DpuExtensionServiceDeploymentStatus_DPU_EXTENSION_SERVICE_RUNNING},
	{"terminating", forge.DpuExtensionServiceDeploymentStatus_DPU_EXTENSION_SERVICE_TERMINATING},
	{"terminated", forge.DpuExtensionServiceDeploymentStatus_DPU_EXTENSION_SERVICE_TERMINATED},
	{"failed", forge.DpuExtensionServiceDeploymentStatus_DPU_EXTENSION_SERVICE_FAILED},
	{"error", forge.DpuExtensionServiceDeploymentStatus_DPU_EXTENSION_SERVICE_ERROR},
}

// writeFabrics replaces these sections. What is asked for as it is there is left as it is, so that the service sees no
// change and what the schema does not have is kept.
func (k instances) writeFabrics(ctx context.Context, c *call[spec.Instance], config *forge.InstanceConfig) error {
	ib := renewMaps(config.GetInfiniband().GetIbInterfaces(), structs(c.Want, "infiniband"), readIB, writeIB, "device", "device_instance")
	if len(ib) == 0 {
		config.Infiniband = nil
	} else {
		config.Infiniband = cmp.Or(config.Infiniband, &forge.InstanceInfinibandConfig{})
		config.Infiniband.IbInterfaces = ib
	}
	gpus := renewMaps(config.GetNvlink().GetGpuConfigs(), structs(c.Want, "nvlink"), readGPU, writeGPU, "gpu")
	if len(gpus) == 0 {
		config.Nvlink = nil
	} else {
		config.Nvlink = cmp.Or(config.Nvlink, &forge.InstanceNVLinkConfig{})
		config.Nvlink.GpuConfigs = gpus
	}
	spx := renewMaps(config.GetSpxconfig().GetSpxAttachments(), structs(c.Want, "spx"), readSpx, writeSpx, "device", "device_instance")
	if len(spx) == 0 {
		config.Spxconfig = nil
	} else {
		config.Spxconfig = cmp.Or(config.Spxconfig, &forge.InstanceSpxConfig{})
		config.Spxconfig.SpxAttachments = spx
	}
	services := renewMaps(config.GetDpuExtensionServices().GetServiceConfigs(), structs(c.Want, "dpu_extension_services"), readService, writeService, "service")
	if len(services) == 0 {
		config.DpuExtensionServices = nil
	} else {
		config.DpuExtensionServices = cmp.Or(config.DpuExtensionServices, &forge.InstanceDpuExtensionServicesConfig{})
		config.DpuExtensionServices.ServiceConfigs = services
	}
	return k.pin(ctx, services)
}

func readIB(i *forge.InstanceIBInterfaceConfig) map[string]any {
	o := map[string]any{
		"ib_partition": i.GetIbPartitionId().GetValue(), "device": i.GetDevice(), "device_instance": int64(i.GetDeviceInstance()),
	}
	put(o, "vendor", i.GetVendor())
	return o
}

// writeIB asks for a physical function: the service has no other on InfiniBand.
func writeIB(o map[string]any, i *forge.InstanceIBInterfaceConfig) {
	i.IbPartitionId, i.Device, i.Vendor = &forge.IBPartitionId{Value: text(o, "ib_partition")}, text(o, "device"), optional(o, "vendor")
	i.DeviceInstance, i.FunctionType = count(o, "device_instance"), forge.InterfaceFunctionType_PHYSICAL
}

func readGPU(g *forge.InstanceNVLinkGpuConfig) map[string]any {
	o := map[string]any{"gpu": int64(g.GetDeviceInstance())}
	put(o, "logical_partition", g.GetLogicalPartitionId().GetValue())
	return o
}

func writeGPU(o map[string]any, g *forge.InstanceNVLinkGpuConfig) {
	g.DeviceInstance, g.LogicalPartitionId = count(o, "gpu"), nil
	if id := text(o, "logical_partition"); id != "" {
		g.LogicalPartitionId = &forge.NVLinkLogicalPartitionId{Value: id}
	}
}

var attachmentTypes = enum[forge.SpxAttachmentType]{
	{"physical", forge.SpxAttachmentType_Physical},
	{"ovn", forge.SpxAttachmentType_Ovn},
	{"virtual", forge.SpxAttachmentType_Virtual}, // which the service does not take yet
}

func readSpx(a *forge.InstanceSpxAttachment) map[string]any {
	return map[string]any{
		"device": a.GetDevice(), "device_instance": int64(a.GetDeviceInstance()), "spx_partition": a.GetSpxPartitionId().GetValue(),
		"type": attachmentTypes.word(a.GetAttachmentType()),
	}
}

func writeSpx(o map[string]any, a *forge.InstanceSpxAttachment) {
	a.Device, a.DeviceInstance = text(o, "device"), count(o, "device_instance")
	a.SpxPartitionId, a.AttachmentType = &forge.SpxPartitionId{Value: text(o, "spx_partition")}, attachmentTypes.value(o["type"])
}

func readService(e *forge.InstanceDpuExtensionServiceConfig) map[string]any {
	return map[string]any{"service": e.GetServiceId(), "version": versionNumber(e.GetVersion())}
}

// writeService leaves the version as its number; pin completes it.
func writeService(o map[string]any, e *forge.InstanceDpuExtensionServiceConfig) {
	e.ServiceId, e.Version = text(o, "service"), "V"+strconv.Itoa(int(count(o, "version")))
}

// pin completes the versions of services. A document has their numbers, which the service counts up and never uses twice;
// the service wants to hear when the version was made, too.
func (k instances) pin(ctx context.Context, services []*forge.InstanceDpuExtensionServiceConfig) error {
	request := &forge.DpuExtensionServicesByIdsRequest{}
	for _, e := range services {
		if !strings.Contains(e.Version, "-") {
			request.ServiceIds = append(request.ServiceIds, e.ServiceId)
		}
	}
	if len(request.ServiceIds) == 0 {
		return nil
	}
	r, err := k.FindDpuExtensionServicesByIds(ctx, request)
	if err != nil {
		return unsentError{err}
	}
	whole := map[string]string{}
	for _, s := range r.GetServices() {
		for _, v := range s.GetActiveVersions() {
			number, _, _ := strings.Cut(v, "-")
			whole[s.GetServiceId()+" "+number] = v
		}
	}
	for _, e := range services {
		if strings.Contains(e.Version, "-") {
			continue
		}
		v := whole[e.ServiceId+" "+e.Version]
		if v == "" {
			return status.Errorf(codes.FailedPrecondition, "extension service %s has no version %s", e.ServiceId, strings.TrimPrefix(e.Version, "V"))
		}
		e.Version = v
	}
	return nil
}
