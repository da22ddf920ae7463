package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestSpecsAreOfTheSchema checks that the structs agree with the schema.
func TestSpecsAreOfTheSchema(t *testing.T) {
	for _, provider := range []string{"carbide", "host", "libvirt", "ovs", "pci"} {
		files, err := generate(provider)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join("..", "..", "providers", provider, "spec")
		there, err := filepath.Glob(filepath.Join(dir, "*_spec.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range there {
			if files[filepath.Base(path)] == nil {
				t.Errorf("%s is of no kind", path)
			}
		}
		for name, want := range files {
			got, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Error(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what the schema says. Write it anew: go generate ./providers/%s/spec", name, provider)
			}
		}
	}
}

func TestCamel(t *testing.T) {
	for name, want := range map[string]string{
		"vpc": "VPC", "external_ids": "ExternalIDs", "host_nics": "HostNICs", "nvlink_logical_partition": "NVLinkLogicalPartition",
		"os_image": "OSImage", "stp_enable": "STPEnable", "tenant": "Tenant", "ip_address": "IPAddress",
	} {
		if got := camel(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}
