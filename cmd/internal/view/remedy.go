package view

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/state"
)

// command returns an action as it is typed: a command, or a flag of the current one.
func command(a remedy.Action) string {
	switch a.Verb {
	case remedy.ShowRun:
		return "converge show -run=" + a.Of
	case remedy.Release:
		return "converge hold release " + a.Of
	case remedy.Unfreeze:
		return "converge freeze -off"
	case remedy.Forget:
		return "converge state rm " + a.Of
	case remedy.Rename:
		return "converge state mv " + a.Of + " " + a.To
	case remedy.Rebuild, remedy.Restored:
		return "converge state " + string(a.Verb)
	case remedy.Abandon, remedy.AllowPartial, remedy.AllowMissing:
		return "-" + string(a.Verb)
	case remedy.AllowDestroy:
		return "-max-destroy=" + a.Of
	}
	return strings.TrimSpace("converge " + string(a.Verb) + " " + a.Of)
}

// Advice returns what can be done about a refusal or an error, as a clause.
func Advice(remedies []remedy.Remedy) string {
	var ways []string
	for _, r := range remedies {
		var commands []string
		for _, a := range r.Do {
			commands = append(commands, command(a))
		}
		way := r.Text
		if len(commands) > 0 {
			way += " (" + strings.Join(commands, ", ") + ")"
		}
		ways = append(ways, way)
	}
	return strings.Join(ways, ", or ")
}

// fix returns the same as sentences.
func fix(remedies []remedy.Remedy) string {
	if len(remedies) == 1 && len(remedies[0].Do) == 1 {
		return upper(remedies[0].Text) + ": " + command(remedies[0].Do[0])
	}
	if text := Advice(remedies); text != "" {
		return upper(text) + "."
	}
	return ""
}

// Held returns why nothing new may be applied, and how that ends. For any other error it returns the text.
func Held(err error) string {
	var e *engine.HeldError
	if !errors.As(err, &e) {
		return err.Error()
	}
	settle := func(run string) string {
		text := "resume it with: " + command(remedy.Of(remedy.Resume, run))
		if slices.Contains(e.Undoable, run) {
			text += ", or roll it back with: " + command(remedy.Of(remedy.Rollback, run))
		}
		return text
	}
	if e.Open != "" {
		return e.Error() + "; " + settle(e.Open)
	}
	lines := make([]string, len(e.Holds))
	for i, h := range e.Holds {
		lines[i] = h.Text()
		switch {
		case h.Older:
			lines[i] += "; confirm this first with: " + command(remedy.Action{Verb: remedy.Restored})
		case h.Scope == state.FrozenScope:
			lines[i] += "; unfreeze it with: " + command(remedy.Action{Verb: remedy.Unfreeze})
		case h.OnRevision():
			lines[i] += "; put a new revision, also the one before it, or release the hold to try it again: " + command(remedy.Of(remedy.Release, h.Scope))
		case h.Run == "":
			lines[i] += "; once that is fixed: " + command(remedy.Of(remedy.Release, h.Scope))
		default:
			lines[i] += fmt.Sprintf(" (run %s: %s)", h.Run, settle(h.Run))
		}
	}
	return strings.Join(lines, "\n")
}

// goOn returns what can be done where a part of the site could not be observed, or is not supported.
func goOn(unknown []plan.Unknown) string {
	rest := "continue with the rest using " + command(remedy.Action{Verb: remedy.AllowPartial}) + "."
	if len(unknown) == 0 {
		return "The rest is not applied by default: remove what the server does not support from the document, or " + rest
	}
	text := "Nothing is planned for what could not be observed; fix the connection, or " + rest
	if slices.ContainsFunc(unknown, func(u plan.Unknown) bool { return u.OtherServer }) {
		text += " If that server is the right one from now on: " + command(remedy.Action{Verb: remedy.AllowMissing}) + "."
	}
	return text
}
