package libvirt

import (
	"testing"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// The schema lets no name and no path through that leads out of its directory or has characters that are not meant to be seen.
func TestPatterns(t *testing.T) {
	s, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	pool := s.Kinds()["libvirt.pool"]
	for path, ok := range map[string]bool{
		"/srv/images": true, "/srv/.images": true, "/srv/..images": true, "/srv/a.b..c": true, "/srv/a b&<\"'>": true, "/a": true,
		"": false, "/": false, "srv": false, "/srv/": false, "//srv": false, "/srv//a": false, "/srv/.": false, "/srv/..": false, "/../etc": false,
		"/srv/../etc": false, "/srv/./a": false, "/srv/\n": false, "/srv/a\x00b": false, "/srv/a\x7f": false, "/srv/\u0085": false, "/srv/a\n/b": false,
	} {
		if problems := s.CheckSpec(pool, schema.Object{"path": path}); (len(problems) == 0) != ok {
			t.Errorf("path %q: %v", path, problems)
		}
	}
	volume := s.Kinds()["libvirt.volume"]
	for path, ok := range map[string]bool{
		"a": true, "debian/disk.qcow2": true, ".a/..b/c": true, "a b&<\"'>": true,
		"": false, "/": false, "/a": false, "a/": false, "a//b": false, ".": false, "..": false, "./a": false, "../a": false, "a/..": false, "a/../b": false,
		"a/./b": false, "a\n": false, "a\x00b": false, "\u0085": false, "a/b\x7f": false,
	} {
		if problems := s.CheckSpec(volume, schema.Object{"pool": "p", "capacity": int64(4096), "image": path}); (len(problems) == 0) != ok {
			t.Errorf("image %q: %v", path, problems)
		}
	}
	for _, kind := range []string{"libvirt.pool", "libvirt.volume", "libvirt.network"} {
		for name, ok := range map[string]bool{
			"web-1.qcow2": true, "_a": true, "a+b": true,
			"": false, ".": false, "..": false, ".a": false, "-a": false, "a/b": false, "../a": false, "a b": false, "a\n": false, "<a>": false, "a'b": false, `a"`: false, "ä": false,
		} {
			if problem := s.CheckName(s.Kinds()[kind], name); (problem == nil) != ok {
				t.Errorf("%s %q: %v", kind, name, problem)
			}
		}
	}
}
