package deploy_test

import (
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// The types below are as much of Kubernetes' as the manifests use. What they do not have is refused: a misspelt field would otherwise be
// ignored, here and by the tests, and with it what it was to confine.

type meta struct {
	Name   string
	Labels map[string]string
}

type head struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   meta
}

type selector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

type serviceAccount struct {
	head      `yaml:",inline"`
	Automount *bool `yaml:"automountServiceAccountToken"`
}

type configs struct {
	head `yaml:",inline"`
	Data map[string]string
}

type statefulSet struct {
	head `yaml:",inline"`
	Spec struct {
		ServiceName         string `yaml:"serviceName"`
		Replicas            int
		Selector            selector
		PodManagementPolicy string `yaml:"podManagementPolicy"`
		UpdateStrategy      struct {
			Type string
		} `yaml:"updateStrategy"`
		MinReadySeconds int `yaml:"minReadySeconds"`
		Template        struct {
			Metadata meta
			Spec     pod
		}
	}
}

type pod struct {
	ServiceAccountName string `yaml:"serviceAccountName"`
	Automount          *bool  `yaml:"automountServiceAccountToken"`
	EnableServiceLinks *bool  `yaml:"enableServiceLinks"`
	Grace              int    `yaml:"terminationGracePeriodSeconds"`
	SecurityContext    struct {
		RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
		RunAsUser      int                   `yaml:"runAsUser"`
		RunAsGroup     int                   `yaml:"runAsGroup"`
		FSGroup        int                   `yaml:"fsGroup"`
		SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Spread []struct {
		MaxSkew           int      `yaml:"maxSkew"`
		TopologyKey       string   `yaml:"topologyKey"`
		WhenUnsatisfiable string   `yaml:"whenUnsatisfiable"`
		LabelSelector     selector `yaml:"labelSelector"`
	} `yaml:"topologySpreadConstraints"`
	InitContainers []container `yaml:"initContainers"`
	Containers     []container
	Volumes        []volume
}

type volume struct {
	Name      string
	ConfigMap *struct {
		Name  string
		Items []struct{ Key, Path string }
	} `yaml:"configMap"`
	Secret *struct {
		SecretName  string `yaml:"secretName"`
		DefaultMode int    `yaml:"defaultMode"`
	}
	EmptyDir *struct {
		Medium    string
		SizeLimit string `yaml:"sizeLimit"`
	} `yaml:"emptyDir"`
}

type container struct {
	Name, Image   string
	Command, Args []string
	Env           []struct {
		Name, Value string
		ValueFrom   *struct {
			ConfigMapKeyRef struct{ Name, Key string } `yaml:"configMapKeyRef"`
		} `yaml:"valueFrom"`
	}
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	ReadinessProbe  *probe `yaml:"readinessProbe"`
	LivenessProbe   *probe `yaml:"livenessProbe"`
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
	Resources    struct{ Requests, Limits map[string]string }
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
	PeriodSeconds    int                         `yaml:"periodSeconds"`
	TimeoutSeconds   int                         `yaml:"timeoutSeconds"`
	FailureThreshold int                         `yaml:"failureThreshold"`
}

type service struct {
	head `yaml:",inline"`
	Spec struct {
		Type                     string
		ClusterIP                string `yaml:"clusterIP"`
		ExternalTrafficPolicy    string `yaml:"externalTrafficPolicy"`
		PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
		Selector                 map[string]string
		Ports                    []struct {
			Name       string
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
	}
}

type budget struct {
	head `yaml:",inline"`
	Spec struct {
		MinAvailable int    `yaml:"minAvailable"`
		Unhealthy    string `yaml:"unhealthyPodEvictionPolicy"`
		Selector     selector
	}
}

type peer struct {
	NamespaceSelector selector `yaml:"namespaceSelector"`
}

type ports []struct {
	Protocol string
	Port     int
}

type networkPolicy struct {
	head `yaml:",inline"`
	Spec struct {
		PodSelector selector `yaml:"podSelector"`
		PolicyTypes []string `yaml:"policyTypes"`
		Ingress     []struct {
			From  []peer
			Ports ports
		}
		Egress []struct {
			To    []peer
			Ports ports
		}
	}
}

type kustomization struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Namespace  string
	Labels     []struct{ Pairs map[string]string }
	Resources  []string
}

// manifests reads all objects of one type in a file.
func manifests[T any](t *testing.T, file string) (all []T) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(read(t, "kubernetes/"+file)))
	d.KnownFields(true)
	for {
		var v T
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, v)
	}
}

// manifest reads the only object in a file.
func manifest[T any](t *testing.T, file string) T {
	t.Helper()
	all := manifests[T](t, file)
	if len(all) != 1 {
		t.Fatalf("%s has %d objects", file, len(all))
	}
	return all[0]
}

func configMap(t *testing.T) configs { return manifest[configs](t, "configmap.yaml") }

// manifestUses returns the command of the replicas, with the values of their variables.
func manifestUses(t *testing.T) []use {
	data := configMap(t).Data
	c := manifest[statefulSet](t, "statefulset.yaml").Spec.Template.Spec.Containers[0]
	args := strings.Join(c.Args, "\n")
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		value, ok := data[e.ValueFrom.ConfigMapKeyRef.Key]
		if !ok || !strings.Contains(args, "$("+e.Name+")") {
			t.Errorf("the variable %s is not used, or the config map has no %s", e.Name, e.ValueFrom.ConfigMapKeyRef.Key)
		}
		args = strings.ReplaceAll(args, "$("+e.Name+")", value)
	}
	if strings.Contains(args, "$(") {
		t.Errorf("a variable has no value in %s", args)
	}
	return []use{{"statefulset.yaml", strings.Split(args, "\n")}}
}

// The replicas have no more rights than they need.
func TestPodsAreConfined(t *testing.T) {
	set := manifest[statefulSet](t, "statefulset.yaml")
	account := manifest[serviceAccount](t, "serviceaccount.yaml")
	p := set.Spec.Template.Spec
	no := func(b *bool) bool { return b != nil && !*b }
	if !no(account.Automount) || !no(p.Automount) || p.ServiceAccountName != account.Metadata.Name {
		t.Error("the pods get a token for the API server")
	}
	if !no(p.EnableServiceLinks) {
		t.Error("Kubernetes sets variables that begin with CONVERGE_")
	}
	if s := p.SecurityContext; !s.RunAsNonRoot || s.RunAsUser != 65532 || s.RunAsGroup != 65532 || s.FSGroup != 65532 || s.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("the pods run with %+v", s)
	}
	if len(p.Containers) != 1 || len(p.InitContainers) != 1 {
		t.Fatalf("the pods have %d containers and %d that begin", len(p.Containers), len(p.InitContainers))
	}
	for _, c := range slices.Concat(p.InitContainers, p.Containers) {
		if s := c.SecurityContext; !no(s.AllowPrivilegeEscalation) || !s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("%s runs with %+v", c.Name, s)
		}
		if c.Resources.Limits["memory"] == "" || c.Resources.Requests["memory"] == "" || c.Resources.Requests["cpu"] == "" {
			t.Errorf("%s says not what it needs: %+v", c.Name, c.Resources)
		}
		for _, m := range c.VolumeMounts {
			i := slices.IndexFunc(p.Volumes, func(v volume) bool { return v.Name == m.Name })
			if i < 0 || m.ReadOnly == (p.Volumes[i].EmptyDir != nil) {
				t.Errorf("%s mounts %+v, which does not exist or can be written by mistake", c.Name, m)
			}
		}
	}
	for _, v := range p.Volumes {
		if v.Secret != nil && v.Secret.DefaultMode != 0o440 {
			t.Errorf("the secret %s has mode %o", v.Name, v.Secret.DefaultMode)
		}
		if v.EmptyDir != nil && (v.EmptyDir.Medium != "Memory" || v.EmptyDir.SizeLimit == "") {
			t.Errorf("keys in %s reach a disk", v.Name)
		}
	}
	if l := manifest[head](t, "namespace.yaml").Metadata.Labels["pod-security.kubernetes.io/enforce"]; l != "restricted" {
		t.Errorf("the namespace enforces %q", l)
	}
}

// There are three replicas, of which two stay, and each is probed, found and reached as it listens.
func TestReplicas(t *testing.T) {
	set := manifest[statefulSet](t, "statefulset.yaml")
	labels := set.Spec.Template.Metadata.Labels
	if d := cmp.Diff(labels, set.Spec.Selector.MatchLabels); d != "" || len(labels) == 0 {
		t.Errorf("the set does not select its pods:\n%s", d)
	}
	if s := set.Spec; s.Replicas != 3 || s.UpdateStrategy.Type != "RollingUpdate" || s.Template.Spec.Grace < 60 {
		t.Errorf("%d replicas, replaced by %s, with %d s to end", s.Replicas, s.UpdateStrategy.Type, s.Template.Spec.Grace)
	}
	if b := manifest[budget](t, "poddisruptionbudget.yaml"); b.Spec.MinAvailable != 2 || b.Spec.Unhealthy != "AlwaysAllow" || !cmp.Equal(b.Spec.Selector.MatchLabels, labels) {
		t.Errorf("the disruption budget is %+v", b.Spec)
	}
	c := set.Spec.Template.Spec.Containers[0]
	listens := map[string]int{}
	for _, p := range c.Ports {
		listens[p.Name] = p.ContainerPort
	}
	if d := cmp.Diff(map[string]int{"nodes": 7443, "http": 7480, "metrics": 7490}, listens); d != "" {
		t.Errorf("ports (-want +have):\n%s", d)
	}
	for _, flag := range []string{"-listen=:7443", "-http=:7480", "-metrics=:7490"} {
		if !slices.Contains(c.Args, flag) {
			t.Errorf("the replicas are not started with %s", flag)
		}
	}
	if c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet != (struct{ Path, Port string }{"/readyz", "http"}) ||
		c.LivenessProbe == nil || c.LivenessProbe.HTTPGet != (struct{ Path, Port string }{"/healthz", "http"}) {
		t.Errorf("probes: %+v, %+v", c.ReadinessProbe, c.LivenessProbe)
	}
	services := map[string]service{}
	for _, s := range manifests[service](t, "services.yaml") {
		services[s.Metadata.Name] = s
	}
	if s := services[set.Spec.ServiceName].Spec; s.ClusterIP != "None" || !cmp.Equal(s.Selector, labels) || s.Ports[0].Port != 7490 || s.Ports[0].TargetPort != "metrics" {
		t.Errorf("the service for metrics is %+v", s)
	}
	for _, name := range []string{"converge-0", "converge-1", "converge-2"} {
		s := services[name].Spec
		if s.Selector["statefulset.kubernetes.io/pod-name"] != name || s.ExternalTrafficPolicy != "Local" || len(s.Ports) != 1 || s.Ports[0].TargetPort != "nodes" || s.Ports[0].Port != 7443 {
			t.Errorf("the service %s is %+v", name, s)
		}
	}
	if hosts := strings.Split(configMap(t).Data["hosts"], ","); len(services) != set.Spec.Replicas+1 || len(hosts) != set.Spec.Replicas {
		t.Errorf("%d services and %d names for %d replicas", len(services), len(hosts), set.Spec.Replicas)
	}
	n := manifest[networkPolicy](t, "networkpolicy.yaml").Spec
	if !cmp.Equal(n.PodSelector.MatchLabels, labels) || !slices.Equal(n.PolicyTypes, []string{"Ingress", "Egress"}) {
		t.Errorf("the network policy is about %+v, %v", n.PodSelector, n.PolicyTypes)
	}
	for _, in := range n.Ingress {
		for _, p := range in.Ports {
			if open := len(in.From) == 0; open != (p.Port == 7443) || p.Protocol != "TCP" {
				t.Errorf("port %d is open to %+v", p.Port, in.From)
			}
		}
	}
	for _, out := range n.Egress {
		if len(out.To) == 0 || len(out.Ports) == 0 {
			t.Errorf("the replicas may reach %+v at %+v", out.To, out.Ports)
		}
	}
}

// All manifests are in the base, and kubectl can build it.
func TestBase(t *testing.T) {
	k := manifest[kustomization](t, "kustomization.yaml")
	files, err := filepath.Glob("kubernetes/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		if name := filepath.Base(f); name != "kustomization.yaml" {
			names = append(names, name)
		}
	}
	if d := cmp.Diff(names, slices.Sorted(slices.Values(k.Resources))); d != "" {
		t.Errorf("the base (-files +resources):\n%s", d)
	}
	out, err := exec.Command(tool(t, "kubectl", "kubernetes-client"), "kustomize", "kubernetes").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	objects := 0
	for d := yaml.NewDecoder(strings.NewReader(string(out))); ; objects++ {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if o.Kind != "Namespace" && o.Metadata.Namespace != k.Namespace {
			t.Errorf("%s %s is in namespace %q", o.Kind, o.Metadata.Name, o.Metadata.Namespace)
		}
	}
	if objects != 10 {
		t.Errorf("the base has %d objects", objects)
	}
}
