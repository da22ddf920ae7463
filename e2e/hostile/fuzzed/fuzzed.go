// Package fuzzed supplies fuzz tests with inputs that are the same in every run and on every machine: the seeds that a test
// adds, and those seeds changed by a random generator with a fixed seed. `go test` tries them all. So a push is judged by its
// own change, and not by chance; random findings are searched for at night, guided by coverage (e2e/fuzz.sh). It imports
// nothing of ours but package torture, so the tests of every package may use it.
package fuzzed

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"converge.dev/converge/internal/torture"
)

// F is a fuzz test that changes its own seeds.
type F struct {
	*testing.F
	seeds [][]any
}

// New returns a fuzz test that changes its own seeds.
func New(f *testing.F) *F { return &F{F: f} }

// Add adds a seed. Only seeds of bytes, strings, integers and booleans can be changed.
func (f *F) Add(args ...any) {
	f.Helper()
	f.F.Add(args...)
	f.seeds = append(f.seeds, args)
}

// Fuzz tries fn on the seeds and on changed ones. Under `go test -fuzz` it tries what that finds.
func (f *F) Fuzz(fn any) {
	f.Helper()
	if search := flag.Lookup("test.fuzz"); len(f.seeds) > 0 && (search == nil || search.Value.String() == "") {
		name := fnv.New64a()
		_, _ = name.Write([]byte(f.Name()))
		m := mutator{rand.New(rand.NewPCG(name.Sum64(), 1)), f.seeds}
		// A test may add its seeds in the order of a map.
		slices.SortFunc(m.seeds, func(a, b []any) int { return cmp.Compare(fmt.Sprintf("%#v", a), fmt.Sprintf("%#v", b)) })
		for range torture.Scale(50, 2_000, 20_000) {
			f.F.Add(m.input()...)
		}
	}
	f.F.Fuzz(fn)
}

// A mutator changes seeds.
type mutator struct {
	chance *rand.Rand
	seeds  [][]any
}

// words are what decoders stumble over: punctuation, numbers at the limits, and bytes that are not text.
var words = []string{
	"{", "}", "[", "]", `"`, ",", ":", "\\", "'", "#", "/", "..", "\n", "\r", "\r\n", "\t", " ", "\x00", "\x1b[2J", "\xff", "\xc0\x80", "\ufeff", "\u0085", "\u2028", "é", "💥", `\ud800`, `\u0000`,
	"null", "true", `""`, "{}", "[]", "-", "0", "-0", "1e9", "1e400", "1.5", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551616", "NaN",
	"&a ", "*a", "<<: ", "!!binary ", "---\n", "|\n", "@x()", "a: ", "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", "\x28\xb5\x2f\xfd",
}

// input returns a seed with one to four changes.
func (m *mutator) input() []any {
	args := slices.Clone(m.seeds[m.chance.IntN(len(m.seeds))])
	for range 1 + m.chance.IntN(4) {
		i := m.chance.IntN(len(args))
		switch v := args[i].(type) {
		case []byte:
			args[i] = m.bytes(v, i)
		case string:
			args[i] = string(m.bytes([]byte(v), i))
		case byte:
			args[i] = byte(m.chance.Uint32())
		case bool:
			args[i] = !v
		case int:
			args[i] = []int{v + 1, v - 1, -v, 0, math.MaxInt, math.MinInt}[m.chance.IntN(6)]
		default:
			panic(fmt.Sprintf("fuzzed: a seed has a %T, which nothing here can change", v))
		}
	}
	return args
}

// bytes makes one change to the bytes that are argument i of their seed.
func (m *mutator) bytes(b []byte, i int) []byte {
	at := m.chance.IntN(len(b) + 1)
	end := at + m.chance.IntN(min(len(b)-at, 32)+1) // mostly a small part
	if m.chance.IntN(8) == 0 {
		end = at + m.chance.IntN(len(b)-at+1)
	}
	head, part, tail := b[:at], b[at:end], b[end:]
	switch m.chance.IntN(7) {
	case 0: // something is missing
		part = nil
	case 1: // something is repeated
		part = bytes.Repeat(part, 2+m.chance.IntN(2))
	case 2: // something replaces something
		part = []byte(words[m.chance.IntN(len(words))])
	case 3: // something more
		part = append([]byte(words[m.chance.IntN(len(words))]), part...)
	case 4: // another byte
		if len(part) > 0 {
			part = append([]byte{byte(m.chance.Uint32())}, part[1:]...)
		}
	case 5: // it is cut off
		part, tail = nil, nil
	case 6: // it continues like another one
		other := m.seeds[m.chance.IntN(len(m.seeds))][i]
		switch o := other.(type) {
		case []byte:
			tail = o[m.chance.IntN(len(o)+1):]
		case string:
			tail = []byte(o[m.chance.IntN(len(o)+1):])
		}
	}
	return slices.Concat(head, part, tail)
}
