package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpCommand returns the command converge help COMMAND.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND...]", Short: "Explain a command", Long: "Explain a command: what it does, its flags, and examples.",
		Example: "  converge help plan\n  converge help state mv",
		RunE: func(_ *cobra.Command, args []string) error {
			c := root
			for i, name := range args {
				child := c
				for _, one := range c.Commands() {
					if one.Name() == name {
						child = one
					}
				}
				if child == c {
					return subcommand(c, args[i:])
				}
				c = child
			}
			return c.Help()
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			c, _, err := root.Find(args)
			if err == nil {
				for _, child := range c.Commands() {
					if child.IsAvailableCommand() {
						names = append(names, child.Name()+"\t"+child.Short)
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// helpText returns the help of a command, with flags as -flag.
func helpText(c *cobra.Command) string {
	var b strings.Builder
	long := c.Long
	if long == "" {
		long = c.Short
	}
	fmt.Fprintf(&b, "Usage: %s\n\n%s\n", usageLine(c), strings.TrimSpace(long))
	listCommands(&b, c)
	if c.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", strings.TrimRight(c.Example, "\n"))
	}
	listFlags(&b, "Flags:", c.NonInheritedFlags(), !c.HasParent())
	if !c.HasParent() {
		listFlags(&b, "Shared flags:", c.PersistentFlags(), false)
		var rows []string
		for row := range slices.Chunk(briefly(), 4) {
			rows = append(rows, strings.Join(row, " · "))
		}
		b.WriteString("\nExit statuses: " + strings.Join(rows, " ·\n") + "\n")
	} else if c.IsAvailableCommand() {
		b.WriteString("\nShared flags such as -json, -site and -config: converge -help\n")
	}
	return b.String()
}

func usageLine(c *cobra.Command) string {
	if c.HasAvailableSubCommands() && !c.HasParent() {
		return "converge COMMAND [flags] [arguments]"
	}
	line := strings.TrimSuffix(c.UseLine(), " [flags]")
	name, args, _ := strings.Cut(line[len(c.CommandPath()):], " ")
	line = c.CommandPath() + name + " [flags]"
	if args != "" {
		line += " " + args
	}
	if c.HasAvailableSubCommands() {
		line = c.CommandPath() + " COMMAND [flags]"
	}
	return line
}

func listCommands(b *strings.Builder, c *cobra.Command) {
	line := func(child *cobra.Command) { fmt.Fprintf(b, "  %-14s %s\n", child.Name(), child.Short) }
	for _, g := range c.Groups() {
		fmt.Fprintf(b, "\n%s\n", g.Title)
		for _, child := range c.Commands() {
			if child.GroupID == g.ID && child.IsAvailableCommand() {
				line(child)
			}
		}
	}
	if len(c.Groups()) > 0 || !c.HasAvailableSubCommands() {
		return
	}
	b.WriteString("\nCommands:\n")
	for _, child := range c.Commands() {
		if child.IsAvailableCommand() {
			line(child)
		}
	}
}

func listFlags(b *strings.Builder, title string, set *pflag.FlagSet, skip bool) {
	rows := flagRows(set)
	if skip || len(rows) == 0 {
		return
	}
	width := 0
	for _, r := range rows {
		width = max(width, len(r[0]))
	}
	fmt.Fprintf(b, "\n%s\n", title)
	for _, r := range rows {
		fmt.Fprintf(b, "  %-*s  %s\n", width, r[0], r[1])
	}
}

// flagRows returns each flag as it is typed, and what it does.
func flagRows(set *pflag.FlagSet) (rows [][2]string) {
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "-" + f.Name
		if value != "" && f.Value.Type() != "bool" {
			name += "=" + strings.ToUpper(value)
		}
		rows = append(rows, [2]string{name, usage})
	})
	return rows
}
