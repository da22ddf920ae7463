package command

import (
	"slices"
	"strings"

	"converge.dev/converge/internal/nearest"
)

// Names of environment variables.
const (
	envLog        = "CONVERGE_LOG"           // level of the log: debug, info, warn, error
	envLogPath    = "CONVERGE_LOG_PATH"      // file of the log
	envLogFormat  = "CONVERGE_LOG_FORMAT"    // of its lines: text or json
	envInput      = "CONVERGE_INPUT"         // false or 0: never ask
	envAutomation = "CONVERGE_IN_AUTOMATION" // no hints, no redrawing, strict budgets
	envArgs       = "CONVERGE_CLI_ARGS"      // inserted after the name of the command
	envDataDir    = "CONVERGE_DATA_DIR"
	envSite       = "CONVERGE_SITE"
	envEndpoints  = "CONVERGE_ETCD_ENDPOINTS"
	envConfig     = "CONVERGE_CLI_CONFIG_FILE"
	envServer     = "CONVERGE_SERVER" // of the site agent
	envTrace      = "TRACEPARENT"     // of the caller; W3C trace context
)

var envNames = []string{envLog, envLogPath, envLogFormat, envInput, envAutomation, envArgs, envDataDir, envSite, envEndpoints, envConfig, envServer}

// An env is the environment.
type env map[string]string

func environment(list []string) env {
	e := env{}
	for _, l := range list {
		name, value, _ := strings.Cut(l, "=")
		e[name] = value
	}
	return e
}

// lookup returns a variable, and whether it is set.
func (e env) lookup(name string) (string, bool) {
	v, ok := e[name]
	return v, ok
}

// automation reports whether no person is watching.
func (e env) automation() bool {
	return e.yes(envAutomation) || e.yes("TF_IN_AUTOMATION") || e.yes("CI")
}

func (e env) yes(name string) bool {
	v := strings.ToLower(e[name])
	return v != "" && v != "0" && v != "false"
}

func (e env) no(name string) bool {
	v := strings.ToLower(e[name])
	return v == "0" || v == "false"
}

// unknown returns a warning for each unknown CONVERGE_ variable.
func (e env) unknown() []string {
	var found []string
	for name := range e {
		if strings.HasPrefix(name, "CONVERGE_") && !slices.Contains(envNames, name) && !strings.HasPrefix(name, envArgs+"_") {
			found = append(found, "environment variable "+name+" is unknown to converge."+nearest.DidYouMean(name, envNames))
		}
	}
	slices.Sort(found)
	return found
}
