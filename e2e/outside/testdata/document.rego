# A policy over documents: it is said of each VPC where it is used, and test systems are not on this site.
package main

deny contains text if {
	some name, vpc in input.carbide.vpc
	not vpc.labels.env
	text := sprintf("carbide.vpc.%s has no label env", [name])
}

deny contains text if {
	some name, vpc in input.carbide.vpc
	vpc.labels.env == "test"
	text := sprintf("carbide.vpc.%s is a test system", [name])
}
