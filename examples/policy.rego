# A policy over `converge show -json PLANFILE`: nothing is destroyed or replaced, and nothing is hidden behind a failed check.
#
#	converge plan -out=site.plan site.cue
#	converge show -json site.plan > plan.json
#	conftest test -p examples/policy.rego plan.json
package main

deny contains text if {
	some change in input.resource_changes
	"delete" in change.change.actions
	text := sprintf("%s would be destroyed (%s)", [change.address, concat(", ", change.change.actions)])
}

deny contains text if {
	some check in input.checks
	check.address.name in {"max_destroy", "mass_disappearance", "observed"}
	check.status != "pass"
	some instance in check.instances
	some problem in instance.problems
	text := sprintf("%s: %s", [check.address.to_display, problem.message])
}
