package command

import (
	"bufio"
	"context"
	"io"
	"strings"

	"golang.org/x/term"

	"converge.dev/converge/cmd/internal/view"
)

// mayAsk refuses to go on when an answer is needed that nobody can give, and says what to do instead.
func (a *app) mayAsk(approved bool, fix string) error {
	switch {
	case approved:
		return nil
	case a.flags.json:
		return &view.Problem{What: "approval is required, and -json disables prompts", Fix: fix}
	case !a.flags.input:
		return &view.Problem{What: "approval is required, and -input=false disables prompts", Fix: fix}
	case !term.IsTerminal(int(a.sys.Stdin.Fd())):
		return &view.Problem{What: "approval is required, and standard input is not a terminal", Fix: fix}
	}
	return nil
}

// ask asks on the terminal. Any answer but yes returns the error cancelled.
func (a *app) ask(ctx context.Context, question, cancelled string) error {
	st := a.style(a.sys.Stdout)
	a.print("\n" + st.Strong(question) + "\n  Only 'yes' will be accepted to approve.\n\n  Enter a value: ")
	answers := make(chan string, 1) // a read from a terminal cannot be stopped
	go func() {
		line, err := bufio.NewReader(a.sys.Stdin).ReadString('\n')
		if err != nil && err != io.EOF {
			line = ""
		}
		answers <- strings.TrimSpace(line)
	}()
	select {
	case answer := <-answers:
		a.print("\n")
		if answer != "yes" {
			return &view.Problem{What: cancelled, Fix: "Nothing was changed."}
		}
		return nil
	case <-ctx.Done():
		a.print("\n")
		return context.Cause(ctx)
	}
}
