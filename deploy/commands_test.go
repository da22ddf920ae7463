package deploy_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/shlex"
	"go.yaml.in/yaml/v3"
)

const page = "../docs/deploying.md"

// A use is a command line in one of the files.
type use struct {
	where string
	args  []string
}

// unitUses returns the commands of the units.
func unitUses(t *testing.T) (uses []use) {
	for unit := range units {
		exec := words(settings(t, unit)["ExecStart"])
		if len(exec) < 2 || exec[0] != "/usr/bin/converge" {
			t.Fatalf("%s starts %q", unit, exec)
		}
		uses = append(uses, use{unit, exec[1:]})
	}
	return uses
}

// pageUses returns the commands of the page, in its blocks and in its sentences.
func pageUses(t *testing.T) (uses []use) {
	fence := "" // of the block that the line is in
	for line := range strings.Lines(read(t, page)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			if fence == "" {
				fence = line
			} else {
				fence = ""
			}
			continue
		}
		var commands []string
		switch fence {
		case "```":
			commands = []string{line}
		case "":
			for _, m := range regexp.MustCompile("`(converge [^`]+)`").FindAllStringSubmatch(line, -1) {
				commands = append(commands, m[1])
			}
		}
		for _, command := range commands {
			split, err := shlex.Split(command) // which drops comments
			if err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			for i, word := range split {
				if word != "converge" || i > 0 && split[i-1] == "statefulset/converge" || slices.Contains([]string{"-n", "-g", "-o", "-u"}, before(split, i)) {
					continue
				}
				args := split[i+1:]
				if end := slices.IndexFunc(args, func(w string) bool { return slices.Contains([]string{"|", "<", ">", "&&", ";"}, w) }); end >= 0 {
					args = args[:end]
				}
				uses = append(uses, use{page + ": " + command, args})
				break
			}
		}
	}
	return uses
}

func before(split []string, i int) string {
	if i == 0 {
		return ""
	}
	return split[i-1]
}

// asked asks the program for the help of a command line, for which it has to understand all of it. It returns why it does not.
func asked(t *testing.T, environ []string, args []string) error {
	t.Helper()
	out, said, err := converge(t, t.TempDir(), environ, append(slices.Clone(args), "-help")...)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, said)
	}
	usage, _, _ := strings.Cut(out, "\n")
	usage = strings.TrimPrefix(usage, "Usage: converge ")
	if strings.Contains(usage+" ", "COMMAND ") {
		return fmt.Errorf("there is no such command; the help is that of: converge %s", usage)
	}
	path, _, _ := strings.Cut(usage, " [")
	var names []string // without flags that come before the command
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			names = append(names, a)
		}
	}
	if name := strings.Join(names, " ") + " "; !strings.HasPrefix(name, path+" ") {
		return fmt.Errorf("the help is that of converge %s", path)
	}
	return nil
}

// Every command and flag in the units, the manifests and the page is one that the program has.
func TestCommands(t *testing.T) {
	uses := slices.Concat(unitUses(t), manifestUses(t), pageUses(t))
	if len(uses) < 15 {
		t.Fatalf("only %d commands were found: %v", len(uses), uses)
	}
	for _, u := range uses {
		if err := asked(t, nil, u.args); err != nil {
			t.Errorf("%s: converge %s: %v", u.where, strings.Join(u.args, " "), err)
		}
	}
}

// The check above finds what does not exist.
func TestCommandsThatAreNone(t *testing.T) {
	for _, args := range [][]string{
		{"serv"}, {"serve", "-lissten=:1"}, {"agent", "rum"}, {"agent"}, {"serve", "-sweep=often"}, {"agent", "run", "-mode=observe"}, {"-conf=x", "plan"},
	} {
		if err := asked(t, nil, args); err == nil {
			t.Errorf("converge %s is taken for a command", strings.Join(args, " "))
		}
	}
}

// The variables in the files of settings and in the manifests are known, and so are the flags in them.
func TestEnvironment(t *testing.T) {
	var environ []string
	for line := range strings.Lines(read(t, "systemd/serve.env")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			name, value, _ := strings.Cut(line, "=")
			environ = append(environ, name+"="+strings.Trim(value, `"`))
		}
	}
	if len(environ) != 1 {
		t.Fatalf("serve.env sets %q", environ)
	}
	if err := asked(t, environ, []string{"serve"}); err != nil {
		t.Errorf("serve.env: %v", err)
	}
	if err := asked(t, []string{strings.Replace(environ[0], "-mode", "-mood", 1)}, []string{"serve"}); err == nil {
		t.Error("the flags in serve.env have no effect")
	}
	for _, m := range regexp.MustCompile(`CONVERGE_[A-Za-z_]+`).FindAllString(read(t, page)+read(t, "kubernetes/statefulset.yaml"), -1) {
		if m != "CONVERGE_PORT" { // which is an example of those that are not
			environ = append(environ, m+"=x")
		}
	}
	_, said, err := converge(t, t.TempDir(), environ, "version")
	if err != nil || strings.Contains(said, "unknown") {
		t.Errorf("%q: %v\n%s", environ, err, said)
	}
}

// The program accepts the settings that the page and the manifests have.
func TestSettings(t *testing.T) {
	found := []string{}
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(read(t, page), -1) {
		found = append(found, m[1])
	}
	found = append(found, configMap(t).Data["converge.yaml"])
	sites, agents := 0, 0
	for _, text := range found {
		dir := t.TempDir()
		var set map[string]any
		if err := yaml.Unmarshal([]byte(text), &set); err != nil {
			t.Fatal(err)
		}
		switch {
		case set["servers"] != nil:
			agents++
			for _, name := range []string{"dir", "guard"} { // nothing else can be written to
				if path, _ := set[name].(string); !strings.HasPrefix(path, "/var/lib/"+settings(t, "converge-agent")["StateDirectory"][0]+"/") {
					t.Errorf("%s is %q, outside the directory of the service", name, path)
				}
			}
			write(t, filepath.Join(dir, "agent.yaml"), strings.ReplaceAll(text, "/var/lib/converge-agent/", dir+"/"))
			if _, said, err := converge(t, dir, nil, "agent", "run"); err == nil || !strings.Contains(said, "this machine has not enrolled") {
				t.Errorf("%s\n%v: %s", text, err, said)
			}
		case set["site"] != nil:
			sites++
			// Without endpoints it asks nobody, and everything else is read all the same.
			if etcd := set["etcd"].(map[string]any); etcd["endpoints"] == nil {
				t.Errorf("there are no endpoints in\n%s", text)
			} else {
				delete(etcd, "endpoints")
			}
			without, err := yaml.Marshal(set)
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "converge.yaml"), string(without))
			if _, said, err := converge(t, dir, nil, "history"); err == nil || !strings.Contains(said, "there is no store in") {
				t.Errorf("%s\n%v: %s", text, err, said)
			}
		}
	}
	if sites != 3 || agents != 1 {
		t.Errorf("settings of %d sites and %d agents were found", sites, agents)
	}
}

// The page names only files that are there.
func TestPageNamesFiles(t *testing.T) {
	text, found := read(t, page), 0
	for _, m := range regexp.MustCompile(`\bdeploy/(systemd|kubernetes|prometheus|grafana|image)[a-z0-9/._-]*`).FindAllString(text, -1) {
		found++
		if matches, err := filepath.Glob("../" + strings.TrimRight(m, ".")); err != nil || len(matches) != 1 {
			t.Errorf("%s is not there", m)
		}
	}
	if found < 10 {
		t.Errorf("only %d files were found", found)
	}
}
