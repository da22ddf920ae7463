package enrol

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"converge.dev/converge/internal/files"
)

// Files of a FileStore. The key, its certificate and the mark are in one file, so that they are replaced as one.
const (
	caFile       = "ca.pem"
	identityFile = "identity.pem"
	markBlock    = "CONVERGE ENROLMENT"
	maxFile      = 1 << 20
)

// A store keeps credentials. What it has is the old or the new ones, whole.
type store interface {
	load(ctx context.Context) (*credentials, error) // nil when there are none; damage when they cannot serve
	save(ctx context.Context, c *credentials) error
	writable(ctx context.Context) error // fails when save would
	String() string                     // where it is
}

// damage says that what is stored is of no use, and nothing is lost when other credentials replace it.
type damage struct{ error }

func (d damage) Unwrap() error { return d.error }

type directory string

func (d directory) String() string { return string(d) }

func (d directory) load(context.Context) (*credentials, error) {
	identity, err := files.ReadPrivate(filepath.Join(string(d), identityFile), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ca, err := files.Read(filepath.Join(string(d), caFile), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damage{err}
	}
	if err != nil {
		return nil, err
	}
	var mark []byte
	for rest := identity; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type == markBlock {
			mark = block.Bytes
		}
	}
	c, err := parse(identity, identity, ca, mark)
	if err != nil {
		return nil, damage{fmt.Errorf("%s: %w", d, err)}
	}
	return c, nil
}

// writable makes the directory, and a file in it that goes at once.
func (d directory) writable(context.Context) error {
	if err := files.PrivateDir(string(d)); err != nil {
		return err
	}
	for _, name := range []string{caFile, identityFile} {
		if err := files.Replaceable(filepath.Join(string(d), name)); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(string(d), ".writable.*")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 4<<10)) // a full disk has room for a name alone
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}

// save writes the authorities first: a client that reads in between has the old identity, which its server still takes.
func (d directory) save(_ context.Context, c *credentials) error {
	if err := files.PrivateDir(string(d)); err != nil {
		return err
	}
	var b bytes.Buffer
	// Of what is stored already the rest is in the same text.
	for _, part := range []struct {
		text []byte
		want func(kind string) bool
	}{{c.key, isKey}, {c.chain, func(kind string) bool { return kind == "CERTIFICATE" }}} {
		for rest := part.text; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if part.want(block.Type) {
				b.Write(pem.EncodeToMemory(block))
			}
		}
	}
	if c.mark != nil {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: markBlock, Bytes: c.mark}))
	}
	if err := files.Replace(filepath.Join(string(d), caFile), c.ca, 0o600); err != nil {
		return err
	}
	if err := files.Replace(filepath.Join(string(d), identityFile), b.Bytes(), 0o600); err != nil {
		return err
	}
	dir, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func isKey(kind string) bool {
	return kind == "PRIVATE KEY" || kind == "EC PRIVATE KEY" || kind == "RSA PRIVATE KEY"
}
