package load

import (
	"context"
	"fmt"
	"os"
	"testing"

	"converge.dev/converge/schema/kinds"
)

// TestMain lets the test binary be the processes that some tests start: "evaluate" is the child of [ChildEvaluator],
// "load FILE..." loads like the command line does and prints the diagnostics.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "evaluate":
			if err := EvaluateMain(os.Stdin, os.Stdout); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		case "load":
			os.Exit(loadMain(os.Args[2:]))
		case "complain":
			fmt.Fprintln(os.Stderr, "no such\ncommand")
			os.Exit(3)
		}
	}
	os.Exit(m.Run())
}

func loadMain(paths []string) int {
	s, err := kinds.New()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	sources, err := ReadSources(paths, os.Stdin)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	doc, ds := Document(context.Background(), s, Options{Evaluator: child(Limits{})}, sources...)
	for _, d := range ds {
		fmt.Println(d)
	}
	if doc == nil {
		return 1
	}
	fmt.Println(len(doc.Resources), "resources")
	return 0
}

// child evaluates in a child process that is this test binary.
func child(limits Limits) Evaluator {
	return ChildEvaluator([]string{os.Args[0], "evaluate"}, limits)
}
