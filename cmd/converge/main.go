// Converge brings a GPU-cloud site to what its document says. Run converge -help.
package main

import (
	"fmt"
	"os"
	"time"

	"converge.dev/converge/cmd/internal/command"
)

// version is set when a release is built.
var version = "0.1.0-dev"

// patience is as long as somebody waits who has pressed Tab.
var patience = time.Second

func main() {
	if err := crashByAbort(); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
	executable, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error: cannot locate the converge executable:", err)
		os.Exit(1)
	}
	os.Exit(command.Run(command.System{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Environ: os.Environ(), Executable: executable, Version: version, Exit: os.Exit, Patience: patience,
	}))
}
