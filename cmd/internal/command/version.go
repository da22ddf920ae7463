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
		text := "converge " + a.sys.Version
		if commit != "" {
			text += " (" + commit + ")"
		}
		a.print(fmt.Sprintf("%s\non %s, %s\ndocuments %s, plans %d\n", text, platform, runtime.Version(), schema.APIVersion, plan.Format))
		return nil
	}
	return c
}

// revisionOfBuild gives the commit that the program was built from, where the build knows it.
func revisionOfBuild() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(12, len(s.Value))]
		}
	}
	return ""
}
