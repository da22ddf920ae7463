package cidata

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var full = Seed{
	MetaData: "{\"instance-id\":\"i-1\"}\n", UserData: "#cloud-config\npassword: secret\n", NetworkConfig: strings.Repeat("x: 漢\n", 1000), VendorData: "v",
}

func imageOf(t testing.TB, s Seed) []byte {
	t.Helper()
	b, err := s.Image()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReadBack(t *testing.T) {
	for _, s := range []Seed{{}, full, {MetaData: "m"}, {UserData: strings.Repeat("u", 64<<10), NetworkConfig: strings.Repeat("n", 64<<10), VendorData: strings.Repeat("v", 64<<10), MetaData: strings.Repeat("m", 2048)}} {
		b := imageOf(t, s)
		if got, err := Read(b); err != nil || got != s {
			t.Errorf("%.50v is read as %.50v (%v)", s, got, err)
		}
	}
}

// TestSame: an image is the same in every version of this program. Otherwise none that is in use would be recognized.
func TestSame(t *testing.T) {
	sum := sha256.Sum256(imageOf(t, full))
	if got, want := hex.EncodeToString(sum[:]), "92f37d287b513fd0a81aa1b8bfe30e542775a594dcb0ff13f01bcaba5b979b56"; got != want {
		t.Errorf("the image has the digest %s, want %s", got, want)
	}
}

// TestChanged: an image of which anything differs is none.
func TestChanged(t *testing.T) {
	b, other := imageOf(t, full), imageOf(t, Seed{MetaData: full.MetaData, UserData: strings.Replace(full.UserData, "secret", "Secret", 1), NetworkConfig: full.NetworkConfig, VendorData: full.VendorData})
	for i := 0; i < len(b); i += 509 {
		changed := bytes.Clone(b)
		changed[i] ^= 0x20
		if _, err := Read(changed); err == nil {
			t.Errorf("it is read although byte %d differs", i)
		}
	}
	for cut := 0; cut <= Size; cut += sector {
		mixed := append(bytes.Clone(other[:cut]), b[cut:]...)
		if _, err := Read(mixed); (err == nil) != (bytes.Equal(mixed, b) || bytes.Equal(mixed, other)) {
			t.Errorf("an image of which %d bytes were replaced: %v", cut, err)
		}
	}
	for _, size := range []int{0, 1, Descriptor, Size - 1, Size + 1} {
		if _, err := Read(make([]byte, size)); err == nil {
			t.Errorf("%d bytes are read", size)
		}
	}
}

func TestRefused(t *testing.T) {
	for says, s := range map[string]Seed{
		"user-data is not UTF-8": {UserData: "a\xff"},
		"are too long":           {UserData: strings.Repeat("u", 200<<10), VendorData: strings.Repeat("v", 60<<10)},
	} {
		if _, err := s.Image(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("the error is %v, want it to say %q", err, says)
		}
	}
}

// TestOthers: other programs find the label, and the files under their names, in either of the two forms.
func TestOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seed.iso")
	if err := os.WriteFile(path, imageOf(t, full), 0o600); err != nil {
		t.Fatal(err)
	}
	said := func(args ...string) string {
		program, err := exec.LookPath(args[0])
		if err != nil {
			program, err = exec.LookPath("/usr/sbin/" + args[0])
		}
		if err != nil {
			if os.Getenv("CONVERGE_REAL") != "" {
				t.Fatalf("CONVERGE_REAL is set, but there is no %s", args[0])
			}
			t.Skipf("there is no %s", args[0])
		}
		out, err := exec.Command(program, args[1:]...).CombinedOutput()
		if err != nil {
			t.Errorf("%q: %v: %s", args, err, out)
		}
		return string(out)
	}
	if label := said("blkid", "-p", "-o", "value", "-s", "LABEL", path); label != "cidata\n" {
		t.Errorf("the label is %q", label)
	}
	const names = ".\nmeta-data\nnetwork-config\nuser-data\nvendor-data\n"
	for _, form := range []string{"!joliet", "!rockridge"} {
		if got := said("bsdtar", "--options", form, "-tf", path); got != names {
			t.Errorf("with %s it has the files %q", form, got)
		}
		for name, text := range map[string]string{"meta-data": full.MetaData, "user-data": full.UserData, "network-config": full.NetworkConfig, "vendor-data": full.VendorData} {
			if got := said("bsdtar", "--options", form, "-xOf", path, name); got != text {
				t.Errorf("with %s, %s is %q", form, name, got)
			}
		}
	}
}
