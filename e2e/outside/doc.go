// Package outside runs third-party tools on what converge writes: HashiCorp's reader of Terraform plans, conftest, a
// validator of JSON Schema, and cue. It is a separate module, so that converge does not depend on them.
package outside
