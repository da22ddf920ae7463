package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"converge.dev/converge/internal/loadtest"
)

// document prints a document of n resources: mixed, of all kinds, or only networks.
func document(w io.Writer, what string) error {
	kind, text, _ := strings.Cut(what, ":")
	n, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	body := loadtest.Site
	if kind == "networks" {
		body = networks
	}
	_, err = w.Write(body(n))
	return err
}

// write writes a document in a process of its own: a child is charged with the memory that its parent had when it was
// started, so this process stays small.
func (b *bencher) write(path, what string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	cmd := exec.Command(b.self, "-emit="+what)
	cmd.Stdout, cmd.Stderr = f, os.Stderr
	return errors.Join(cmd.Run(), f.Close())
}

// networks returns a site of n resources without machines: tenants, VPCs, their prefixes, segments and security groups.
func networks(n int) []byte {
	kinds := map[string]map[string]any{"tenant": {"acme": map[string]any{}}}
	put := func(kind, name string, spec map[string]any) {
		if kinds[kind] == nil {
			kinds[kind] = map[string]any{}
		}
		if n--; n > 0 {
			kinds[kind][name] = spec
		}
	}
	for i := 0; n > 0; i++ {
		name := fmt.Sprintf("v%05d", i)
		labels := map[string]any{"env": "prod", "cost": fmt.Sprint(i % 97)}
		put("network_security_group", name, map[string]any{"tenant": "acme", "labels": labels, "rules": []any{
			map[string]any{"id": "ssh", "direction": "ingress", "protocol": "tcp", "action": "permit", "priority": 100, "src_prefix": "10.0.0.0/8", "dst_prefix": "0.0.0.0/0", "dst_ports": map[string]any{"start": 22, "end": 22}},
		}})
		put("vpc", name, map[string]any{"tenant": "acme", "labels": labels, "network_security_group": name, "description": "bench"})
		put("vpc_prefix", name, map[string]any{"vpc": name, "prefix": fmt.Sprintf("10.%d.%d.0/25", i/256, i%256), "labels": labels})
		put("network_segment", name, map[string]any{"vpc": name, "prefixes": []any{
			map[string]any{"prefix": fmt.Sprintf("10.%d.%d.128/25", i/256, i%256), "gateway": fmt.Sprintf("10.%d.%d.129", i/256, i%256)},
		}})
	}
	doc, _ := json.Marshal(map[string]any{
		"apiVersion": "converge.dev/v1",
		"site":       map[string]any{"name": "bench", "id": "7c0d1f5e-2a34-4f6b-9c8d-1e2f3a4b5c6d"},
		"carbide":    kinds,
	})
	return doc
}
