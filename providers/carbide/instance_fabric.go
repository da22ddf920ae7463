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
)

// What an instance has besides its Ethernet: ports on InfiniBand, GPUs in NVLink partitions, ports on Spectrum-X, and
// services on its DPUs. The service drops empty sections.

// readFabrics reads these sections into a spec.
func readFabrics(config *forge.InstanceConfig, s *spec.Instance) {
	s.Infiniband = each(config.GetInfiniband().GetIbInterfaces(), readIB)
	s.NVLink = each(config.GetNvlink().GetGpuConfigs(), readGPU)
	s.SPX = each(config.GetSpxconfig().GetSpxAttachments(), readSpx)
	s.DPUExtensionServices = each(config.GetDpuExtensionServices().GetServiceConfigs(), readService)
}

// readFabricStatus reads their state into a status.
func readFabricStatus(s *forge.InstanceStatus, got *spec.InstanceStatus) {
	got.InfinibandStatus = each(s.GetInfiniband().GetIbInterfaces(), func(i *forge.InstanceIBInterfaceStatus) spec.IBInterfaceStatus {
		return spec.IBInterfaceStatus{PFGUID: unlessZero(i.GetPfGuid()), GUID: unlessZero(i.GetGuid()), LID: unlessZero(int64(i.GetLid()))}
	})
	got.NVLinkStatus = each(s.GetNvlink().GetGpuStatuses(), func(g *forge.InstanceNVLinkGpuStatus) spec.NVLinkGPUStatus {
		return spec.NVLinkGPUStatus{
			GPUGUID: unlessZero(g.GetGpuGuid()), Domain: unlessZero(g.GetDomainId().GetValue()), LogicalPartition: unlessZero(g.GetLogicalPartitionId().GetValue()),
		}
	})
	got.SPXStatus = each(s.GetSpxStatus().GetAttachmentStatuses(), func(a *forge.InstanceSpxAttachmentStatus) spec.SpxAttachmentStatus {
		return spec.SpxAttachmentStatus{
			MACAddress: unlessZero(strings.ToLower(a.GetMacAddr())), IPAddress: unlessZero(a.GetIpAddress()), Partition: unlessZero(a.GetSpxPartitionId().GetValue()),
		}
	})
	got.DPUExtensionServiceStatus = each(s.GetDpuExtensionServices().GetDpuExtensionServices(), func(e *forge.InstanceDpuExtensionServiceStatus) spec.InstanceServiceStatus {
		id, deployment := e.GetServiceId(), deployments.word(e.GetDeploymentStatus())
		return spec.InstanceServiceStatus{
			Service: &id, Status: &deployment, Version: unlessZero(versionNumber(e.GetVersion())), Removed: unlessZero(e.GetRemoved()),
		}
	})
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

// writeFabrics replaces these sections. Elements that do not change are left as they are, so that the service sees no
// change and fields outside the schema are kept.
func (k instances) writeFabrics(ctx context.Context, c *call[spec.Instance], config *forge.InstanceConfig) error {
	type port struct {
		device   string
		instance int64
	}
	ib := renew(config.GetInfiniband().GetIbInterfaces(), c.want.Infiniband, readIB, writeIB, func(w *spec.IBInterface) port { return port{w.Device, w.DeviceInstance} })
	if len(ib) == 0 {
		config.Infiniband = nil
	} else {
		config.Infiniband = cmp.Or(config.Infiniband, &forge.InstanceInfinibandConfig{})
		config.Infiniband.IbInterfaces = ib
	}
	gpus := renew(config.GetNvlink().GetGpuConfigs(), c.want.NVLink, readGPU, writeGPU, func(w *spec.NVLinkGPU) int64 { return w.GPU })
	if len(gpus) == 0 {
		config.Nvlink = nil
	} else {
		config.Nvlink = cmp.Or(config.Nvlink, &forge.InstanceNVLinkConfig{})
		config.Nvlink.GpuConfigs = gpus
	}
	spx := renew(config.GetSpxconfig().GetSpxAttachments(), c.want.SPX, readSpx, writeSpx, func(w *spec.SpxAttachment) port { return port{w.Device, w.DeviceInstance} })
	if len(spx) == 0 {
		config.Spxconfig = nil
	} else {
		config.Spxconfig = cmp.Or(config.Spxconfig, &forge.InstanceSpxConfig{})
		config.Spxconfig.SpxAttachments = spx
	}
	services := renew(config.GetDpuExtensionServices().GetServiceConfigs(), c.want.DPUExtensionServices, readService, writeService, func(w *spec.InstanceService) string { return w.Service })
	if len(services) == 0 {
		config.DpuExtensionServices = nil
	} else {
		config.DpuExtensionServices = cmp.Or(config.DpuExtensionServices, &forge.InstanceDpuExtensionServicesConfig{})
		config.DpuExtensionServices.ServiceConfigs = services
	}
	return k.pin(ctx, services)
}

func readIB(i *forge.InstanceIBInterfaceConfig) spec.IBInterface {
	return spec.IBInterface{
		IBPartition: i.GetIbPartitionId().GetValue(), Device: i.GetDevice(), DeviceInstance: int64(i.GetDeviceInstance()), Vendor: unlessZero(i.GetVendor()),
	}
}

// writeIB requests a physical function: the service has no other on InfiniBand.
func writeIB(w *spec.IBInterface, i *forge.InstanceIBInterfaceConfig) {
	i.IbPartitionId, i.Device, i.Vendor = &forge.IBPartitionId{Value: w.IBPartition}, w.Device, w.Vendor
	i.DeviceInstance, i.FunctionType = uint32(w.DeviceInstance), forge.InterfaceFunctionType_PHYSICAL
}

func readGPU(g *forge.InstanceNVLinkGpuConfig) spec.NVLinkGPU {
	return spec.NVLinkGPU{GPU: int64(g.GetDeviceInstance()), LogicalPartition: unlessZero(g.GetLogicalPartitionId().GetValue())}
}

func writeGPU(w *spec.NVLinkGPU, g *forge.InstanceNVLinkGpuConfig) {
	g.DeviceInstance, g.LogicalPartitionId = uint32(w.GPU), nil
	if id := value(w.LogicalPartition); id != "" {
		g.LogicalPartitionId = &forge.NVLinkLogicalPartitionId{Value: id}
	}
}

var attachmentTypes = enum[forge.SpxAttachmentType]{
	{"physical", forge.SpxAttachmentType_Physical},
	{"ovn", forge.SpxAttachmentType_Ovn},
	{"virtual", forge.SpxAttachmentType_Virtual}, // which the service does not accept yet
}

func readSpx(a *forge.InstanceSpxAttachment) spec.SpxAttachment {
	kind := attachmentTypes.word(a.GetAttachmentType())
	return spec.SpxAttachment{
		Device: a.GetDevice(), DeviceInstance: int64(a.GetDeviceInstance()), SPXPartition: a.GetSpxPartitionId().GetValue(), Type: &kind,
	}
}

func writeSpx(w *spec.SpxAttachment, a *forge.InstanceSpxAttachment) {
	a.Device, a.DeviceInstance = w.Device, uint32(w.DeviceInstance)
	a.SpxPartitionId, a.AttachmentType = &forge.SpxPartitionId{Value: w.SPXPartition}, attachmentTypes.value(value(w.Type))
}

func readService(e *forge.InstanceDpuExtensionServiceConfig) spec.InstanceService {
	return spec.InstanceService{Service: e.GetServiceId(), Version: versionNumber(e.GetVersion())}
}

// writeService writes only the number of the version; pin completes it.
func writeService(w *spec.InstanceService, e *forge.InstanceDpuExtensionServiceConfig) {
	e.ServiceId, e.Version = w.Service, "V"+strconv.FormatInt(w.Version, 10)
}

// pin completes the versions of services. A document has their numbers, which the service counts up and never reuses; the
// service also requires the time when the version was made.
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
