// Package outside runs other people's tools over what converge writes: HashiCorp's reader of Terraform plans, conftest, a
// validator of JSON Schema, and cue. It is a module of its own, so that converge does not depend on them.
package outside
