package carbidesim

import (
	"context"
	"crypto/x509"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Role is a set of methods that a caller may use.
type Role string

// The roles that the service's methods require.
const (
	Anonymous     Role = "Anonymous"
	SiteAgent     Role = "SiteAgent"
	ForgeAdminCLI Role = "ForgeAdminCLI"
	Machineatron  Role = "Machineatron"
	Health        Role = "Health"
	Flow          Role = "Flow"
	Agent         Role = "Agent"
	SSH           Role = "Ssh"
	SSHRs         Role = "SshRs"

	// LaterSiteAgent is what a later version of the service permits a site agent.
	LaterSiteAgent Role = "LaterSiteAgent"
)

// Roles maps the SPIFFE URI in the certificate of a caller to its role.
type Roles map[string]Role

// DefaultRoles knows the site agent of a site as installed.
var DefaultRoles = Roles{"spiffe://nico.local/nico-system/sa/elektra-site-agent": SiteAgent}

// beyondAdmin are the methods that the site agent may call and the administrator may not.
var beyondAdmin = []string{
	"CreateTenant", "CreateTenantKeyset", "UpdateTenantKeyset", "DeleteTenantKeyset", "ValidateTenantPublicKey",
	"CreateVpc", "DeleteVpc", "CreateNetworkSegment", "UpdateInstanceOperatingSystem",
	"CreateIBPartition", "UpdateIBPartition", "DeleteIBPartition",
}

// beyondAgent are the methods that the administrator may call and the site agent may not.
var beyondAgent = []string{
	"CreateSku", "DeleteSku", "UpdateSkuMetadata", "ReplaceSku", "AssignSkuToMachine", "RemoveSkuAssociation",
	"GetExpectedMachine", "AdminPowerControl",
	"GetExpectedSwitch", "GetExpectedPowerShelf",
	"GetOperatingSystemCachableIpxeTemplateArtifacts", "UpdateOperatingSystemCachableIpxeTemplateArtifacts",
}

// narrow are the methods of the roles with a narrow purpose.
var narrow = map[Role][]string{
	Machineatron: {
		"CreateVpc", "DeleteVpc", "FindVpcIds", "CreateNetworkSegment", "DeleteNetworkSegment", "FindNetworkSegmentIds",
		"FindNetworkSegmentsByIds", "AllocateInstance", "AllocateInstances", "FindMachineIds", "FindMachinesByIds",
		"AddExpectedSwitch", "UpdateExpectedSwitch", "DeleteExpectedSwitch", "GetExpectedSwitch", "GetAllExpectedSwitches",
		"GetAllExpectedSwitchesLinked", "AddExpectedPowerShelf", "UpdateExpectedPowerShelf", "DeleteExpectedPowerShelf",
		"GetExpectedPowerShelf", "GetAllExpectedPowerShelves", "GetAllExpectedPowerShelvesLinked",
		"AddExpectedRack", "UpdateExpectedRack", "DeleteExpectedRack", "GetExpectedRack", "GetAllExpectedRacks",
	},
	Health: {"FindMachineIds", "FindMachinesByIds"},
	Flow: {
		"FindMachineIds", "FindMachinesByIds", "SetMaintenance", "GetAllSkuIds", "FindSkusByIds",
		"AddExpectedMachine", "GetExpectedMachine", "GetAllExpectedMachines", "GetAllExpectedMachinesLinked",
		"GetPowerOptions", "UpdatePowerOption", "AdminPowerControl",
		"AddExpectedSwitch", "GetExpectedSwitch", "GetAllExpectedSwitches", "GetAllExpectedSwitchesLinked",
		"AddExpectedPowerShelf", "GetExpectedPowerShelf", "GetAllExpectedPowerShelves", "GetAllExpectedPowerShelvesLinked",
		"GetExpectedRack", "GetAllExpectedRacks",
	},
	Agent: {"FindInstanceByMachineID"},
	SSH:   {"ValidateTenantPublicKey", "FindInstancesByIds", "FindMachineIds", "FindMachinesByIds"},
	SSHRs: {"ValidateTenantPublicKey", "FindInstancesByIds", "FindMachineIds", "FindMachinesByIds"},
}

// may reports whether a role may call a method. Every caller may ask for the version.
func (r Role) may(method string) bool {
	switch {
	case method == "Version":
		return true
	case r == LaterSiteAgent:
		return method == "AdminPowerControl" || SiteAgent.may(method)
	case r == SiteAgent:
		return !slices.Contains(beyondAgent, method)
	case r == ForgeAdminCLI:
		return !slices.Contains(beyondAdmin, method)
	}
	return slices.Contains(narrow[r], method)
}

// check refuses a call that none of the caller's roles may make. The real service responds with HTTP 403, which a client
// sees as this code.
func (r Roles) check(ctx context.Context, fullMethod string) error {
	role := Anonymous
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			role = r.of(info.State.VerifiedChains[0][0])
		}
	}
	if !role.may(path.Base(fullMethod)) {
		return status.Error(codes.PermissionDenied, "unexpected HTTP status code received from server: 403 (Forbidden)")
	}
	return nil
}

func (r Roles) of(c *x509.Certificate) Role {
	for _, uri := range c.URIs {
		if role, ok := r[strings.TrimSuffix(uri.String(), "/")]; ok {
			return role
		}
	}
	return Anonymous
}
