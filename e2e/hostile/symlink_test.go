package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"converge.dev/converge/internal/torture"
)

const linkDocument = bombHead + `,"carbide":{"tenant":{"acme":{}},"vpc":{"prod":{"tenant":"acme"}}}}`

// TestSymlinks makes files and folders that a command writes symbolic links to somewhere else. The target stays unchanged,
// unless the operator's own flag leads there.
func TestSymlinks(t *testing.T) {
	t.Parallel()
	reached := torture.Cover(t, "links", []string{"plan -out", "plan -out, dangling", "-config", "document", "document folder", "fake world", "fake world, dangling", "journal of the world",
		"journal of the world, dangling", "journal of the world, empty", "lock of the store", "lock of the store, dangling", "temporary files"})
	for name, c := range map[string]struct {
		prepare func(y *yard)
		args    []string
		status  []int
		read    bool // what is outside is read through the link: that is what the user asked for
	}{
		"plan -out":           {func(y *yard) { y.link("tfplan", "precious") }, []string{"plan", "-out=tfplan", "site.json"}, []int{1}, false},
		"plan -out, dangling": {func(y *yard) { y.link("tfplan", "nothing") }, []string{"plan", "-out=tfplan", "site.json"}, []int{0}, false},
		"-config": {func(y *yard) {
			y.must(os.WriteFile(filepath.Join(y.root, "outside", "conf"), []byte("fake: {world: world.json}\n"), 0o600))
			y.must(os.Remove(filepath.Join(y.work, "converge.yaml")))
			y.link("converge.yaml", "conf")
		}, []string{"apply", "-auto-approve", "site.json"}, []int{0}, true},
		"document": {func(y *yard) {
			y.must(os.WriteFile(filepath.Join(y.root, "outside", "site"), []byte(linkDocument), 0o600))
			y.must(os.Remove(filepath.Join(y.work, "site.json")))
			y.link("site.json", "site")
		}, []string{"apply", "-auto-approve", "site.json"}, []int{0}, true},
		"document folder": {func(y *yard) {
			y.must(os.Mkdir(filepath.Join(y.root, "outside", "doc"), 0o700))
			y.must(os.WriteFile(filepath.Join(y.root, "outside", "doc", "site.json"), []byte(linkDocument), 0o600))
			y.link("doc", "doc")
			y.must(os.Symlink(filepath.Join(y.root, "outside", "precious"), filepath.Join(y.root, "outside", "doc", "converge.cue")))
		}, []string{"apply", "-auto-approve", "doc"}, []int{1}, false}, // one of its files leads out of it
		"fake world":                     {func(y *yard) { y.link("world.json", "precious") }, []string{"apply", "-auto-approve", "site.json"}, []int{1}, false},
		"fake world, dangling":           {func(y *yard) { y.link("world.json", "nothing") }, []string{"apply", "-auto-approve", "site.json"}, []int{0}, false},
		"journal of the world":           {func(y *yard) { y.link("world.json.journal", "precious") }, []string{"apply", "-auto-approve", "site.json"}, []int{1}, false},
		"journal of the world, dangling": {func(y *yard) { y.link("world.json.journal", "nothing") }, []string{"apply", "-auto-approve", "site.json"}, []int{1}, false},
		"journal of the world, empty": {func(y *yard) {
			y.must(os.WriteFile(filepath.Join(y.root, "outside", "blank"), nil, 0o600))
			y.link("world.json.journal", "blank")
		}, []string{"apply", "-auto-approve", "site.json"}, []int{1}, false},
		"lock of the store": {func(y *yard) {
			y.must(os.Mkdir(filepath.Join(y.work, ".converge"), 0o700))
			y.link(".converge/lock", "precious")
		}, []string{"put", "site.json"}, []int{1}, false},
		"lock of the store, dangling": {func(y *yard) {
			y.must(os.Mkdir(filepath.Join(y.work, ".converge"), 0o700))
			y.link(".converge/lock", "nothing")
		}, []string{"put", "site.json"}, []int{1}, false},
		"temporary files": {func(y *yard) {
			for _, name := range []string{".tfplan.", ".tfplan.0", ".world.json.", ".world.json.0", "world.json.tmp", "tfplan.tmp"} {
				y.link(name, "precious")
			}
		}, []string{"plan", "-out=tfplan", "site.json"}, []int{0}, false},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t)
			y.write("site.json", linkDocument)
			c.prepare(y)
			before := y.outside()
			r := y.ended(y.run(c.args...), c.status...)
			if !c.read && strings.Contains(r.out, "as it was") {
				t.Errorf("it shows what is outside:\n%s", r.out)
			}
			y.unchanged(before)
			reached.Reach(name)
		})
	}
}

// TestTortureSymlinkRaces replaces the files that a command is writing with links to the outside, again and again while it
// runs. However the command ends, nothing outside is changed.
func TestTortureSymlinkRaces(t *testing.T) {
	t.Parallel()
	targets := []string{"tfplan", "world.json", "world.json.journal", ".converge/lock", "site.json", "converge.yaml"}
	if torture.Full() { // files that exist only for a moment are hit now and then, and surely in many rounds
		targets = append(targets, ".tfplan.*", ".world.json.*")
	}
	reached := torture.Cover(t, "files replaced under a running command", targets)
	ends := map[int]int{}
	rounds := torture.Scale(1, 6, 100)
	for _, target := range targets {
		for round := range rounds {
			y := newYard(t)
			y.write("site.json", linkDocument)
			y.ended(y.run("plan", "-out=tfplan", "site.json"), 0)
			before := y.outside()
			stop := make(chan struct{})
			var racer sync.WaitGroup
			swapped := 0
			racer.Go(func() {
				precious := filepath.Join(y.root, "outside", "precious")
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					paths, _ := filepath.Glob(filepath.Join(y.work, target))
					if !strings.Contains(target, "*") {
						paths = []string{filepath.Join(y.work, target)}
					}
					for _, path := range paths {
						// Like another user with write access: the link appears at once, in the place of the file.
						link := fmt.Sprintf("%s.link-%d-%d", filepath.Join(y.root, "work", "racer"), round, i)
						if err := os.Symlink(precious, link); err != nil {
							continue
						}
						if err := os.Rename(link, path); err != nil {
							_ = os.Remove(link)
							continue
						}
						swapped++
					}
				}
			})
			var results []result
			for _, args := range [][]string{{"plan", "-out=tfplan", "site.json"}, {"apply", "-auto-approve", "site.json"}, {"apply", "-auto-approve", "tfplan"}} {
				results = append(results, y.run(args...))
			}
			close(stop)
			racer.Wait()
			for _, r := range results {
				ends[r.status]++
			}
			y.unchanged(before)
			if swapped > 0 {
				reached.Reach(target)
			}
		}
	}
	torture.Report(t, "J", "files replaced by links in %d runs of %d commands: nothing outside changed; exit statuses %v", rounds*len(targets), 3, ends)
}

// TestSymlinkedStore makes the folder of the embedded store a link, as a user with a small disk does. What the store finds
// there and did not create stays unchanged.
func TestSymlinkedStore(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.write("site.json", linkDocument)
	y.must(os.Mkdir(filepath.Join(y.root, "outside", "store"), 0o700))
	y.must(os.WriteFile(filepath.Join(y.root, "outside", "store", "precious"), []byte("as it was\n"), 0o600))
	y.link(".converge", "store")
	before := y.outside()
	y.ended(y.run("apply", "-auto-approve", "site.json"), 0, 1)
	now := y.outside()
	for path, was := range before {
		if now[path] != was {
			t.Errorf("%s was %s, is %q", path, was, now[path])
		}
	}
	for path := range now {
		if _, there := before[path]; !there && !strings.HasPrefix(path, filepath.Join(y.root, "outside", "store")) {
			t.Errorf("%s is new", path)
		}
	}
}
