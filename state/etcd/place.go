package etcd

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// An AwayError reports that the files of a store are no longer where they were when it was opened: they were removed or
// moved, or something else was mounted over them. What is written to them then is lost.
type AwayError struct {
	Dir  string // of the store
	Path string // what is missing, or is another file
}

// Error implements error.
func (e *AwayError) Error() string {
	return e.Path + " is no longer what was opened: it was removed, moved or mounted over"
}

// places are the files of a store as they were found. They are kept open, so that no other file can have their inode numbers.
type places struct {
	dir *os.File // the directory

	mu      sync.Mutex
	files   []*os.File // of the data, named by their paths; none before etcd has answered from the data
	segment *os.File   // the newest of the write-ahead log
	changed time.Time  // when the folder of the log had last changed, as it was read
}

// data returns the path of a file in the folder of etcd.
func (p *places) data(name string) string {
	return filepath.Join(p.dir.Name(), dataName, "member", name)
}

// remember opens the log of data from which etcd has answered, and the other named files.
func (p *places) remember(names ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget()
	for _, name := range append(names, walName) {
		path := p.data(name)
		f, err := os.OpenFile(path, unix.O_PATH, 0)
		if err != nil {
			return p.away(path)
		}
		p.files = append(p.files, f)
	}
	return p.grown()
}

// grown finds the newest segment of the log. Segments follow each other; none is ever the newest twice. The folder is read
// again when it has changed, or had changed so recently that its time may hide another change.
func (p *places) grown() error {
	info, err := os.Stat(p.data(walName))
	if err != nil {
		return p.away(p.data(walName))
	}
	if p.segment != nil && info.ModTime().Equal(p.changed) {
		return p.same(p.segment)
	}
	p.changed = time.Time{}
	if time.Since(info.ModTime()) > time.Second {
		p.changed = info.ModTime()
	}
	entries, err := os.ReadDir(p.data(walName))
	var newest string
	for _, e := range slices.Backward(entries) {
		if filepath.Ext(e.Name()) == ".wal" {
			newest = filepath.Join(p.data(walName), e.Name())
			break
		}
	}
	if p.segment != nil && newest <= p.segment.Name() {
		return p.same(p.segment)
	}
	if err != nil || newest == "" {
		return p.away(p.data(walName))
	}
	f, err := os.OpenFile(newest, unix.O_PATH, 0)
	if err != nil {
		return p.away(newest)
	}
	if p.segment != nil {
		_ = p.segment.Close()
	}
	p.segment = f
	return nil
}

func (p *places) away(path string) error { return &AwayError{p.dir.Name(), path} }

// same fails when a file is no longer at its path.
func (p *places) same(f *os.File) error {
	was, err := f.Stat()
	now, perr := os.Stat(f.Name())
	if err != nil || perr != nil || !os.SameFile(was, now) {
		return p.away(f.Name())
	}
	return nil
}

// kept verifies that the files are where they were found; it fails with an *AwayError that names one that is not. It
// takes a few system calls. Before they were found, it checks the directory alone.
func (p *places) kept() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range append([]*os.File{p.dir}, p.files...) {
		if err := p.same(f); err != nil {
			return err
		}
	}
	if p.segment == nil {
		return nil
	}
	if _, err := os.Stat(p.data(dbName)); err != nil {
		return p.away(p.data(dbName))
	}
	return p.grown()
}

// forget closes the files. The caller holds p.mu, or is alone.
func (p *places) forget() {
	for _, f := range append(p.files, p.segment) {
		if f != nil {
			_ = f.Close()
		}
	}
	p.files, p.segment, p.changed = nil, nil, time.Time{}
}
