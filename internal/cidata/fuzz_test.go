package cidata

import (
	"bytes"
	"testing"

	"converge.dev/converge/e2e/hostile/fuzzed"
)

// FuzzRead reads images that may be anything: what is read is written as it was.
func FuzzRead(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, s := range []Seed{{}, full} {
		b := imageOf(tf, s)
		f.Add(b[Descriptor:(firstFile+1)*sector], int(Descriptor))
		f.Add(b[primaryRoot*sector:jolietRoot*sector], int(primaryRoot*sector))
		f.Add(b[sumAt:sumAt+32], int(sumAt))
	}
	whole := imageOf(tf, full)
	f.Fuzz(func(t *testing.T, part []byte, at int) {
		image := bytes.Clone(whole)
		copy(image[uint(at)%Size:], part)
		s, err := Read(image)
		if err != nil {
			if s != (Seed{}) {
				t.Errorf("it is refused, and read all the same: %q", s)
			}
			return
		}
		if again, err := s.Image(); err != nil || !bytes.Equal(again, image) {
			t.Errorf("it is written otherwise than it was read (%v)", err)
		}
	})
}
