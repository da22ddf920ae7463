package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
)

// user is who the program runs as, and its group: the number that images without a distribution use for nobody in particular.
const user = 65532

// The types of OCI's image specification, as far as they are used here.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type config struct {
	platform
	Config  runtime   `json:"config"`
	RootFS  rootfs    `json:"rootfs"`
	History []history `json:"history"`
}

// A runtime says how a container is started.
type runtime struct {
	User       string            `json:"User"`
	Entrypoint []string          `json:"Entrypoint"`
	WorkingDir string            `json:"WorkingDir"`
	Labels     map[string]string `json:"Labels"`
	StopSignal string            `json:"StopSignal"`
}

type rootfs struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type history struct {
	CreatedBy string `json:"created_by"`
}

// A docker is one element of manifest.json, which older versions of docker load read instead of the index.
type docker struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// reference is the grammar of names that are taken: a repository, perhaps with a registry, and a tag.
var reference = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9._-]+)*:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// Write writes the image of a program, with a name, as a tar of an OCI image layout, and returns the digest of its manifest. It fails when
// the program is not one for Linux, or needs libraries, which are not in the image.
func Write(w io.Writer, program []byte, name string) (digest string, err error) {
	if !reference.MatchString(name) {
		return "", fmt.Errorf("%q is no name of an image: want REPOSITORY:TAG, such as registry.example/converge:1.0", name)
	}
	arch, err := architecture(program)
	if err != nil {
		return "", err
	}
	plain, err := layer(program)
	if err != nil {
		return "", err
	}
	var zipped bytes.Buffer
	z, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	if _, err := z.Write(plain); err != nil {
		return "", err
	}
	if err := z.Close(); err != nil {
		return "", err
	}

	l := layout{}
	on := platform{Architecture: arch, OS: "linux"}
	layers := []descriptor{l.blob(typeLayer, zipped.Bytes())}
	conf, err := l.encoded(typeConfig, config{
		platform: on,
		Config: runtime{
			User: fmt.Sprintf("%d:%d", user, user), Entrypoint: []string{"/usr/bin/converge"}, WorkingDir: "/etc/converge", Labels: labels(program), StopSignal: "SIGTERM",
		},
		RootFS:  rootfs{Type: "layers", DiffIDs: []string{digestOf(plain)}},
		History: []history{{CreatedBy: "converge deploy/image"}},
	})
	if err != nil {
		return "", err
	}
	top, err := l.encoded(typeManifest, manifest{SchemaVersion: 2, MediaType: typeManifest, Config: conf, Layers: layers})
	if err != nil {
		return "", err
	}
	top.Platform, top.Annotations = &on, map[string]string{"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
	if err := l.file("index.json", index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{top}}); err != nil {
		return "", err
	}
	if err := l.file("manifest.json", []docker{{Config: path(conf), RepoTags: []string{name}, Layers: []string{path(layers[0])}}}); err != nil {
		return "", err
	}
	if err := l.file("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}); err != nil {
		return "", err
	}
	return top.Digest, archive(w, l)
}

// architecture returns for which machines a program is, in the words of OCI.
func architecture(program []byte) (string, error) {
	const how = "build it with CGO_ENABLED=0 GOOS=linux go build -trimpath"
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return "", fmt.Errorf("it is no program for Linux: %s: %w", how, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", errors.New("it needs libraries, which are not in the image: " + how)
		}
	}
	switch f.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("it is for %v: want amd64 or arm64", f.Machine)
}

// labels says what the program was built from, as far as it knows.
func labels(program []byte) map[string]string {
	m := map[string]string{"org.opencontainers.image.title": "converge", "org.opencontainers.image.licenses": "Apache-2.0"}
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return m
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			m["org.opencontainers.image.revision"] = s.Value
		}
	}
	return m
}

// layer returns the file system.
func layer(program []byte) ([]byte, error) {
	own := func(h tar.Header) tar.Header { h.Uid, h.Gid = user, user; return h }
	dir := func(name string, mode int64) tar.Header {
		return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}
	}
	passwd := fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nconverge:x:%d:%d:converge:/var/lib/converge:/sbin/nologin\n", user, user)
	group := fmt.Appendf(nil, "root:x:0:\nconverge:x:%d:\n", user)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, entry := range []struct {
		tar.Header
		data []byte
	}{
		{dir("etc/", 0o755), nil},
		{dir("etc/converge/", 0o755), nil},
		{tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, group},
		{tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, passwd}, // locks and runs name who they belong to
		{dir("usr/", 0o755), nil},
		{dir("usr/bin/", 0o755), nil},
		{tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/converge", Mode: 0o755}, program},
		{dir("var/", 0o755), nil},
		{dir("var/lib/", 0o755), nil},
		{own(dir("var/lib/converge/", 0o700)), nil},
	} {
		if err := put(w, entry.Header, entry.data); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// A layout has the files of an image layout, in the order in which they are written.
type layout []entry

type entry struct {
	name string
	data []byte
}

// blob adds a file that is named by its digest.
func (l *layout) blob(kind string, data []byte) descriptor {
	d := descriptor{MediaType: kind, Digest: digestOf(data), Size: len(data)}
	*l = append(*l, entry{path(d), data})
	return d
}

func (l *layout) encoded(kind string, v any) (descriptor, error) {
	data, err := json.Marshal(v) // keys of maps are sorted
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(kind, data), nil
}

func (l *layout) file(name string, v any) error {
	data, err := json.Marshal(v)
	*l = append(*l, entry{name, data})
	return err
}

func digestOf(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

func path(d descriptor) string { return "blobs/sha256/" + d.Digest[len("sha256:"):] }

// archive writes a layout as a tar.
func archive(out io.Writer, l layout) error {
	w := tar.NewWriter(out)
	for _, name := range []string{"blobs/", "blobs/sha256/"} {
		if err := put(w, tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, nil); err != nil {
			return err
		}
	}
	for _, e := range l {
		if err := put(w, tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: 0o644}, e.data); err != nil {
			return err
		}
	}
	return w.Close()
}

// put writes one entry of a tar. Its times are zero, so they are the same whenever it is written.
func put(w *tar.Writer, h tar.Header, data []byte) error {
	h.Format, h.Size = tar.FormatUSTAR, int64(len(data))
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
