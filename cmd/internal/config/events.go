package config

import (
	"fmt"
	"path/filepath"
	"slices"

	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/site/outbox"
)

// Events says where converge serve tells what happens at the site.
type Events struct {
	Webhook   string   `yaml:"webhook"`    // URL; http:// only to this machine
	TokenFile string   `yaml:"token_file"` // with a bearer token
	CA        string   `yaml:"ca"`         // PEM file; by default the authorities of the system
	Kinds     []string `yaml:"kinds"`      // by default all
}

// check refuses what is wrong whatever the files are, whose paths it makes relative to dir.
func (e *Events) check(dir string) error {
	if err := outbox.Check(e.Webhook); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	for i, kind := range e.Kinds {
		if !slices.Contains(outbox.Kinds, kind) {
			return fmt.Errorf("events: kinds: there is no %q.%s", kind, nearest.DidYouMean(kind, outbox.Kinds))
		}
		if slices.Contains(e.Kinds[:i], kind) {
			return fmt.Errorf("events: kinds: %s is there twice", kind)
		}
	}
	for _, p := range []*string{&e.TokenFile, &e.CA} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	return nil
}
