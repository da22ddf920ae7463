package command

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/cmd/internal/config"
)

// headline reports, before anything is observed, what a command is about.
func (s *session) headline(document string) {
	s.view.Note(fmt.Sprintf("Site %s · %s · store %s", s.site, document, s.place))
}

// named returns how the headline names the document of a command.
func named(paths []string) string {
	if len(paths) == 1 && paths[0] == "-" {
		return "document from standard input"
	}
	return "document " + strings.Join(paths, " ")
}

// inStore returns how the headline names a revision of the document.
func inStore(serial int64) string { return fmt.Sprintf("document in the store, serial %d", serial) }

// warnNewer warns when the document in the store is used and a file of the workspace was edited since it was stored: that file
// may be the intended one.
func (s *session) warnNewer(ctx context.Context) error {
	head, err := s.store.Head(ctx)
	if err != nil {
		return err
	}
	dir := "."
	if s.conf.Path != "" {
		dir = s.conf.Dir()
	}
	if name := newestDocument(dir, head.At); name != "" {
		s.view.Warn(fmt.Sprintf("%s is newer than serial %d in the store, which is used because no document was given", filepath.Join(dir, name), head.Serial))
	}
	return nil
}

// newestDocument returns the most recently written document of a folder, if that was after a time.
func newestDocument(dir string, after time.Time) string {
	type file struct {
		name string
		at   time.Time
	}
	var newer []file
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "" // there is nothing to warn of
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.ModTime().After(after) && isDocument(filepath.Join(dir, e.Name())) {
			newer = append(newer, file{e.Name(), info.ModTime()})
		}
	}
	if len(newer) == 0 {
		return ""
	}
	return slices.MaxFunc(newer, func(a, b file) int { return cmp.Or(a.at.Compare(b.at), strings.Compare(b.name, a.name)) }).name
}

// isDocument reports whether a file looks like a document, by its name and its beginning.
func isDocument(path string) bool {
	name := filepath.Base(path)
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == config.Name ||
		!slices.Contains([]string{".cue", ".json", ".yaml", ".yml"}, filepath.Ext(name)) {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 4<<10))
	return err == nil && bytes.Contains(head, []byte("apiVersion")) && bytes.Contains(head, []byte("converge.dev/"))
}
