// Image writes an OCI image with the program converge in it, and nothing else: no shell, no libraries, no package manager.
//
//	CGO_ENABLED=0 go build -trimpath -o bin/converge-static ./cmd/converge
//	go run ./deploy/image -binary bin/converge-static -o converge.tar
//
// It needs neither a daemon nor root. The same program gives the same bytes: nothing in the image depends on the time, the machine or
// the user. The file is an OCI image layout in a tar, with the index that docker load reads: docker, podman, skopeo and containerd take
// it as it is.
//
// The program runs as user 65532 in /etc/converge, where it finds its converge.yaml, and can do with a read-only file system; what it
// writes goes to /var/lib/converge. There are no certificates of public authorities in the image: converge.yaml names the one of each
// service (etcd.ca, carbide.tls.ca).
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"

	"converge.dev/converge/internal/files"
)

// maxBinary is the maximum size of the program.
const maxBinary = 1 << 30

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// run writes the image that the arguments ask for, and prints its digest.
func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	binary := flags.String("binary", "bin/converge-static", "the `program`, without libraries: CGO_ENABLED=0 go build -trimpath")
	out := flags.String("o", "converge.tar", "`file` to which the image is written")
	name := flags.String("name", "converge:latest", "`name` of the image, with a tag")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err := files.Replaceable(*out); err != nil {
		return err
	}
	program, err := files.Read(*binary, maxBinary)
	if err != nil {
		return fmt.Errorf("read the program: %w", err)
	}
	var archive bytes.Buffer
	digest, err := Write(&archive, program, *name)
	if err != nil {
		return fmt.Errorf("%s: %w", *binary, err)
	}
	if err := files.Replace(*out, archive.Bytes(), 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s %s\n", *name, digest)
	return err
}
