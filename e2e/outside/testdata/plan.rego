# A policy over the JSON of a plan that reads what is said of replacements, of checks, and of what does not change.
package main

deny contains text if {
	some change in input.resource_changes
	some path in change.change.replace_paths
	text := sprintf("%s is replaced for the sake of %s", [change.address, concat(".", path)])
}

deny contains text if {
	some check in input.checks
	check.status == "fail"
	some instance in check.instances
	some problem in instance.problems
	text := sprintf("%s: %s", [check.address.name, problem.message])
}

deny contains text if {
	input.converge.unchanged_listed
	unchanged := [c | some c in input.resource_changes; c.change.actions == ["no-op"]]
	count(unchanged) != input.converge.unchanged
	text := sprintf("%d do not change, and %d are listed", [input.converge.unchanged, count(unchanged)])
}
