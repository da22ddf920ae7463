package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// program returns the smallest file that the kernel would take for a program of a machine. One with an interpreter needs libraries.
func program(machine elf.Machine, interpreter bool) []byte {
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Ehsize: 64, Phentsize: 56, Shentsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	if interpreter {
		h.Phoff, h.Phnum = 64, 1
	}
	_ = binary.Write(&b, binary.LittleEndian, h) // never fails
	if interpreter {
		_ = binary.Write(&b, binary.LittleEndian, elf.Prog64{Type: uint32(elf.PT_INTERP), Off: 120})
	}
	return b.Bytes()
}

// unpack reads a tar. Of each entry it has the header and the contents.
func unpack(t *testing.T, r io.Reader) (names []string, headers map[string]*tar.Header, contents map[string][]byte) {
	t.Helper()
	headers, contents = map[string]*tar.Header{}, map[string][]byte{}
	for f := tar.NewReader(r); ; {
		h, err := f.Next()
		if errors.Is(err, io.EOF) {
			return names, headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		headers[h.Name], contents[h.Name] = h, data
	}
}

// read decodes JSON and refuses what the type does not have.
func read[T any](t *testing.T, data []byte) (v T) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return v
}

func TestImage(t *testing.T) {
	static := program(elf.EM_X86_64, false)
	var b bytes.Buffer
	digest, err := Write(&b, static, "registry.example:5000/team/converge:1.0")
	if err != nil {
		t.Fatal(err)
	}
	_, headers, contents := unpack(t, &b)
	blob := func(d descriptor) []byte {
		t.Helper()
		data, ok := contents["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
		if sum := fmt.Sprintf("sha256:%x", sha256.Sum256(data)); !ok || sum != d.Digest || len(data) != d.Size {
			t.Fatalf("blob %s (%d bytes) is not there, or has the digest %s and %d bytes", d.Digest, d.Size, sum, len(data))
		}
		return data
	}
	top := read[index](t, contents["index.json"])
	if len(top.Manifests) != 1 || top.Manifests[0].Digest != digest || top.Manifests[0].Platform.Architecture != "amd64" {
		t.Fatalf("the index has %+v, want only %s", top.Manifests, digest)
	}
	m := read[manifest](t, blob(top.Manifests[0]))
	c := read[config](t, blob(m.Config))
	want := runtime{
		User: "65532:65532", Entrypoint: []string{"/usr/bin/converge"}, WorkingDir: "/etc/converge", StopSignal: "SIGTERM",
		Labels: map[string]string{"org.opencontainers.image.title": "converge", "org.opencontainers.image.licenses": "Apache-2.0"},
	}
	if d := cmp.Diff(want, c.Config); d != "" {
		t.Errorf("the container (-want +have):\n%s", d)
	}
	if c.platform != (platform{"amd64", "linux"}) {
		t.Errorf("it is for %+v", c.platform)
	}
	if len(m.Layers) != 1 || len(c.RootFS.DiffIDs) != 1 {
		t.Fatalf("layers: %+v, %+v", m.Layers, c.RootFS)
	}
	z, err := gzip.NewReader(bytes.NewReader(blob(m.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if sum := fmt.Sprintf("sha256:%x", sha256.Sum256(plain)); sum != c.RootFS.DiffIDs[0] {
		t.Errorf("the layer has the digest %s, and the configuration says %s", sum, c.RootFS.DiffIDs[0])
	}

	names, in, data := unpack(t, bytes.NewReader(plain))
	if d := cmp.Diff([]string{"etc/", "etc/converge/", "etc/group", "etc/passwd", "usr/", "usr/bin/", "usr/bin/converge", "var/", "var/lib/", "var/lib/converge/"}, names); d != "" {
		t.Errorf("the files (-want +have):\n%s", d)
	}
	if !bytes.Equal(data["usr/bin/converge"], static) {
		t.Error("the program is not the one that was given")
	}
	for name, h := range in {
		mine := name == "var/lib/converge/" // the only place that its user may write to
		if owner := [2]int{h.Uid, h.Gid}; mine && owner != [2]int{65532, 65532} || !mine && owner != [2]int{} {
			t.Errorf("%s belongs to %v", name, owner)
		}
		if h.Mode&0o6022 != 0 || mine && h.Mode != 0o700 {
			t.Errorf("%s has mode %04o", name, h.Mode)
		}
		if !h.ModTime.Equal(headers["index.json"].ModTime) || h.ModTime.Unix() != 0 {
			t.Errorf("%s has the time %v", name, h.ModTime)
		}
	}
	old := read[[]docker](t, contents["manifest.json"])
	if len(old) != 1 || contents[old[0].Config] == nil || contents[old[0].Layers[0]] == nil || !slices.Equal(old[0].RepoTags, []string{"registry.example:5000/team/converge:1.0"}) {
		t.Errorf("docker load reads %+v", old)
	}
}

// Same program, same bytes; another program, another digest.
func TestReproducible(t *testing.T) {
	build := func(p []byte) (string, string) {
		t.Helper()
		dir := t.TempDir()
		binary, out := filepath.Join(dir, "converge"), filepath.Join(dir, "converge.tar")
		if err := os.WriteFile(binary, p, 0o700); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		if err := run([]string{"-binary", binary, "-o", out}, &said); err != nil {
			t.Fatal(err)
		}
		image, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return said.String(), string(image)
	}
	said, image := build(program(elf.EM_X86_64, false))
	if again, same := build(program(elf.EM_X86_64, false)); again != said || same != image {
		t.Errorf("%s and %s of the same program", said, again)
	}
	if other, _ := build(program(elf.EM_AARCH64, false)); other == said || !strings.HasPrefix(other, "converge:latest sha256:") {
		t.Errorf("%s and %s of two programs", said, other)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		what    string
		program []byte
		name    string
		want    string
	}{
		{"a program that needs libraries", program(elf.EM_X86_64, true), "converge:1", "CGO_ENABLED=0"},
		{"a program for another machine", program(elf.EM_RISCV, false), "converge:1", "want amd64 or arm64"},
		{"a script", []byte("#!/bin/sh\n"), "converge:1", "no program for Linux"},
		{"a name without a tag", program(elf.EM_X86_64, false), "converge", "REPOSITORY:TAG"},
		{"a name that is none", program(elf.EM_X86_64, false), "../converge:1", "REPOSITORY:TAG"},
	} {
		var b bytes.Buffer
		if _, err := Write(&b, c.program, c.name); err == nil || !strings.Contains(err.Error(), c.want) || b.Len() > 0 {
			t.Errorf("%s: %v and %d bytes, want an error with %q", c.what, err, b.Len(), c.want)
		}
	}
	for _, args := range [][]string{{"-binary", filepath.Join(t.TempDir(), "none")}, {"-o", "/dev/null"}, {"more"}, {"-x"}} {
		if err := run(args, io.Discard); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
