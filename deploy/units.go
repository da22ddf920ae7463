package deploy

import _ "embed"

// Units of systemd for a node, which run /usr/bin/converge.
var (
	//go:embed systemd/converge-agent.service
	AgentUnit string
	//go:embed systemd/converge-guard.service
	GuardUnit string
)
