package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"converge.dev/converge/internal/files"
)

// The endings of the files of a guard, and the other files of the directory.
const (
	capsuleFile = ".capsule"
	verdictFile = ".verdict"
	resultFile  = ".result"

	lockName   = "guard.lock"
	socketName = "guard.sock"
)

// endings are those of the files of a guard.
var endings = []string{capsuleFile, verdictFile, resultFile}

// A disk is the directory of a program. A method that returns without an error has its effect on disk, synced.
type disk struct {
	dir string

	// at is called before and after each change of the directory, which fails when at does; nil: never.
	at func(moment, op, name string) error
}

// prepare makes the directory.
func (d *disk) prepare() error {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(d.dir)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("others on this machine can access %s (mode %04o): run chmod 700 on it", d.dir, info.Mode().Perm())
	}
	return err
}

func (d *disk) do(op, name string, f func() error) error {
	if d.at == nil {
		return f()
	}
	if err := d.at("before", op, name); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return d.at("after", op, name)
}

func (d *disk) sync() error {
	return d.do("sync", "", func() error {
		f, err := os.Open(d.dir)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

// replace writes a file.
func (d *disk) replace(name string, what any) error {
	data, err := encode(what)
	if err != nil {
		return err
	}
	if err := d.do("replace", name, func() error { return files.Replace(filepath.Join(d.dir, name), data, 0o600) }); err != nil {
		return err
	}
	return d.sync()
}

// create writes a file that does not exist yet, in one step: it is there completely or not at all. It fails with fs.ErrExist
// when it is there.
func (d *disk) create(name string, what any) error {
	data, err := encode(what)
	if err != nil {
		return err
	}
	tmp := filepath.Join(d.dir, "."+name+".new")
	if err := d.do("write", name, func() error { return files.Replace(tmp, data, 0o600) }); err != nil {
		return err
	}
	if err := d.do("link", name, func() error { return os.Link(tmp, filepath.Join(d.dir, name)) }); err != nil {
		return err
	}
	_ = os.Remove(tmp) // what is left is removed by the next process
	return d.sync()
}

// remove removes a file. One that is not there is no error.
func (d *disk) remove(name string) error {
	err := d.do("remove", name, func() error {
		if err := os.Remove(filepath.Join(d.dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	return d.sync()
}

// names returns the guards of which there are files, by the names of these, with the endings that there are. Files of writers that did
// not finish are removed; whatever else is in the directory is left alone.
func (d *disk) names() (map[string][]string, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") {
			if !e.Type().IsRegular() || !slices.ContainsFunc(endings, func(ending string) bool { return strings.Contains(name, ending+".") }) {
				continue
			}
			if err := os.Remove(filepath.Join(d.dir, name)); err != nil {
				return nil, err
			}
			continue
		}
		for _, ending := range endings {
			if of, ok := strings.CutSuffix(name, ending); ok {
				all[of] = append(all[of], ending)
			}
		}
	}
	return all, nil
}

// read reads a file.
func (d *disk) read(name string) ([]byte, error) {
	return files.ReadPrivate(filepath.Join(d.dir, name), maxFile)
}
