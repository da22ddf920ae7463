package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

const (
	parallel = 10  // converge's default
	page     = 100 // ids in one call, as many as the simulator accepts
)

// look does the least that a plan without changes must do: it lists what exists, decodes the document, and reads the
// records.
func look(ctx context.Context, args []string) (done, error) {
	return timed(func() error {
		s, err := dial(args[0])
		if err != nil {
			return err
		}
		defer s.Close()
		return errors.Join(s.list(ctx), decode(args[1]), read(ctx, args[2]))
	})
}

// create creates what a document of networks contains, and reads each thing once it is created.
func create(ctx context.Context, args []string) (done, error) {
	text, err := os.ReadFile(args[1])
	if err != nil {
		return done{}, err
	}
	var d doc
	if err := json.Unmarshal(text, &d); err != nil {
		return done{}, err
	}
	return timed(func() error {
		s, err := dial(args[0])
		if err != nil {
			return err
		}
		defer s.Close()
		return s.create(ctx, d)
	})
}

// A doc is the output of networks.
type doc struct {
	Carbide struct {
		Tenant map[string]any                          `json:"tenant"`
		Group  map[string]any                          `json:"network_security_group"`
		VPC    map[string]any                          `json:"vpc"`
		Prefix map[string]struct{ VPC, Prefix string } `json:"vpc_prefix"`
		Net    map[string]struct {
			VPC      string
			Prefixes []struct{ Prefix, Gateway string }
		} `json:"network_segment"`
	}
}

// A service is a bare client of a simulator.
type service struct {
	forge.ForgeClient
	*grpc.ClientConn
}

// dial connects with the settings of converge.yaml.
func dial(config string) (service, error) {
	var c struct {
		Carbide struct {
			Address string
			TLS     struct{ CA, Cert, Key string }
		}
	}
	text, err := os.ReadFile(config)
	if err != nil {
		return service{}, err
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		return service{}, err
	}
	pair, err := tls.LoadX509KeyPair(c.Carbide.TLS.Cert, c.Carbide.TLS.Key)
	if err != nil {
		return service{}, err
	}
	ca, err := os.ReadFile(c.Carbide.TLS.CA)
	if err != nil {
		return service{}, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	conn, err := grpc.NewClient(c.Carbide.Address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots})))
	return service{forge.NewForgeClient(conn), conn}, err
}

// list reads everything: all ids of a kind in one call, then one page of things per call.
func (s service) list(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(parallel)
	tenants, err1 := s.FindTenantOrganizationIds(ctx, &forge.TenantSearchFilter{})
	inPages(ctx, &g, tenants.GetTenantOrganizationIds(), s.tenants)
	groups, err2 := s.FindNetworkSecurityGroupIds(ctx, &forge.FindNetworkSecurityGroupIdsRequest{})
	inPages(ctx, &g, groups.GetNetworkSecurityGroupIds(), s.groups)
	vpcs, err3 := s.FindVpcIds(ctx, &forge.VpcSearchFilter{})
	inPages(ctx, &g, vpcs.GetVpcIds(), s.vpcs)
	prefixes, err4 := s.SearchVpcPrefixes(ctx, &forge.VpcPrefixSearchQuery{})
	inPages(ctx, &g, prefixes.GetVpcPrefixIds(), s.prefixes)
	segments, err5 := s.FindNetworkSegmentIds(ctx, &forge.NetworkSegmentSearchFilter{})
	inPages(ctx, &g, segments.GetNetworkSegmentsIds(), s.segments)
	return errors.Join(err1, err2, err3, err4, err5, g.Wait())
}

func inPages[ID any](ctx context.Context, g *errgroup.Group, ids []ID, read func(context.Context, ...ID) error) {
	for ids := range slices.Chunk(ids, page) {
		g.Go(func() error { return read(ctx, ids...) })
	}
}

func (s service) tenants(ctx context.Context, ids ...string) error {
	r, err := s.FindTenantsByOrganizationIds(ctx, &forge.TenantByOrganizationIdsRequest{OrganizationIds: ids})
	return all(ids, r.GetTenants(), err)
}

func (s service) groups(ctx context.Context, ids ...string) error {
	r, err := s.FindNetworkSecurityGroupsByIds(ctx, &forge.FindNetworkSecurityGroupsByIdsRequest{NetworkSecurityGroupIds: ids})
	return all(ids, r.GetNetworkSecurityGroups(), err)
}

func (s service) vpcs(ctx context.Context, ids ...*forge.VpcId) error {
	r, err := s.FindVpcsByIds(ctx, &forge.VpcsByIdsRequest{VpcIds: ids})
	return all(ids, r.GetVpcs(), err)
}

func (s service) prefixes(ctx context.Context, ids ...*forge.VpcPrefixId) error {
	r, err := s.GetVpcPrefixes(ctx, &forge.VpcPrefixGetRequest{VpcPrefixIds: ids})
	return all(ids, r.GetVpcPrefixes(), err)
}

func (s service) segments(ctx context.Context, ids ...*forge.NetworkSegmentId) error {
	r, err := s.FindNetworkSegmentsByIds(ctx, &forge.NetworkSegmentsByIdsRequest{NetworkSegmentsIds: ids})
	return all(ids, r.GetNetworkSegments(), err)
}

func all[ID, Thing any](ids []ID, things []Thing, err error) error {
	if err == nil && len(things) != len(ids) {
		err = fmt.Errorf("%d things are told of %d", len(things), len(ids))
	}
	return err
}

// create creates what d contains, referenced things first, with the calls that converge makes too: a thing is created and
// read, the users of a group and the state of a VPC's group are queried, and a segment becomes ready a little later.
func (s service) create(ctx context.Context, d doc) error {
	const tenant = "acme"
	labels := []*forge.Label{{Key: "env", Value: proto.String("prod")}, {Key: "cost", Value: proto.String("42")}}
	called := func(name string) *forge.Metadata { return &forge.Metadata{Name: name, Labels: labels} }
	id := func(kind, name string) string { return uuid.NewSHA1(uuid.Nil, []byte(kind+"/"+name)).String() }
	vpc := func(name string) *forge.VpcId { return &forge.VpcId{Value: id("vpc", name)} }

	if _, err := s.CreateTenant(ctx, &forge.CreateTenantRequest{OrganizationId: tenant, Metadata: &forge.Metadata{Name: tenant}}); err != nil {
		return err
	}
	if err := s.tenants(ctx, tenant); err != nil {
		return err
	}
	err := each(d.Carbide.Group, func(name string, _ any) error {
		id := id("group", name)
		_, err := s.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{
			Id: &id, TenantOrganizationId: tenant, Metadata: called(name),
			NetworkSecurityGroupAttributes: &forge.NetworkSecurityGroupAttributes{Rules: []*forge.NetworkSecurityGroupRuleAttributes{{
				Id: proto.String("ssh"), Direction: forge.NetworkSecurityGroupRuleDirection_NSG_RULE_DIRECTION_INGRESS,
				Protocol: forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_TCP, Action: forge.NetworkSecurityGroupRuleAction_NSG_RULE_ACTION_PERMIT,
				Priority: 100, DstPortStart: proto.Uint32(22), DstPortEnd: proto.Uint32(22),
				SourceNet:      &forge.NetworkSecurityGroupRuleAttributes_SrcPrefix{SrcPrefix: "10.0.0.0/8"},
				DestinationNet: &forge.NetworkSecurityGroupRuleAttributes_DstPrefix{DstPrefix: "0.0.0.0/0"},
			}}},
		})
		if err != nil {
			return err
		}
		_, err = s.GetNetworkSecurityGroupAttachments(ctx, &forge.GetNetworkSecurityGroupAttachmentsRequest{NetworkSecurityGroupIds: []string{id}})
		return errors.Join(err, s.groups(ctx, id))
	})
	if err != nil {
		return err
	}
	err = each(d.Carbide.VPC, func(name string, _ any) error {
		group := id("group", name)
		_, err := s.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpc(name), TenantOrganizationId: tenant, Metadata: called(name), NetworkSecurityGroupId: &group})
		if err != nil {
			return err
		}
		_, err = s.GetNetworkSecurityGroupPropagationStatus(ctx, &forge.GetNetworkSecurityGroupPropagationStatusRequest{VpcIds: []string{vpc(name).Value}})
		return errors.Join(err, s.vpcs(ctx, vpc(name)))
	})
	if err != nil {
		return err
	}
	err = each(d.Carbide.Prefix, func(name string, p struct{ VPC, Prefix string }) error {
		id := &forge.VpcPrefixId{Value: id("prefix", name)}
		_, err := s.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{
			Id: id, VpcId: vpc(p.VPC), Config: &forge.VpcPrefixConfig{Prefix: p.Prefix}, Metadata: called(name),
		})
		if err != nil {
			return err
		}
		return s.prefixes(ctx, id)
	})
	if err != nil {
		return err
	}
	return each(d.Carbide.Net, func(name string, n struct {
		VPC      string
		Prefixes []struct{ Prefix, Gateway string }
	}) error {
		id, block := &forge.NetworkSegmentId{Value: id("segment", name)}, n.Prefixes[0]
		_, err := s.CreateNetworkSegment(ctx, &forge.NetworkSegmentCreationRequest{
			Id: id, Name: name, VpcId: vpc(n.VPC), Prefixes: []*forge.NetworkPrefix{{Prefix: block.Prefix, Gateway: &block.Gateway}},
		})
		if err != nil {
			return err
		}
		return errors.Join(s.segments(ctx, id), s.segments(ctx, id))
	})
}

func each[V any](things map[string]V, do func(string, V) error) error {
	var g errgroup.Group
	g.SetLimit(parallel)
	for name, v := range things {
		g.Go(func() error { return do(name, v) })
	}
	return g.Wait()
}
