package nearest

import (
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	names := []string{"plan", "apply", "parallelism", "target"}
	for word, want := range map[string]string{
		"plna": "plan", "aply": "apply", "parralelism": "parallelism", "TARGET": "target", "x": "", "validate": "", "": "",
	} {
		if got, _ := Name(word, names); got != want {
			t.Errorf("Name(%q) = %q, want %q", word, got, want)
		}
	}
}

// No name of another meaning is suggested for a word that is unlike all names.
func TestNoName(t *testing.T) {
	names := []string{"plan", "validate", "put", "get", "drift", "diff", "fmt", "show", "lock", "hold"}
	for _, word := range []string{"man", "docs", "output", "init", "no", "x", "R5", ""} {
		if got, ok := Name(word, names); ok {
			t.Errorf("Name(%q) = %q", word, got)
		}
	}
}

// The kinds and names of documents are matched with the same measure as commands and flags.
func TestNameOfAKind(t *testing.T) {
	names := []string{"vpc", "vpc_prefix", "network_segment", "instance"}
	for word, want := range map[string]string{
		"vcp": "vpc", "VPC": "vpc", "vpcprefix": "vpc_prefix", "network_segments": "network_segment", "instnace": "instance", "tenant": "", "": "", "x": "",
		strings.Repeat("instance", 1<<16): "",
	} {
		if got, _ := Name(word, append(names, strings.Repeat("instance", 1<<16)+"s")); got != want {
			t.Errorf("Name(%.20q) = %.20q, want %q", word, got, want)
		}
	}
}

func TestRef(t *testing.T) {
	refs := []string{"site/carbide.vpc/prod", "site/carbide.vpc/legacy", "site/carbide.tenant/acme", "gpu-01/ovs.bridge/br-slice"}
	for pattern, want := range map[string]string{
		"site/carbide.vpc/legcy":   "site/carbide.vpc/legacy",
		"site/carbide.vpcs/*":      "site/carbide.vpc/*",
		"sites/carbide.vpc/p*":     "site/carbide.vpc/p*",
		"gpu-1/ovs.*/br-*":         "gpu-01/ovs.*/br-*",
		"site/carbide.vpc/zebra":   "",
		"node/carbide.vpc/prod":    "",
		"site/carbide.vpc":         "",
		"site/carbide.tenant/amce": "site/carbide.tenant/acme",
		"site/carbide.vpc/*":       "", // which it already is
	} {
		if got, _ := Ref(pattern, refs); got != want {
			t.Errorf("Ref(%q) = %q, want %q", pattern, got, want)
		}
	}
}
