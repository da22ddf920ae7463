package signed

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"converge.dev/converge/internal/dsse"
)

// maxKeyFile is the maximum size of a key file in bytes.
const maxKeyFile = 16 << 10

// Name returns the text form of a public key: ed25519:BASE64 of its 32 bytes.
func Name(key ed25519.PublicKey) string { return dsse.KeyID(key) }

// ParseName is the inverse of Name.
func ParseName(text string) (ed25519.PublicKey, error) { return dsse.ParseKeyID(text) }

// ReadPublicKey reads a file as written by `openssl pkey -pubout`, or with a line as returned by Name.
func ReadPublicKey(path string) (ed25519.PublicKey, error) {
	data, _, err := readFile(path)
	if err != nil {
		return nil, err
	}
	if key, err := ParseName(strings.TrimSpace(string(data))); err == nil {
		return key, nil
	}
	block, rest := pem.Decode(data)
	switch {
	case block == nil:
		return nil, fmt.Errorf("%s contains no public key: want PEM, as written by openssl pkey -pubout, or a line with ed25519:BASE64", path)
	case strings.HasSuffix(block.Type, "PRIVATE KEY"):
		return nil, fmt.Errorf("%s contains a private key, which only its signer should have; extract the public key with openssl pkey -pubout", path)
	case block.Type != "PUBLIC KEY" || len(strings.TrimSpace(string(rest))) > 0:
		return nil, fmt.Errorf("%s: want one block of type PUBLIC KEY", path)
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: the public key is damaged", path)
	}
	key, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%s contains a key for another algorithm; want ed25519", path)
	}
	return key, nil
}

// ReadPrivateKey reads a file as written by `openssl genpkey -algorithm ed25519`, which only its owner may read or
// write. An error never repeats its contents.
func ReadPrivateKey(path string) (ed25519.PrivateKey, error) {
	data, mode, err := readFile(path)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(data)
	switch {
	case block == nil:
		return nil, fmt.Errorf("%s contains no private key: want PKCS#8 in PEM, as written by openssl genpkey -algorithm ed25519", path)
	case block.Type == "ENCRYPTED PRIVATE KEY":
		return nil, fmt.Errorf("the key in %s is encrypted, which converge does not support; decrypt it with openssl pkey", path)
	case block.Type == "PUBLIC KEY":
		return nil, fmt.Errorf("%s contains a public key; signing needs the private key", path)
	case block.Type != "PRIVATE KEY" || len(strings.TrimSpace(string(rest))) > 0:
		return nil, fmt.Errorf("%s: want one block of type PRIVATE KEY (PKCS#8), as written by openssl genpkey -algorithm ed25519", path)
	}
	if mode.Perm()&0o077 != 0 {
		return nil, fmt.Errorf("the key in %s is accessible to other users (mode %04o): restrict it with chmod 600 %[1]s, and generate a new key if it has long been exposed", path, mode.Perm())
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: the private key is damaged", path)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s contains a key for another algorithm; want ed25519: openssl genpkey -algorithm ed25519", path)
	}
	return key, nil
}

// readFile reads a small regular file. A file that would block is not opened.
func readFile(path string) (data []byte, mode os.FileMode, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, 0, err
	case !info.Mode().IsRegular():
		return nil, 0, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > maxKeyFile:
		return nil, 0, fmt.Errorf("%s has %d bytes: too large for a key", path, info.Size())
	}
	data, err = io.ReadAll(io.LimitReader(f, maxKeyFile))
	return data, info.Mode(), err
}
