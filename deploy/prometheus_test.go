package deploy_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// expressions returns what a rule or a panel asks of Prometheus, by where it is.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	d := yaml.NewDecoder(strings.NewReader(read(t, "prometheus/rules.yml")))
	d.KnownFields(true)
	if err := d.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	tested := read(t, "prometheus/rules_test.yml")
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if found[r.Alert] != "" {
				t.Errorf("there are two alerts %s", r.Alert)
			}
			found[r.Alert] = r.Expr
			if !strings.Contains(tested, `alertname="`+r.Alert+`"`) {
				t.Errorf("the alert %s is in no case of rules_test.yml", r.Alert)
			}
			if s := r.Labels["severity"]; s != "critical" && s != "warning" && s != "info" {
				t.Errorf("the alert %s has the severity %q", r.Alert, s)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("the alert %s does not say what is wrong and what to do", r.Alert)
			}
		}
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "grafana/site.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for i, target := range p.Targets {
			found[fmt.Sprintf("panel %d.%d: %s", p.ID, i, p.Title)] = target.Expr
		}
	}
	if len(found) < 40 {
		t.Fatalf("only %d expressions were found", len(found))
	}
	return found
}

// Every metric that a rule or a panel uses is one that the site agent has.
func TestMetricsExist(t *testing.T) {
	exist := map[string]bool{}
	files, err := filepath.Glob("../site/api/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`"(converge_[a-z_]+)"`).FindAllStringSubmatch(read(t, file), -1) {
			exist[m[1]] = true
		}
	}
	if len(exist) < 20 {
		t.Fatalf("only %d metrics were found in site/api", len(exist))
	}
	for where, expr := range expressions(t) {
		for _, name := range regexp.MustCompile(`\bconverge_[a-z_]+`).FindAllString(expr, -1) {
			if base := strings.TrimSuffix(name, "_bucket"); !exist[base] {
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
	}
}

// Prometheus takes the rules and the expressions of the dashboard, and each alert fires when it should, and not at a healthy site.
func TestRules(t *testing.T) {
	t.Parallel()
	promtool := tool(t, "promtool", "prometheus")
	var asRules strings.Builder
	asRules.WriteString("groups: [{name: dashboard, rules: [\n")
	for where, expr := range expressions(t) {
		quoted, err := json.Marshal(strings.ReplaceAll(expr, "$__rate_interval", "5m"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&asRules, "{record: %q, labels: {where: %q}, expr: %s},\n", "one:expression", where, quoted)
	}
	asRules.WriteString("]}]\n")
	all := filepath.Join(t.TempDir(), "all.yml")
	write(t, all, asRules.String())
	for _, args := range [][]string{{"check", "rules", "prometheus/rules.yml"}, {"check", "rules", all}, {"test", "rules", "prometheus/rules_test.yml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
