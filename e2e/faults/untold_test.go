package faults

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
)

// everything returns a site with every kind, whose resources set all fields that the site accepts.
func everything(t *testing.T, change func(*carbidesim.Options)) *schema.Document {
	t.Helper()
	known, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	options := worldOptions()
	change(&options)
	managed := options
	managed.Hosts = carbidesim.Hosts{Count: options.Hosts.Count - options.Hosts.WithoutDPU}
	hosts, err := hostsOf(managed)
	all, err2 := hostsOf(options)
	if err = errors.Join(err, err2); err != nil || len(hosts) < 2 {
		t.Fatalf("the site has %d machines: %v", len(hosts), err)
	}
	bare := slices.DeleteFunc(all, func(id string) bool { return slices.Contains(hosts, id) })[0]
	text := preamble(hosts[0], hosts[1], bare)
	for _, k := range carbidetest.Kinds() {
		text += "carbide: {" + k.Whole + "}\n"
	}
	doc, ds := load.Document(context.Background(), known, load.Options{}, load.Source{Name: "all.cue", Data: []byte(text)})
	if doc == nil {
		t.Fatal(ds.Err())
	}
	said := map[string]bool{}
	for _, r := range doc.Resources {
		for field := range r.Spec {
			said[r.Ref.Kind+" "+field] = true
		}
	}
	for name, k := range known.Kinds() {
		for _, f := range k.Fields {
			if strings.HasPrefix(name, "carbide.") && !f.Computed && !f.Planning && !said[name+" "+f.Name] {
				t.Errorf("no %s says its %s", name, f.Name)
			}
		}
	}
	return doc
}

// paths lists the fields of a message that are present, as paths through lists.
func paths(m protoreflect.Message, at string, into map[string]bool) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		p := strings.TrimPrefix(at+"."+string(f.Name()), ".")
		into[p] = true
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				paths(v.List().Get(i).Message(), p, into)
			}
		default:
			paths(v.Message(), p, into)
		}
		return true
	})
}

// without removes the field at a path from a message, wherever it is.
func without(m protoreflect.Message, path []string) {
	f := m.Descriptor().Fields().ByName(protoreflect.Name(path[0]))
	switch {
	case len(path) == 1:
		m.Clear(f)
	case !m.Has(f):
	case f.IsList():
		for i := range m.Get(f).List().Len() {
			without(m.Get(f).List().Get(i).Message(), path[1:])
		}
	default:
		without(m.Get(f).Message(), path[1:])
	}
}

// E: whichever single field a server leaves out, in the things of any kind, nothing is created, replaced or deleted for it.
func TestTortureCarbideUntold(t *testing.T) {
	_, reads := called(t)
	var tried, changed atomic.Int64
	t.Cleanup(func() {
		torture.Report(t, "E", "Carbide: %d plans, each on a server that leaves out one field, make, replace and delete nothing; %d of them change something", tried.Load(), changed.Load())
	})
	for _, g := range carbidesim.Generations {
		t.Run(string(g), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				options := func(o *carbidesim.Options) { o.Generation, o.Hosts = g, carbidesim.Hosts{Count: 3, WithoutDPU: 1} }
				doc := everything(t, options)
				var mu sync.Mutex
				told, silent := map[string]map[string]bool{}, ""
				c := &cell{T: t, scene: &scene{first: doc, ref: doc.Resources[0].Ref}, options: options}
				c.answer = func(method string, reply proto.Message) proto.Message {
					mu.Lock()
					defer mu.Unlock()
					if at, ok := strings.CutPrefix(silent, method+" "); ok {
						reply = proto.Clone(reply)
						without(reply.ProtoReflect(), strings.Split(at, "."))
					} else if silent == "" && slices.Contains(reads, method) {
						if told[method] == nil {
							told[method] = map[string]bool{}
						}
						paths(reply.ProtoReflect(), "", told[method])
					}
					return reply
				}
				defer c.end()
				c.begin()
				e := c.process()
				defer e.Close()
				look := func() *plan.Plan {
					p, err := e.Plan(context.Background(), doc, plan.Options{})
					if err != nil {
						t.Fatal(err)
					}
					return p
				}
				clear(told)
				if p := look(); !p.Empty() {
					t.Fatalf("steps %+v, unknown %+v, refused %+v", p.Steps, p.Unknown, p.Refusals)
				}
				var all []string
				for method, fields := range told {
					for at := range fields {
						if strings.Contains(at, ".") { // otherwise it is the whole reply, and everything of the kind is gone
							all = append(all, method+" "+at)
						}
					}
				}
				slices.Sort(all)
				for i := 0; i < len(all); i += torture.Scale(20, 1, 1) {
					mu.Lock()
					silent = all[i]
					mu.Unlock()
					tried.Add(1)
					for _, s := range look().Steps {
						if s.Action == plan.Update {
							changed.Add(1)
						} else {
							t.Errorf("without %s: %s %s: %s", all[i], s.Action, s.Ref, s.Reason)
						}
					}
				}
			})
		})
	}
}
