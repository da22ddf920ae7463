package carbidesim

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// facts are the parts of the table of the wire that the simulator relies on.
type facts struct {
	Methods map[string]struct {
		Principals []Role `json:"principals"`
		Rest       string `json:"rest_snapshot"` // same, or absent
	} `json:"methods"`
	Rest struct {
		Messages map[string]json.RawMessage `json:"messages"`
	} `json:"rest_snapshot_differences"`
	Messages map[string]struct {
		Fields []struct {
			Number int  `json:"number"`
			Pruned bool `json:"pruned"`
		} `json:"fields"`
	} `json:"messages"`
}

func readFacts(t *testing.T) facts {
	t.Helper()
	b, err := os.ReadFile("../../providers/carbide/forge/testdata/forge-wire.json")
	if err != nil {
		t.Fatal(err)
	}
	var f facts
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// readDifferences returns the numbers of the fields that only the newer generation has.
func readDifferences(t *testing.T) map[string][]int {
	t.Helper()
	f := readFacts(t)
	out := map[string][]int{}
	for message, raw := range f.Rest.Messages {
		if string(raw) == `"absent"` {
			continue
		}
		var fields []struct {
			Number     int
			Core, Rest string
		}
		if err := json.Unmarshal(raw, &fields); err != nil {
			t.Fatal(err)
		}
		pruned := map[int]bool{}
		for _, field := range f.Messages[message].Fields {
			pruned[field.Number] = field.Pruned
		}
		for _, field := range fields {
			if field.Rest == "" && !pruned[field.Number] {
				out[message] = append(out[message], field.Number)
			}
		}
	}
	return out
}

func newMessageNamed(t *testing.T, name protoreflect.FullName) proto.Message {
	t.Helper()
	m, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return m.New().Interface()
}

// untabled are methods that the table does not contain, with the roles that the rules of the service give them.
var untabled = map[string][]Role{
	"AddExpectedRack":     {ForgeAdminCLI, Machineatron, SiteAgent},
	"UpdateExpectedRack":  {ForgeAdminCLI, Machineatron, SiteAgent},
	"DeleteExpectedRack":  {ForgeAdminCLI, Machineatron, SiteAgent},
	"GetExpectedRack":     {ForgeAdminCLI, Machineatron, SiteAgent, Flow},
	"GetAllExpectedRacks": {ForgeAdminCLI, Machineatron, SiteAgent, Flow},
}

func TestRolesAreThoseOfTheTable(t *testing.T) {
	roles := []Role{Anonymous, SiteAgent, ForgeAdminCLI, Machineatron, Health, Flow, Agent, SSH, SSHRs}
	methodsOfTable := readFacts(t).Methods
	for method, allowed := range untabled {
		m := methodsOfTable[method]
		m.Principals = allowed
		methodsOfTable[method] = m
	}
	if len(methodsOfTable) != len(methods) {
		t.Errorf("%d methods, the table has %d", len(methods), len(methodsOfTable))
	}
	for method, m := range methodsOfTable {
		allowed := map[Role]bool{}
		for _, r := range m.Principals {
			allowed[r] = true
			if !strings.Contains(joined(roles), string(r)) {
				t.Errorf("role %s is not known", r)
			}
		}
		for _, r := range roles {
			if want := allowed[r] || allowed[Anonymous]; r.may(method) != want {
				t.Errorf("may %s call %s: %v, the table says %v", r, method, r.may(method), want)
			}
		}
	}
}

func joined(roles []Role) string {
	out := ""
	for _, r := range roles {
		out += string(r) + " "
	}
	return out
}

func prefixList(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}
