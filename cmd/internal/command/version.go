package command

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
)

func (a *app) versionCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "version", Short: "Show the version", Long: "Show the version of converge and of the formats that it reads and writes.",
		Example: "  converge version -json", Args: exactly(0),
	}
	c.RunE = func(*cobra.Command, []string) error {
		platform := runtime.GOOS + "_" + runtime.GOARCH
		commit := revisionOfBuild()
		if a.flags.json {
			return a.printJSON(map[string]any{
				"converge_version": a.sys.Version, "commit": commit, "platform": platform, "go": runtime.Version(),
				"api_version": schema.APIVersion, "plan_format": plan.Format,
			})
		}
		a.print(fmt.Sprintf("converge %s\non %s, %s\ndocuments %s, plans %d\n", versionText(a.sys.Version), platform, runtime.Version(), schema.APIVersion, plan.Format))
		return nil
	}
	return c
}

// versionText returns the version, with the commit where that is known.
func versionText(version string) string {
	if commit := revisionOfBuild(); commit != "" {
		return version + " (" + commit + ")"
	}
	return version
}

// revisionOfBuild returns the commit that the program was built from, where the build recorded it.
func revisionOfBuild() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return commitOf(info.Settings)
}

func commitOf(settings []debug.BuildSetting) string {
	commit, changed := "", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "-dirty"
		}
	}
	if commit == "" {
		return ""
	}
	return commit + changed
}
