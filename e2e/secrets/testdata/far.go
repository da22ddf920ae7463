package all

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// This file is part of the program that package e2e/secrets tests, and of no other.

func init() { sites["far"] = func(Config) connection { return farAway{} } }

// farAway is the connection to the far side, which needs no configuration.
type farAway struct{}

func (farAway) Configured() bool   { return true }
func (farAway) Check(string) error { return nil }

// mischief is what the far side does with the secrets of calls of one verb, as far-mischief.json says.
type mischief struct {
	Op       string `json:"op"`
	Name     string `json:"name"`     // of the thing; empty: of any
	Way      string `json:"way"`      // echo, panic, hang, detail
	Encoding string `json:"encoding"` // in which the secrets are leaked
}

// Open serves the kinds of far from the world in far.json, beside the configuration.
func (farAway) Open(_ context.Context, at providers.Opening) (*providers.Provider, error) {
	described, err := kinds.New()
	if err != nil {
		return nil, err
	}
	world, err := fake.Open(at.Path("far.json"), described.Kinds())
	if err != nil {
		return nil, err
	}
	var does []mischief
	switch b, err := os.ReadFile(at.Path("far-mischief.json")); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(b, &does); err != nil {
			return nil, err
		}
	}
	p := world.Provider("far", at.Scope)
	for i := range p.Kinds {
		p.Kinds[i].Kind = far{p.Kinds[i].Kind, does, at.Logger, at.Dir}
	}
	p.Close = world.Close
	return p, nil
}

type far struct {
	kind providers.Kind
	does []mischief
	log  *slog.Logger
	dir  string
}

func (f far) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providertest.Look(f.Get).List(ctx)
}

func (f far) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	things, err := providertest.Of(f.kind)(ctx, ids)
	for i := range things {
		f.log.Debug("far observed", "name", things[i].Name, "id", things[i].ID)
		for _, m := range f.does {
			if m.Op == "observe" && (m.Name == "" || m.Name == things[i].Name) {
				switch m.Way {
				case "detail":
					things[i].Phase, things[i].Detail = providers.Failed, "it was given "+said(m.Encoding, things[i].Spec)
				case "panic":
					panic(fmt.Errorf("far observed %s", said(m.Encoding, things[i].Spec)))
				case "echo":
					return nil, &providers.Error{Op: "observe", Kind: "far.account", Class: providers.Denied, Err: errors.New("403: " + said(m.Encoding, things[i].Spec))}
				}
			}
		}
	}
	return things, err
}

func (f far) Create(ctx context.Context, c providers.Call) error {
	return f.do(ctx, "create", c, f.kind.Create)
}
func (f far) Update(ctx context.Context, c providers.Call) error {
	return f.do(ctx, "update", c, f.kind.Update)
}
func (f far) Delete(ctx context.Context, c providers.Call) error {
	return f.do(ctx, "delete", c, f.kind.Delete)
}

func (f far) do(ctx context.Context, op string, c providers.Call, call func(context.Context, providers.Call) error) error {
	spec := c.Want
	if spec == nil {
		spec = c.Have
	}
	f.log.Debug("far "+op+" "+said("plain", spec), "call", c, "want", slog.AnyValue(spec))
	for _, m := range f.does {
		if m.Op != op || (m.Name != "" && m.Name != c.Ref.Name) {
			continue
		}
		switch m.Way {
		case "panic":
			panic("far cannot " + op + " " + said(m.Encoding, spec))
		case "hang":
			if err := os.WriteFile(filepath.Join(f.dir, "hanging"), nil, 0o600); err != nil {
				return err
			}
			<-ctx.Done()
		case "echo":
			inner := &providers.Error{Op: op, Ref: c.Ref, Class: providers.Invalid, Code: "BadRequest", Err: errors.New("400: " + said(m.Encoding, spec))}
			return fmt.Errorf("the request was %s: %w", said(m.Encoding, spec), inner)
		}
	}
	return call(ctx, c)
}

// said repeats all secrets of a spec in an encoding.
func said(encoding string, spec schema.Object) string {
	b, _ := json.Marshal(spec["keys"])
	text := fmt.Sprint("Basic user:", spec["password"], " tokens ", spec["tokens"], " keys ") + string(b)
	switch encoding {
	case "base64":
		return base64.StdEncoding.EncodeToString([]byte(text)) + " " + base64.URLEncoding.EncodeToString([]byte("x"+text)) + " " + base64.RawStdEncoding.EncodeToString([]byte("xx"+text))
	case "upper case":
		return strings.ToUpper(text)
	case "reversed":
		r := []rune(text)
		slices.Reverse(r)
		return string(r)
	case "letter by letter":
		return strings.Join(strings.Split(text, ""), "\n")
	case "hex":
		return hex.EncodeToString([]byte(text)) + fmt.Sprintf(" %X", text)
	case "percent":
		return url.QueryEscape(text) + " " + url.PathEscape(text)
	case "quoted":
		b, _ := json.Marshal(text)
		return strconv.Quote(text) + " " + string(b) + " " + strconv.QuoteToASCII(string(b))
	}
	return text
}
