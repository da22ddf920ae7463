package fake

import (
	"bytes"
	"cmp"
	jsonv1 "encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/schema"
)

// content is a world in the form of its file.
type content struct {
	Serial int64                                   `json:"serial,omitempty"` // of the last version assigned
	Faults []Fault                                 `json:"faults,omitempty"`
	Late   []late                                  `json:"late,omitempty"`
	Burned map[string]map[string][]string          `json:"burned,omitempty"` // ids by scope and kind
	Epochs map[string]int64                        `json:"epochs,omitempty"` // of the last holder, by scope
	Things map[string]map[string]map[string]*thing `json:"things"`           // by scope, kind and id
}

// maxFile limits the file of a world and its journal; a world of 200 000 things takes a tenth of it.
const maxFile = 1 << 30

// A record of the journal is one change of the world. It holds the resulting state and not the action, so reading it
// twice is harmless.
type record struct {
	Serial int64    `json:"serial,omitempty"`
	At     *names   `json:"at,omitempty"` // the thing that changed
	Thing  *thing   `json:"thing,omitempty"`
	Burned bool     `json:"burned,omitempty"`
	Faults *[]Fault `json:"faults,omitempty"`
	Late   *[]late  `json:"late,omitempty"`
	Scope  string   `json:"scope,omitempty"` // scope of the epoch
	Epoch  int64    `json:"epoch,omitempty"`
}

type names struct {
	Scope string `json:"scope"`
	Kind  string `json:"kind"`
	ID    string `json:"id"`
}

func (t target) names() *names { return &names{t.Scope, t.Kind, t.id} }

// A file is how a world is stored: a file for people, and a journal of what is not in it yet. The journal is also
// the lock.
type file struct {
	path    string
	journal *os.File
	size    int64 // of the complete records in the journal; what follows is torn and ignored
	records int   // how many there are
}

// Open opens the world in a file; a missing file is an empty world. It fails when another process has it open, and when
// the file contains what the kinds do not know.
func Open(path string, kinds schema.Kinds) (*World, error) {
	journal, err := files.Lock(path + ".journal")
	if err != nil {
		return nil, fmt.Errorf("open world %s: %w", path, err)
	}
	w := New(kinds)
	if err := w.load(path, journal); err != nil {
		err = fmt.Errorf("open world %s: %w", path, err)
		if at, serr := journal.Stat(); serr == nil && at.Size() == 0 {
			err = errors.Join(err, os.Remove(journal.Name()))
		}
		return nil, errors.Join(err, journal.Close())
	}
	return w, nil
}

// Parse creates a world in memory from the text of a world's file.
func Parse(text []byte, kinds schema.Kinds) (*World, error) {
	w := New(kinds)
	var c content
	err := decode(bytes.NewReader(text), &c)
	if err == nil {
		err = w.fill(c)
	}
	if err != nil {
		return nil, fmt.Errorf("read world: %w", err)
	}
	return w, nil
}

// load reads the file, then applies the journal.
func (w *World) load(path string, journal *os.File) error {
	c, err := readFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := w.fill(c); err != nil {
		return err
	}
	log, err := io.ReadAll(io.LimitReader(journal, maxFile+1))
	if err == nil && len(log) > maxFile {
		err = &files.TooLargeError{Path: journal.Name(), Limit: maxFile}
	}
	if err != nil {
		return err
	}
	w.file = &file{path: path, journal: journal}
	for line := range bytes.Lines(log) {
		// Only the last record can be torn. Its call never returned, so it was never acknowledged; the next record replaces it.
		if line[len(line)-1] != '\n' {
			break
		}
		var r record
		if err := decode(bytes.NewReader(line), &r); err != nil {
			return fmt.Errorf("record %d of %s.journal: %w", w.file.records+1, path, err)
		}
		if err := w.checkRecord(r); err != nil {
			return fmt.Errorf("record %d of %s.journal: %w", w.file.records+1, path, err)
		}
		w.replay(r)
		w.file.size += int64(len(line))
		w.file.records++
	}
	return nil
}

// readFile reads a world's file, without holding its text.
func readFile(path string) (c content, err error) {
	f, err := files.Open(path)
	if err != nil {
		return c, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() > maxFile {
		err = &files.TooLargeError{Path: path, Limit: maxFile}
	}
	if err == nil {
		err = decode(f, &c)
	}
	return c, err
}

// decode reads one JSON value with known fields only; its error names the line and the place.
func decode(r io.ReadSeeker, v any) error {
	objects := schema.NewObjectReader()
	err := json.UnmarshalRead(r, v, json.RejectUnknownMembers(true), json.WithUnmarshalers(
		json.UnmarshalFromFunc(func(d *jsontext.Decoder, o *schema.Object) (err error) {
			*o, err = objects.Read(d)
			return err
		})))
	var syntax *jsontext.SyntacticError
	var wrong *json.SemanticError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("line %d: %w", line(r, syntax.ByteOffset), syntax.Err)
	case errors.As(err, &wrong):
		if wrong.Err == nil {
			wrong.Err = errors.New("wrong type of value")
		}
		return fmt.Errorf("line %d: %s: %w", line(r, wrong.ByteOffset), wrong.JSONPointer, wrong.Err)
	}
	return err
}

// line returns the number of the line at an offset, or that of the last one that can be read.
func line(r io.ReadSeeker, offset int64) int {
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return 1
	}
	before, _ := io.ReadAll(io.LimitReader(r, offset))
	return 1 + bytes.Count(before, []byte("\n"))
}

// fill takes over the contents of the file, after checking them.
func (w *World) fill(c content) error {
	for i := range c.Faults {
		if err := c.Faults[i].check(); err != nil {
			return err
		}
	}
	for _, l := range c.Late {
		if err := w.checkLate(l); err != nil {
			return err
		}
	}
	w.serial, w.faults, w.late = c.Serial, c.Faults, c.Late
	maps.Copy(w.epochs, c.Epochs)
	for scope, kinds := range c.Burned {
		for kind, ids := range kinds {
			for _, id := range ids {
				w.burned[target{schema.Place{Scope: scope, Kind: kind}, id}] = true
			}
		}
	}
	for scope, kinds := range c.Things {
		for kind, things := range kinds {
			w.things[schema.Place{Scope: scope, Kind: kind}] = things
			for id, th := range things {
				at := target{schema.Place{Scope: scope, Kind: kind}, id}
				if th == nil {
					return fmt.Errorf("%s: the object is null", at)
				}
				if err := w.checkThing(at, th); err != nil {
					return err
				}
				if th.Version == "" {
					th.Version = "0"
				}
				w.note(at, th)
			}
		}
	}
	return nil
}

// content returns the world in the form of its file.
func (w *World) content() content {
	c := content{Serial: w.serial, Faults: w.faults, Late: w.late, Epochs: maps.Clone(w.epochs), Things: map[string]map[string]map[string]*thing{}}
	for at, things := range w.things {
		if len(things) == 0 {
			continue
		}
		if c.Things[at.Scope] == nil {
			c.Things[at.Scope] = map[string]map[string]*thing{}
		}
		byID := make(map[string]*thing, len(things))
		for id, th := range things {
			byID[id] = th
		}
		c.Things[at.Scope][at.Kind] = byID
	}
	for at := range w.burned {
		if c.Burned == nil {
			c.Burned = map[string]map[string][]string{}
		}
		if c.Burned[at.Scope] == nil {
			c.Burned[at.Scope] = map[string][]string{}
		}
		c.Burned[at.Scope][at.Kind] = append(c.Burned[at.Scope][at.Kind], at.id)
	}
	for _, kinds := range c.Burned {
		for _, ids := range kinds {
			slices.Sort(ids)
		}
	}
	return c
}

// commit makes a change: first in the journal, then in memory. When it fails, nothing has changed.
func (w *World) commit(r record) error {
	if w.closed {
		return errClosed
	}
	if w.file != nil {
		if err := w.file.append(r); err != nil {
			return err
		}
	}
	w.replay(r)
	w.await()
	// A long journal is merged, so that the next open does not read the same things over and over.
	if w.file != nil && w.file.records > 100_000 {
		return w.save()
	}
	return nil
}

// checkRecord returns what is wrong with a record that a person may have written, and completes it, as fill does with the
// file.
func (w *World) checkRecord(r record) error {
	if r.At != nil {
		at := target{schema.Place{Scope: r.At.Scope, Kind: r.At.Kind}, r.At.ID}
		if r.Thing != nil {
			if err := w.checkThing(at, r.Thing); err != nil {
				return err
			}
		} else if err := w.checkPlace(at.Place); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	if r.Faults != nil {
		for i := range *r.Faults {
			if err := (*r.Faults)[i].check(); err != nil {
				return err
			}
		}
	}
	if r.Late != nil {
		for _, l := range *r.Late {
			if err := w.checkLate(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// replay applies a record to the world.
func (w *World) replay(r record) {
	w.serial = max(w.serial, r.Serial)
	if r.At != nil {
		at := target{schema.Place{Scope: r.At.Scope, Kind: r.At.Kind}, r.At.ID}
		was := w.things[at.Place][at.id]
		w.set(at, r.Thing)
		w.shows(at)
		delete(w.lags, at)
		if named := cmp.Or(r.Thing, was); named != nil {
			if looks := w.stale(at, named.Name); looks != 0 {
				w.lags[at] = &lag{was, looks}
			}
		}
		if r.Burned {
			w.burned[at] = true
		}
	}
	if r.Faults != nil {
		w.faults = *r.Faults
	}
	if r.Late != nil {
		w.late = *r.Late
	}
	if r.Scope != "" {
		w.epochs[r.Scope] = r.Epoch
	}
}

func (f *file) append(r record) error {
	line, err := jsonv1.Marshal(r)
	if err != nil {
		return err
	}
	n, err := f.journal.WriteAt(append(line, '\n'), f.size)
	if err != nil {
		return err
	}
	f.size += int64(n)
	f.records++
	return nil
}

// save writes the file anew and empties the journal. A crash in between leaves records that the file already contains.
func (w *World) save() error {
	f := w.file
	if err := files.Replace(f.path, encode(w.content()), 0o600); err != nil {
		return err
	}
	if err := f.journal.Truncate(0); err != nil {
		return err
	}
	f.size, f.records = 0, 0
	return nil
}

// Close writes the world to its file, when it has one and anything changed, and lets others open it. Later calls fail.
// Closing twice is harmless.
func (w *World) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	for changes := range w.watches {
		changes.End(errClosed)
	}
	if w.alarm != nil {
		w.alarm.Stop()
	}
	if w.server != nil { // while the journal is locked: from then on the socket may be that of another process
		w.server.stop()
	}
	if w.file == nil {
		return nil
	}
	if w.file.records > 0 {
		if err := w.save(); err != nil {
			return errors.Join(fmt.Errorf("close world %s: %w", w.file.path, err), w.file.journal.Close())
		}
	}
	// Removed while the lock is held: from here on a new journal begins.
	if err := errors.Join(os.Remove(w.file.journal.Name()), w.file.journal.Close()); err != nil {
		return fmt.Errorf("close world %s: %w", w.file.path, err)
	}
	return nil
}
