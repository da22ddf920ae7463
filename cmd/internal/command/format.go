package command

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema/load"
)

// format returns the value of a -format flag, the first of formats when it is not set; -json stands for json, and contradicts
// any other.
func (a *app) format(value string, formats ...string) (string, error) {
	switch {
	case a.flags.json && value != "" && value != "json":
		return "", &view.Problem{What: "-json and -format=" + value + " cannot be used together", Fix: "Use only one of them."}
	case value == "" && a.flags.json && slices.Contains(formats, "json"):
		return "json", nil
	case value == "":
		return formats[0], nil
	case slices.Contains(formats, value):
		return value, nil
	}
	return "", &view.Problem{
		What: fmt.Sprintf("invalid -format %q", value),
		Fix:  "Use one of " + strings.Join(formats, ", ") + "." + nearest.DidYouMean(value, formats),
	}
}

func (a *app) fmtCommand() *cobra.Command {
	var check, show bool
	c := &cobra.Command{
		Use:   "fmt [FILE...]",
		Short: "Format documents in the canonical layout",
		Long: `Rewrite CUE and JSON files in the canonical layout, and list those that changed. A
directory stands for the CUE files in it, - for standard input, no argument for the
current directory.

With -check nothing is written; the status is 2 when a file is not in this layout.`,
		Example: `  converge fmt
  converge fmt -check -diff site.cue`,
		ValidArgsFunction: completeDocuments,
	}
	c.Flags().BoolVar(&check, "check", false, "write nothing; exit with 2 when a file would change")
	c.Flags().BoolVar(&show, "diff", false, "show the changes")
	c.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			args = []string{"."}
		}
		files, err := formatFiles(args)
		if err != nil {
			return err
		}
		var errs []error
		changed := []string{}
		for _, file := range files {
			diff, err := a.formatFile(file, check, show)
			errs = append(errs, err)
			if diff {
				changed = append(changed, file)
				a.acted = a.acted || !check && file != load.Stdin
			}
		}
		if err := errors.Join(errs...); err != nil {
			return &view.Problem{What: "some files could not be read", Where: err.Error(), Err: err}
		}
		if a.flags.json {
			if err := a.printJSON(map[string]any{"changed": changed}); err != nil {
				return err
			}
		}
		if check && len(changed) > 0 {
			return outcome(exitDifferent)
		}
		return nil
	}
	return c
}

// formatFiles replaces directories by the CUE files of the documents in them.
func formatFiles(paths []string) ([]string, error) {
	var named []string
	for _, p := range paths {
		if info, err := os.Stat(p); err != nil || !info.IsDir() {
			named = append(named, p)
			continue
		}
		found, err := load.FolderCUE(p)
		if err != nil {
			return nil, err
		}
		named = append(named, found...)
	}
	return named, nil
}

// formatFile brings one file into its canonical layout and reports whether it was not yet in it.
func (a *app) formatFile(path string, check, show bool) (changed bool, err error) {
	sources, err := load.ReadSources([]string{path}, a.sys.Stdin)
	if err != nil {
		return false, err
	}
	src := sources[0]
	text, err := load.Format(src)
	if err != nil {
		return false, err
	}
	changed = !bytes.Equal(text, src.Data)
	if !a.flags.json {
		a.showFormatted(path, src, text, check, show)
	}
	if changed && !check && path != load.Stdin {
		return true, rewrite(path, text)
	}
	return changed, nil
}

func (a *app) showFormatted(path string, src load.Source, text []byte, check, show bool) {
	changed := !bytes.Equal(text, src.Data)
	switch {
	case path == load.Stdin && !check && !show:
		_, _ = a.out.Write(text)
	case changed && show:
		_, _ = a.out.Write(diff.Diff("a/"+src.Name, src.Data, "b/"+src.Name, text))
	case changed:
		_, _ = io.WriteString(a.out, src.Name+"\n")
	}
}

// rewrite replaces a file, keeping its mode. For a link it replaces the link's target.
func rewrite(path string, text []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return files.Replace(path, text, info.Mode().Perm())
}
