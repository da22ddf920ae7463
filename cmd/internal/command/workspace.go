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

// storeName is the default name of the directory of an embedded store.
const storeName = ".converge"

// A missing says what a command does when there is no embedded store yet.
type missing int

const (
	refuse  missing = iota // it has nothing to show
	create                 // it creates one
	pretend                // it uses an empty one that it discards: nothing was applied yet
	look                   // so does this, and the site may have no name either
)

// folder returns where the search for the files of a command begins: the folder of its first document, or the current one.
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

// configPath returns where the configuration is; empty when there is none.
func (a *app) configPath(documents []string) (string, error) {
	if a.flags.config != "" {
		return a.flags.config, nil
	}
	return upwards(documents, config.Name)
}

// storeDir returns the directory of the embedded store. It belongs to the workspace, wherever a command is run: it is
// beside converge.yaml or, without one, where a store already exists, or beside the document.
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

// absent opens what is used in place of a store that does not exist.
func (a *app) absent(dir string, m missing) (state.KV, error) {
	if m == pretend || m == look {
		return mem.New(mem.Options{}), nil
	}
	return nil, &view.Problem{
		What: "there is no store in " + dir,
		Fix: "If there was one, put it back, or restore a backup. If it is in another directory, use -chdir or -data-dir. " +
			a.firstDocument() + " The first converge apply or put creates the store.",
	}
}

// firstDocument returns how to begin a site, worded for a command that takes documents or one that does not.
func (a *app) firstDocument() string {
	if a.documents {
		return "Specify a document: converge plan site.cue. Or write one to the store: converge put site.cue."
	}
	return "Start a site with its document: converge plan site.cue, then converge apply site.cue."
}

// embedded opens the embedded store of a workspace, or what is used in its place.
func (a *app) embedded(ctx context.Context, o etcd.Options, m missing) (state.KV, error) {
	if m != create && !etcd.Exists(o.Dir) {
		return a.absent(o.Dir, m)
	}
	return etcd.Open(ctx, o)
}
