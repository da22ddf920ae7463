package carbidesim

import (
	"errors"
	"io"
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

const (
	maxManifest      = 64 << 10
	maxObservability = 20
)

var (
	endpointText = regexp.MustCompile(`^[A-Za-z0-9:-]*$`)
	logPathText  = regexp.MustCompile(`^[A-Za-z0-9_/.@-]*$`)
)

// serviceVersion checks the content of a version.
func (s *site) serviceVersion(data string, c *forge.DpuExtensionServiceCredential, o *forge.DpuExtensionServiceObservability) (v serviceVersion, err error) {
	if len(data) > maxManifest {
		return v, invalid("Extension service data exceeds the maximum size: %d bytes", maxManifest)
	}
	manifest, err := parseManifest(data)
	if err != nil {
		return v, err
	}
	if err := checkManifest(manifest); err != nil {
		return v, err
	}
	if err := checkCredential(c); err != nil {
		return v, err
	}
	if err := checkObservability(o); err != nil {
		return v, err
	}
	v.Data = data
	if c != nil {
		k := keep(proto.CloneOf(c))
		v.Credential = &k
	}
	if o != nil {
		k := keep(proto.CloneOf(o))
		v.Observability = &k
	}
	return v, nil
}

// means reports whether two versions run the same: the formatting of a manifest does not count, nor does observability.
func (v serviceVersion) means(w serviceVersion) bool {
	a, errA := parseManifest(v.Data)
	b, errB := parseManifest(w.Data)
	if errA != nil || errB != nil || !reflect.DeepEqual(a, b) || (v.Credential == nil) != (w.Credential == nil) {
		return false
	}
	return v.Credential == nil || proto.Equal(v.Credential.message, w.Credential.message)
}

// parseManifest reads YAML, or JSON, which is YAML.
func parseManifest(data string) (any, error) {
	if data == "" {
		return nil, invalid("Invalid empty data for KubernetesPod service, need a valid pod manifest")
	}
	var manifest, more any
	d := yaml.NewDecoder(strings.NewReader(data))
	if err := d.Decode(&manifest); err != nil {
		return nil, invalid("Invalid pod spec file for KubernetesPod service: %v", err)
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, invalid("Invalid pod spec file for KubernetesPod service: more than one document")
	}
	return manifest, nil
}

func checkManifest(manifest any) error {
	pod, ok := manifest.(map[string]any)
	if !ok {
		return invalid("Pod manifest must be a valid mapping object that contains apiVersion, kind, metadata, and spec.containers")
	}
	meta, _ := pod["metadata"].(map[string]any)
	spec, _ := pod["spec"].(map[string]any)
	containers, listed := spec["containers"].([]any)
	_, versioned := pod["apiVersion"]
	_, named := meta["name"]
	switch {
	case !versioned:
		return invalid("Pod manifest missing required field: apiVersion")
	case pod["kind"] != "Pod":
		return invalid("Pod manifest must have kind: Pod")
	case !named:
		return invalid("Pod manifest missing required field: metadata.name")
	case !listed:
		return invalid("Pod manifest missing required field: spec.containers (must be an array)")
	case len(containers) == 0:
		return invalid("Pod manifest must have at least one container in spec.containers")
	}
	return nil
}

func checkCredential(c *forge.DpuExtensionServiceCredential) error {
	wrong := func(text string) bool { return text == "" || len(text) > 255 }
	up := c.GetUsernamePassword()
	switch {
	case c == nil:
		return nil
	case up == nil:
		return invalid("Invalid credential type")
	case wrong(up.Username):
		return invalid("Invalid username")
	case wrong(up.Password):
		return invalid("Invalid password")
	case wrong(c.RegistryUrl):
		return invalid("Invalid credential registry URL")
	}
	return nil
}

func checkObservability(o *forge.DpuExtensionServiceObservability) error {
	if n := len(o.GetConfigs()); n > maxObservability {
		return invalid("%d configured observability configs for extension service exceeds the limit of %d", n, maxObservability)
	}
	for _, c := range o.GetConfigs() {
		endpoint, path := c.GetPrometheus().GetEndpoint(), c.GetLogging().GetPath()
		switch {
		case c.Config == nil:
			return missing("DpuExtensionServiceObservability.config")
		case len(c.GetName()) > 64:
			return invalid("DpuExtensionServiceObservability.name: length exceeds 64")
		case len(endpoint) > 128 || !endpointText.MatchString(endpoint):
			return invalid("DpuExtensionServiceObservability.config.endpoint: at most 128 letters, digits, colons and hyphens")
		case len(path) > 128 || !logPathText.MatchString(path):
			return invalid("DpuExtensionServiceObservability.config.path: at most 128 letters, digits and _/.@-")
		}
	}
	return nil
}
