package command

import (
	"github.com/spf13/cobra"

	"converge.dev/converge/schema/load"
)

// evalName is the command that evaluates documents, in a child process with limits.
const evalName = "eval"

func (a *app) evalCommand() *cobra.Command {
	return &cobra.Command{
		Use: evalName, Short: "Evaluate a document for the parent process", Hidden: true, Args: exactly(0),
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil }, // nothing is shared with the parent
		RunE: func(*cobra.Command, []string) error {
			return load.EvaluateMain(a.sys.Stdin, a.out)
		},
	}
}
