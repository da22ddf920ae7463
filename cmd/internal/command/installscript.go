package command

import (
	"cmp"
	"crypto/sha256"
	_ "embed" // the script
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/deploy"
	"converge.dev/converge/internal/files"
)

//go:embed installscript.sh
var installScript string

// An installer is what the script for a node is made of.
type installer struct {
	servers   []string
	URL, Node string
	binary    string

	SHA256 string // of the program, in hex
}

func (a *app) agentInstallScriptCommand() *cobra.Command {
	var i installer
	c := &cobra.Command{
		Use: "install-script", Short: "Print a script that makes a machine a node", Args: exactly(0),
		Long: `Print a script for a shell that installs this program on a machine as the agent of a node,
and enrols it with a token. It downloads the program from -url, and installs nothing unless
its SHA-256 is that of this program, or of -binary. It writes /etc/converge/agent.yaml
unless there is one, and the services converge-agent and converge-guard, and starts them.

The script has no secret in it. Bring it to the machine in a way that nobody can change it,
and the token in a file or a pipe. It may be repeated, also to install another version.`,
		Example: `  converge agent install-script -server=site.example:7443 -url=https://files.example/converge > install.sh
  converge agent token create gpu-01 | ssh root@gpu-01 "sh install.sh"`,
	}
	c.Flags().StringSliceVar(&i.servers, "server", nil, "comma-separated `addresses` of the site agents, HOST:PORT")
	c.Flags().StringVar(&i.URL, "url", "", "`URL` from which the machine downloads the program")
	c.Flags().StringVar(&i.Node, "node", "", "the `name` of the node; a token for another one is refused")
	c.Flags().StringVar(&i.binary, "binary", "", "the program, as a `file`, that is at -url; default: this program")
	c.RunE = func(*cobra.Command, []string) error {
		if err := i.check(); err != nil {
			return err
		}
		var err error
		if i.SHA256, err = digestOf(cmp.Or(i.binary, a.sys.Executable)); err != nil {
			return &view.Problem{What: "the program cannot be read", Where: err.Error(), Fix: "Name it with -binary=FILE.", Err: err}
		}
		script := i.script()
		if a.flags.json {
			return a.printJSON(map[string]any{"script": script, "sha256": i.SHA256})
		}
		a.print(script)
		return nil
	}
	return c
}

// What may be in a script unquoted by others: no blanks, and nothing that a shell or YAML obeys.
var (
	hostPort = regexp.MustCompile(`^[A-Za-z0-9.:%\[\]_-]+$`)
	nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

func (i *installer) check() error {
	if len(i.servers) == 0 || i.URL == "" {
		return &view.Problem{What: "-server and -url are required", Fix: "See: converge agent install-script -help"}
	}
	for _, s := range i.servers {
		if _, port, err := net.SplitHostPort(s); err != nil || port == "" || !hostPort.MatchString(s) {
			return &view.Problem{What: fmt.Sprintf("invalid -server %q: want HOST:PORT", s)}
		}
	}
	u, err := url.Parse(i.URL)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return &view.Problem{What: "invalid -url: want https://HOST/PATH"}
	}
	if u.User != nil {
		return &view.Problem{What: "-url contains a user or a password, which would be in the script", Fix: "The program is no secret: serve it without."}
	}
	if i.Node != "" && !nodeName.MatchString(i.Node) {
		return &view.Problem{What: fmt.Sprintf("invalid -node %q: want lower-case letters, digits and hyphens", i.Node)}
	}
	return nil
}

// script returns the script: the text of installscript.sh with the values in their places, each quoted.
func (i *installer) script() string {
	here := strings.NewReplacer("/usr/bin/converge", "/usr/local/bin/converge") // where a package of the system would not be
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	return strings.NewReplacer(
		"[[URL]]", quote(i.URL),
		"[[SHA256]]", quote(i.SHA256),
		"[[SERVERS]]", quote(strings.Join(i.servers, " ")), // for a loop of the shell
		"[[NODE]]", quote(i.Node),
		"[[SERVERS_LINE]]", quote(`servers: ["`+strings.Join(i.servers, `", "`)+`"]`), // of agent.yaml
		"[[GUARD_UNIT]]", here.Replace(deploy.GuardUnit),
		"[[AGENT_UNIT]]", here.Replace(deploy.AgentUnit),
	).Replace(installScript)
}

// digestOf returns the SHA-256 of a file in hex.
func digestOf(path string) (string, error) {
	f, err := files.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
