package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// A place is where a thing of the world is.
type place struct {
	Scope string `json:"scope"`
	Kind  string `json:"kind"`
	ID    string `json:"id"`
}

func (p place) String() string { return p.Scope + "/" + p.Kind + "/" + p.ID }

// A change is one effect on the world: what was done, and where.
type change struct {
	op string
	at place
}

// A history is every effect that a world has had, in order, and its current contents. It is read from the journal that the
// fake world keeps of itself, which a killed process leaves behind intact.
type history struct {
	marks   map[place]string // of the things that are there
	changes []change
	wrong   []string
}

// beginHistory begins with the contents of a world's file.
func beginHistory(file string) (*history, error) {
	var world struct {
		Things map[string]map[string]map[string]struct {
			Mark string `json:"mark"`
		} `json:"things"`
	}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &world)
	}
	if err != nil {
		return nil, err
	}
	h := &history{marks: map[place]string{}}
	for scope, kinds := range world.Things {
		for kind, things := range kinds {
			for id, th := range things {
				h.marks[place{scope, kind, id}] = th.Mark
			}
		}
	}
	return h, nil
}

// clone copies a history, so that it may continue in two ways.
func (h *history) clone() *history {
	return &history{maps.Clone(h.marks), slices.Clone(h.changes), slices.Clone(h.wrong)}
}

// add takes over the journal of a world. An incomplete line was never reported.
func (h *history) add(journal []byte) error {
	for line := range bytes.Lines(journal) {
		if line[len(line)-1] != '\n' {
			break
		}
		var rec struct {
			At    *place `json:"at"`
			Thing *struct {
				Mark string `json:"mark"`
			} `json:"thing"`
		}
		if err := json.Unmarshal(line, &rec); err != nil {
			return fmt.Errorf("the journal of the world: %w", err)
		}
		if rec.At == nil {
			continue // a fault was counted, or an effect is late
		}
		at := *rec.At
		_, there := h.marks[at]
		switch {
		case rec.Thing == nil:
			h.changes = append(h.changes, change{"delete", at})
			delete(h.marks, at)
			continue
		case there:
			h.changes = append(h.changes, change{"update", at})
		default:
			h.changes = append(h.changes, change{"create", at})
		}
		h.marks[at] = rec.Thing.Mark
		h.alone(at)
	}
	return nil
}

// alone records an error when another thing bears the mark of the same resource. Incarnations of one resource differ in what
// follows the number sign.
func (h *history) alone(at place) {
	resource := func(mark string) string {
		before, _, _ := bytes.Cut([]byte(mark), []byte("#"))
		return string(before)
	}
	mine := resource(h.marks[at])
	for other, mark := range h.marks {
		if other != at && mine != "" && resource(mark) == mine {
			h.wrong = append(h.wrong, fmt.Sprintf("%s is there twice: %s and %s", mine, at, other))
		}
	}
}

// counts returns how often each change was made.
func (h *history) counts() map[change]int {
	n := map[change]int{}
	for _, c := range h.changes {
		n[c]++
	}
	return n
}

// journalOf returns the current journal of the world in a folder; nil when it has none.
func journalOf(dir string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(dir, "world.json.journal"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}
