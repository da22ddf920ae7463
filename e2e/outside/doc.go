// Package outside runs third-party tools on what converge writes: HashiCorp's reader of Terraform plans, conftest, a
// validator of JSON Schema, cue, and the receiver of the OpenTelemetry collector. It is a separate module, so that converge does not depend on them.
package outside
