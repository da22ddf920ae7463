package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"converge.dev/converge/internal/files"
)

func (a *app) manCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "man DIR",
		Short: "Write the manual pages",
		Long: `Write the manual pages to DIR, which is created if needed: converge.1, and one for each
command. They contain the text of -help. Pages of an earlier version are replaced.`,
		Example: "  converge man /usr/local/share/man/man1\n  converge man man && man man/converge-plan.1",
		Args:    exactly(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := os.MkdirAll(args[0], 0o755); err != nil {
			return err
		}
		wrote := []string{}
		var write func(c *cobra.Command) error
		write = func(c *cobra.Command) error {
			path := filepath.Join(args[0], manName(c)+".1")
			if err := files.Replace(path, []byte(manPage(c, a.sys.Version)), 0o644); err != nil {
				return err
			}
			wrote = append(wrote, path)
			for _, child := range c.Commands() {
				if child.IsAvailableCommand() {
					if err := write(child); err != nil {
						return err
					}
				}
			}
			return nil
		}
		if err := write(c.Root()); err != nil {
			return err
		}
		return a.did(false, map[string]any{"wrote": wrote}, fmt.Sprintf("Wrote %d pages to %s\n", len(wrote), args[0]))
	}
	return c
}

func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage returns the manual page of a command in roff.
func manPage(c *cobra.Command, version string) string {
	var b strings.Builder
	put := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	item := func(name, text string) { put(".TP\n\\fB%s\\fR\n%s", roff(name), roff(text)) }
	flags := func(title string, set *pflag.FlagSet) {
		for i, f := range flagRows(set) {
			if i == 0 {
				put(".SH %s", title)
			}
			item(f[0], f[1])
		}
	}
	put(`.TH %s 1 "" "converge %s" "converge"`, roff(strings.ToUpper(manName(c))), roff(version))
	put(".SH NAME\n%s \\- %s", roff(manName(c)), roff(c.Short))
	put(".SH SYNOPSIS\n\\fB%s\\fR", roff(usageLine(c)))
	long := c.Long
	if long == "" {
		long = c.Short + "."
	}
	for i, paragraph := range strings.Split(strings.TrimSpace(long), "\n\n") {
		put("%s\n%s", map[bool]string{true: ".SH DESCRIPTION", false: ".PP"}[i == 0], roff(paragraph))
	}
	var children []string
	for _, child := range c.Commands() {
		if child.IsAvailableCommand() {
			if len(children) == 0 {
				put(".SH COMMANDS")
			}
			children = append(children, manName(child))
			item(child.Name(), child.Short)
		}
	}
	if c.HasParent() {
		flags("FLAGS", c.NonInheritedFlags())
	} else {
		flags("SHARED FLAGS", c.PersistentFlags())
		put(".SH EXIT STATUS")
		for _, s := range statuses {
			item(strconv.Itoa(s.code), s.means)
		}
	}
	if c.Example != "" {
		put(".SH EXAMPLES\n.nf\n%s\n.fi", roff(strings.TrimRight(c.Example, "\n")))
	}
	also := children
	if c.HasParent() {
		also = append([]string{manName(c.Parent())}, also...)
	}
	for i, name := range also {
		also[i] = "\\fB" + roff(name) + "\\fR(1)"
	}
	put(".SH SEE ALSO\n%s", strings.Join(also, ",\n"))
	return b.String()
}

// roff escapes text so that roff prints it as it is.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, "…", `...`, "·", `\(pc`, "→", `\(->`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") { // which would be a roff request
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
