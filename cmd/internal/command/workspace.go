package command

import (
	"context"
	"os"
	"path/filepath"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
	"converge.dev/converge/state/mem"
)

// storeName is what the directory of an embedded store is called where none is named.
const storeName = ".converge"

// A missing says what becomes of a command when there is no embedded store yet.
type missing int

const (
	refuse  missing = iota // it has nothing to show
	create                 // it writes one
	pretend                // it goes on with an empty one that it forgets: nothing was applied yet
)

// folder is where the search for what belongs to a command begins: that of its first document, or the current one.
func folder(documents []string) string {
	if len(documents) == 0 || documents[0] == "-" {
		return "."
	}
	if info, err := os.Stat(documents[0]); err == nil && info.IsDir() {
		return documents[0]
	}
	return filepath.Dir(documents[0])
}

// upwards finds a file of the workspace: in the folder of the document or above it, else in the current folder or above.
func upwards(documents []string, name string) (string, error) {
	dir := folder(documents)
	path, err := config.Upwards(dir, name)
	if err == nil && path == "" && dir != "." {
		path, err = config.Upwards(".", name)
	}
	return path, err
}

// configPath is where the configuration is; empty when there is none.
func (a *app) configPath(documents []string) (string, error) {
	if a.flags.config != "" {
		return a.flags.config, nil
	}
	return upwards(documents, config.Name)
}

// storeDir is the directory of the embedded store. It belongs to the workspace, from wherever a command is given: it stands
// beside converge.yaml, or, without one, where one stands already, or beside the document.
func (a *app) storeDir(documents []string) (string, error) {
	if a.flags.dataDir != "" {
		return a.flags.dataDir, nil
	}
	path, err := a.configPath(documents)
	if err != nil {
		return "", err
	}
	if path != "" {
		return filepath.Join(filepath.Dir(path), storeName), nil
	}
	if path, err = upwards(documents, storeName); err != nil || path != "" {
		return path, err
	}
	return filepath.Join(folder(documents), storeName), nil
}

// absent opens what stands for a store that does not exist.
func (a *app) absent(dir string, m missing) (state.KV, error) {
	if m == pretend {
		return mem.New(mem.Options{}), nil
	}
	return nil, &view.Problem{
		What: "there is no store in " + dir,
		Fix: "If there was one, put it back, or restore a backup. If it is in another folder, say where with -chdir or -data-dir. " +
			a.firstDocument() + " The first converge apply or put makes the store.",
	}
}

// firstDocument says how a site begins, in the words of a command that takes a document or takes none.
func (a *app) firstDocument() string {
	if a.documents {
		return "Name a document: converge plan site.cue. Or write one to the store: converge put site.cue."
	}
	return "A site begins with its document: converge plan site.cue, then converge apply site.cue."
}

// embedded opens the embedded store of a workspace, or what stands for it.
func (a *app) embedded(ctx context.Context, o etcd.Options, m missing) (state.KV, error) {
	if m != create && !etcd.Exists(o.Dir) {
		return a.absent(o.Dir, m)
	}
	return etcd.Open(ctx, o)
}
