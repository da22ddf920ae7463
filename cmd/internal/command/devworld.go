package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

// agentsDir is the folder of the agents of a development site, with a folder for each node; worldName is the file of what the node has.
const (
	agentsDir = "agents"
	worldName = "world.json"
)

// A meddling says in which world something is changed.
type meddling struct {
	world string // the file; empty: that of the node
	node  string // whose agent; empty: that of the ref
}

func (a *app) devWorldCommand() *cobra.Command {
	var m meddling
	c := group("world", "Change a rehearsed world behind converge's back", `Change what a rehearsed world has, as a person would who logs in and bypasses converge:
to see drift reported and put right. A process that has the world open, such as
converge dev site, is asked to make the change, and notices it at once.

The world is that of the node, agents/NODE/world.json, when the node has an agent in this
workspace; otherwise fake.world of converge.yaml.`)
	c.PersistentFlags().StringVar(&m.world, "world", "", "`file` of the world")
	c.PersistentFlags().StringVar(&m.node, "node", "", "the world of the agent of this `node`, of converge dev site")

	steer := func(use, short, long, example string, args cobra.PositionalArgs, do func(context.Context, meddling, []string) error) {
		child := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: args}
		child.RunE = func(c *cobra.Command, args []string) error { return do(c.Context(), m, args) }
		c.AddCommand(child)
	}
	steer("show", "Print the world", "Print the world as JSON, in the form of its file: things by scope, kind and id.",
		"  converge dev world show -node=gpu-01\n  converge dev world show -world=world.json", exactly(0), a.showWorld)
	steer("put REF JSON", "Change a thing, or make one", `Merge JSON into the spec of a thing: its fields replace those that the thing has, and null
removes a field. Everything else about the thing stays, with its mark. Where there is no
such thing, it is made, without a mark. REF is SCOPE/KIND/ID; the name of a thing may
stand for its id.`, `  converge dev world put gpu-01/ovs.bridge/br-slice '{"fail_mode": "standalone"}'
  converge dev world put site/carbide.vpc/prod '{"labels": {"env": null}}'`, exactly(2), a.putWorld)
	steer("remove REF", "Remove a thing", "Remove a thing. REF is SCOPE/KIND/ID; the name of a thing may stand for its id.",
		"  converge dev world remove gpu-01/ovs.bridge/br-slice", exactly(1), a.removeWorld)
	steer("fault [JSON | clear]", "Inject a fault", `Inject a fault, list the faults, or clear them. op is observe, create, update, delete or
any. The effects are before, after, late, slow, failed and stale.`, `  converge dev world fault '{"op": "update", "ref": "gpu-01/ovs.bridge/*", "class": "denied"}'
  converge dev world fault -node=gpu-01 clear`, between(0, 1), a.faultWorld)
	return c
}

func (a *app) showWorld(ctx context.Context, m meddling, _ []string) error {
	return a.meddle(ctx, m, func(_ string, c *fake.Control) error {
		world, err := c.World(ctx)
		_, _ = a.out.Write(world)
		return err
	})
}

func (a *app) putWorld(ctx context.Context, m meddling, args []string) error {
	ref, err := m.about(args[0])
	if err != nil {
		return err
	}
	var spec schema.Object
	err = json.Unmarshal([]byte(args[1]), &spec)
	if err == nil && spec == nil {
		err = errors.New("it is null")
	}
	if err != nil {
		return &view.Problem{What: "the change is not a JSON object", Where: err.Error(), Fix: `Give the fields to change, such as '{"fail_mode": "standalone"}'.`, Err: err}
	}
	return a.meddle(ctx, m.on(ref.Scope), func(file string, c *fake.Control) error {
		if err := c.Change(ctx, ref.Scope, ref.Kind, ref.Name, spec); err != nil {
			return err
		}
		a.acted = true
		a.view.Note("Put " + ref.String() + " into " + file + ".")
		return nil
	})
}

func (a *app) removeWorld(ctx context.Context, m meddling, args []string) error {
	ref, err := m.about(args[0])
	if err != nil {
		return err
	}
	return a.meddle(ctx, m.on(ref.Scope), func(file string, c *fake.Control) error {
		if err := c.Remove(ctx, ref.Scope, ref.Kind, ref.Name); err != nil {
			return err
		}
		a.acted = true
		a.view.Note("Removed " + ref.String() + " from " + file + ".")
		return nil
	})
}

func (a *app) faultWorld(ctx context.Context, m meddling, args []string) error {
	var fault fake.Fault
	if len(args) == 1 && args[0] != "clear" {
		var err error
		if fault, err = fake.ParseFault([]byte(args[0])); err != nil {
			return &view.Problem{What: "the fault cannot be used", Where: err.Error(), Fix: `Give JSON such as '{"op": "create", "ref": "*/ovs.bridge/*", "class": "denied"}'.`, Err: err}
		}
		if scope, _, ok := strings.Cut(fault.Ref, "/"); ok {
			m = m.on(scope)
		}
	}
	return a.meddle(ctx, m, func(_ string, c *fake.Control) error {
		switch {
		case len(args) == 0:
			faults, err := c.Faults(ctx)
			if err != nil {
				return err
			}
			return a.printJSON(faults)
		case args[0] == "clear":
			return c.Mend(ctx)
		}
		return c.Fail(ctx, fault)
	})
}

// about reads a ref.
func (m meddling) about(text string) (schema.Ref, error) {
	ref, err := schema.ParseRef(text)
	if err != nil {
		return ref, &view.Problem{What: err.Error(), Err: err}
	}
	return ref, nil
}

// on returns where to change something in a scope.
func (m meddling) on(scope string) meddling {
	if m.node == "" && scope != schema.ScopeSite {
		m.node = scope
	}
	return m
}

// meddle opens the world, in the process that has it open or here, while do uses it.
func (a *app) meddle(ctx context.Context, m meddling, do func(file string, c *fake.Control) error) (err error) {
	file, err := a.worldFile(m)
	if err != nil {
		return err
	}
	sch, err := a.schema()
	if err != nil {
		return err
	}
	c, err := fake.OpenControl(ctx, file, sch.Kinds())
	var unreached *fake.UnreachableError
	switch {
	case errors.As(err, &unreached):
		return &view.Problem{What: "another process has the world open, and cannot be reached", Where: unreached.Socket + ": " + unreached.Err.Error(), Fix: "Only a node agent and converge dev site can be asked to change a world. Wait for another command to end.", Err: err}
	case err != nil:
		return &view.Problem{What: "the world cannot be opened", Where: err.Error(), Fix: "Choose another with -world=FILE.", Err: err}
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := do(file, c); err != nil {
		return &view.Problem{What: "the request to the world failed", Where: file + ": " + err.Error(), Fix: "To see what it has: converge dev world show -world=" + file, Err: err}
	}
	return nil
}

// worldFile returns the file of the world that is meant.
func (a *app) worldFile(m meddling) (string, error) {
	if m.world != "" {
		return m.world, nil
	}
	conf, err := a.configuration(nil)
	if err != nil {
		return "", err
	}
	agents := filepath.Join(conf.Dir(), agentsDir)
	if m.node != "" && m.node != "." && m.node != ".." && !strings.ContainsRune(m.node, filepath.Separator) {
		// The folder of the node counts: until its agent ends for the first time, there is no file.
		if info, err := os.Stat(filepath.Join(agents, m.node)); err == nil && info.IsDir() {
			return filepath.Join(agents, m.node, worldName), nil
		}
	}
	if conf.Fake == nil || conf.Fake.World == "" {
		p := &view.Problem{What: "there is no rehearsed world here", Fix: "Give its file with -world=FILE, or its node with -node=NODE, in the directory of converge dev site."}
		if m.node != "" {
			p.What = fmt.Sprintf("node %s has no agent in %s, and fake.world is not set in converge.yaml", m.node, agents)
		}
		return "", p
	}
	return providers.Opening{Dir: conf.Dir()}.Path(conf.Fake.World), nil
}
