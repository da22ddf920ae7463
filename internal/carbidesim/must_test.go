package carbidesim

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"path/filepath"
	"strings"
	"testing"
)

// musts are what the facts about the real service require of a simulator, in their order: below each line its clauses, each
// with the tests that fail when it is broken. A test of the provider has a slash.
var musts = []struct {
	line    string
	clauses map[string]string
}{
	{"the wire", map[string]string{
		"every method of the service":           "TestRolesAreThoseOfTheTable TestWhatIsNotModelledIsRefused",
		"HTTP/2, plain, TLS and mutual TLS":     "TestTransportModes carbide/TestDial",
		"roles by SPIFFE URI":                   "TestRolesOverTheWire TestRolesAreThoseOfTheTable carbide/TestSKURole",
		"a refused role is HTTP 403":            "TestForbiddenIsWhatAClientMakesOfHTTP403 TestRolesOverTheWire",
		"anybody asks for the version":          "TestRolesOverTheWire carbide/TestNotPermitted",
		"certificates are read again":           "TestCertificatesAreReadAgain carbide/TestRotation",
		"without its files it does not come up": "TestServerNeedsItsFiles",
	}},
	{"version", map[string]string{
		"settings when asked, and only then": "TestVersionTellsSettingsWhenAsked",
	}},
	{"generations", map[string]string{
		"unknown fields are harmless":              "TestUnknownFieldsAreNeverAnswered",
		"both generations are decoded":             "TestNamesOfBothGenerations",
		"the older one: flat fields, plain names":  "TestTheOlderGeneration TestNewerFieldsAreThoseOfTheTable carbide/TestLawsOlderServer",
		"the older one: newer methods are unknown": "TestNewMethodsAreThoseOfTheTable carbide/TestLibraryUnsupported",
	}},
	{"ids", map[string]string{
		"malformed: INTERNAL":            "TestNoMalformedIDPassesTheDecoder",
		"malformed, and of no kind":      "TestIDsAsPlainText TestOsImageRefusals TestExpectedMachines TestExtensionServiceRefusals",
		"an empty wrapper is the nil id": "TestEveryEmptyWrapperIsTheNilUUID TestAnIDIsGivenToWhatHasNone",
	}},
	{"finding", map[string]string{
		"lists have no pages":               "TestEveryListIsWhole",
		"filters of VPCs":                   "TestVpcFilters",
		"filters of prefixes":               "TestVpcPrefixes",
		"filters of peerings":               "TestAPairIsSortedAndPeeredOnce",
		"filters of segments":               "TestSegmentListHasTheOperatorsToo",
		"filters of instances":              "TestInstanceFilters",
		"filters of machines":               "TestSeededMachines",
		"filters of security groups":        "TestSecurityGroupNamesAndIDs",
		"filters of tenants and key sets":   "TestTenants TestKeysets",
		"filters of InfiniBand partitions":  "TestIBPartitionLife",
		"filters of NVLink partitions":      "TestNVLinkPartitionDeletion",
		"filters of Spectrum-X partitions":  "TestSpxPartition",
		"filters of operating systems":      "TestOperatingSystemLists",
		"filters of images":                 "TestOsImage",
		"filters of extension services":     "TestExtensionServiceLists",
		"filters of compute allocations":    "TestComputeAllocations",
		"by ids: none or too many":          "TestEveryListIsWhole TestLimitsOfOtherCalls",
		"by ids: unknown ones are left out": "TestEveryListIsWhole",
		"by ids: who has no limit":          "TestEveryListIsWhole TestOperatingSystemLists TestExtensionServiceLists",
	}},
	{"tokens", map[string]string{
		"number and microseconds":                "TestEveryToken",
		"updates move them, also those of none":  "TestEveryToken",
		"prefixes move a VPC's":                  "TestVpcPrefixMovesTheTokenOfItsVpc TestWhatElseMovesTokens",
		"partitions' stand still":                "TestEveryToken TestIBPartitionUpdate TestNVLinkPartitionUpdate carbide/TestPartitionVersion",
		"an instance's sections have their own":  "TestFabricsChange TestNetworkChange TestOperatingSystemReadsBack",
		"a stale one: kind and token are named":  "TestEveryToken",
		"a malformed one: a code per kind":       "TestEveryToken",
		"a VPC that is not there":                "TestVpcUpdateReplacesEverythingMutable",
		"a key set's is the client's":            "TestKeysets",
		"an extension service's counts versions": "TestExtensionServiceVersions TestExtensionServiceRefusals",
	}},
	{"updates", map[string]string{
		"metadata as a whole, default_name":         "TestEveryUpdateReplaces",
		"references and lists are cleared":          "TestVpcUpdateReplacesEverythingMutable TestUpdatesClearWhatTheyLack TestSecurityGroupReadsBackAsItWasSent TestOsImage",
		"an instance's configuration as a whole":    "TestInstanceUpdateReplacesTheWholeConfiguration TestFabricsChange",
		"a SKU as a whole":                          "TestSKUsAreTheSame",
		"what cannot change is refused":             "TestIBPartitionUpdate TestNVLinkPartitionUpdate TestOsImageRefusals TestVpcPrefixes TestComputeAllocations",
		"an operating system's is a patch":          "TestOperatingSystemIsAPatch TestOperatingSystemRefusals",
		"what expected hardware keeps and what not": "TestExpectedMachinesAreUpdated TestExpectedSwitches TestExpectedPowerShelves TestExpectedRacks",
	}},
	{"metadata", map[string]string{
		"limits":                    "TestMetadataOfEveryKind",
		"keys that are there twice": "TestMetadataOfEveryKind TestExpectedSwitches",
		"an empty value is none":    "TestLabelsOfEveryKind",
		"labels come in any order":  "TestLabelsOfEveryKind",
	}},
	{"what is there already", map[string]string{
		"ids":                                      "TestEveryIDIsTakenOnce",
		"names of security groups, by tenant":      "TestNamesAreTakenOnce TestSecurityGroupNamesAndIDs",
		"all tenants' when one is renamed":         "TestNamesAreTakenOnce TestSecurityGroupNamesAndIDs",
		"names of instance types, site-wide":       "TestNamesAreTakenOnce TestInstanceTypeNamesAndIDs",
		"names of allocations, by tenant":          "TestNamesAreTakenOnce TestComputeAllocations",
		"names of services, in any case, for ever": "TestNamesAreTakenOnce TestExtensionServiceNames",
		"host names":                               "TestInstanceIDsAndHostNames",
		"addresses of BMCs":                        "TestExpectedMachines TestExpectedSwitches TestExpectedPowerShelves",
		"parts of SKUs":                            "TestSKUs TestSKUsAreTheSame",
	}},
	{"deletes", map[string]string{
		"soft ones keep the id":         "TestEveryIDIsTakenOnce",
		"hard ones give it back":        "TestEveryIDIsTakenOnce",
		"what a second one says":        "TestEveryDeleteIsRepeated",
		"what was deleted is not there": "TestEveryIDIsTakenOnce TestSpxPartitionDeletion",
	}},
	{"what takes time", map[string]string{
		"by a clock that a test owns":           "TestSegmentLife TestControl",
		"segments":                              "TestSegmentLife TestASegmentIsNotHurriedByItsPredecessor",
		"InfiniBand partitions, and their fall": "TestIBPartitionLife TestAnIBPartitionIsNotHurriedByItsPredecessor carbide/TestFailedPartition",
		"instances become ready and synced":     "TestInstanceLife TestAnInstanceIsNotHurriedByItsPredecessor",
		"a change of the network":               "TestNetworkChange",
		"states by injection":                   "TestInjectedStatesAndAlerts TestControl",
		"phone home":                            "TestPhoneHomeHoldsAnInstance",
		"instances end and go":                  "TestInstanceLife",
		"hosts from Ready to Ready":             "TestInstanceLife",
	}},
	{"draining", map[string]string{
		"segments drain":                       "TestSegmentLife",
		"link networks are made":               "TestLinkNetworks",
		"they outlive the instance":            "TestLinkNetworks",
		"and hold the prefix":                  "TestLinkNetworks TestVpcPrefixes",
		"one that is not needed any more goes": "TestNetworkChange",
	}},
	{"a site without NVLink", map[string]string{
		"deleted partitions stay": "TestNVLinkPartitionDeletion carbide/TestLawsWithoutNVLink",
	}},
	{"what is in use", map[string]string{
		"security groups":                     "TestSecurityGroupInUse",
		"segments":                            "TestInstanceLife TestSegmentListHasTheOperatorsToo",
		"InfiniBand partitions":               "TestIBPartitionInUse",
		"NVLink partitions":                   "TestNVLinkPartitionInUse",
		"instance types":                      "TestMachinesUnderAnInstanceType",
		"extension services":                  "TestExtensionServiceInUse",
		"compute allocations":                 "TestAllocationsInUse",
		"SKUs":                                "TestSKUs",
		"all that is missing or malformed":    "TestEmptyRequests TestOtherRefusals",
		"what is deleted although it is used": "TestDeletedAlthoughUsed TestInstancesBootFromTheLibrary",
	}},
	{"after a VPC is gone", map[string]string{
		"its peerings are too":       "TestPeeringsGoWithTheirVpc carbide/TestPeeringAndItsVpc",
		"its prefixes are stuck":     "TestVpcDeletionChecksNothingAndBurnsTheID",
		"its segments are there yet": "TestVpcDeletionChecksNothingAndBurnsTheID",
	}},
	{"addresses", map[string]string{
		"VPC prefixes overlap nowhere":            "TestVpcPrefixes",
		"segments overlap nowhere":                "TestSegmentsOverlapNowhereOnTheSite TestSegmentLife",
		"a prefix and segments":                   "TestVpcPrefixes",
		"host bits":                               "TestVpcPrefixes TestSegmentAdmission",
		"inside the fabric":                       "TestVpcPrefixes TestSegmentAdmission",
		"which networks fit which VPC":            "TestNetworksFitTheirVpc TestVpcTypes",
		"sizes, gateways, one prefix of a family": "TestSegmentAdmission",
	}},
	{"pools", map[string]string{
		"VNIs":                   "TestVniPools",
		"VNIs of Spectrum-X":     "TestSpxPartitionNumbersAreTheirOwn",
		"VLANs":                  "TestVlanPool",
		"pkeys":                  "TestIBPartitionKeys",
		"numbers are given back": "TestVniPools TestVlanPool TestIBPartitionKeys TestSpxPartitionDeletion",
	}},
	{"peering", map[string]string{
		"the three policies":            "TestPeeringPolicies",
		"the pair is sorted":            "TestAPairIsSortedAndPeeredOnce",
		"a delete of what is not there": "TestAPairIsSortedAndPeeredOnce TestEveryDeleteIsRepeated",
	}},
	{"instances", map[string]string{
		"state of the host":                  "TestInstanceAdmission TestInstanceLife",
		"health, maintenance":                "TestInstanceAdmission TestInjectedStatesAndAlerts",
		"its type, and allocations":          "TestInstanceAdmission TestEnforcement",
		"what it boots":                      "TestInstanceAdmission TestInstancesBootFromTheLibrary TestOperatingSystemReadsBack",
		"whose it is":                        "TestInstanceAdmission TestFabricRefusals",
		"many at once, all or none":          "TestAFailedCallChangesNothing",
		"its interfaces":                     "TestInterfaces TestSeveralVpcsOnFnn",
		"addresses of segments":              "TestInstanceLife TestAddressesRunOut",
		"addresses of link networks":         "TestLinkNetworks TestAddressesRunOut TestInterfaces",
		"MAC addresses":                      "TestLinkNetworks TestInstanceLife",
		"a script in place of its entry":     "TestOperatingSystemReadsBack",
		"a host name cannot change":          "TestInstanceUpdateReplacesTheWholeConfiguration",
		"not before it is ready":             "TestInstanceUpdateReplacesTheWholeConfiguration TestFabricsChange TestPower",
		"not during a change of the network": "TestNetworkChange",
	}},
	{"machines", map[string]string{
		"seeded, with ids as real ones": "TestSeededMachines TestEqualCallsGiveEqualWorlds",
		"alerts and maintenance":        "TestSeededMachines TestMaintenance",
		"capabilities":                  "TestCapabilitiesMatch TestMachinesUnderAnInstanceType",
		"types, and the token":          "TestMachinesUnderAnInstanceType TestWhatElseMovesTokens",
	}},
	{"misfortune", map[string]string{
		"UNAVAILABLE, INTERNAL":       "TestFaultEffects TestWhichCallsAFaultHits",
		"the reply is lost":           "TestFaultEffects TestCutClosesTheConnection carbide/TestInternalCreate",
		"slow, or never":              "TestAWaitingCallEndsWithItsCaller carbide/TestDeadline",
		"drift and deletes by others": "TestStrangersChangeTheWorld TestCallsAreCountedAndStrangersAreNot TestControl",
	}},
	{"secrets", map[string]string{
		"no field that is pruned":             "TestUnknownFieldsAreNeverAnswered",
		"passwords and tokens, told in clear": "TestExpectedMachines TestExpectedSwitches TestOsImage TestOperatingSystemRefusals",
		"keys when asked, credentials never":  "TestKeysets TestExtensionServiceVersions",
	}},
}

func TestMust(t *testing.T) {
	if len(musts) != 22 {
		t.Errorf("%d lines, the facts have 22", len(musts))
	}
	here, there := testsIn(t, "."), testsIn(t, "../../providers/carbide")
	used := map[string]bool{}
	for _, m := range musts {
		if len(m.clauses) == 0 {
			t.Errorf("%s: no clauses", m.line)
		}
		for clause, tests := range m.clauses {
			if tests == "" {
				t.Errorf("%s, %s: no tests", m.line, clause)
			}
			for name := range strings.FieldsSeq(tests) {
				used[name] = true
				in := here
				if provider, ok := strings.CutPrefix(name, "carbide/"); ok {
					in, name = there, provider
				}
				if in[name] == "" {
					t.Errorf("%s, %s: there is no test %s", m.line, clause, name)
				}
			}
		}
	}
	for name, file := range here {
		if strings.HasPrefix(file, "laws") && !used[name] {
			t.Errorf("%s is a law of no clause", name)
		}
	}
}

// testsIn returns the tests of a folder, each with its file.
func testsIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files in %s: %v", len(files), dir, err)
	}
	out := map[string]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(gotoken.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				out[f.Name.Name] = filepath.Base(file)
			}
		}
	}
	return out
}
