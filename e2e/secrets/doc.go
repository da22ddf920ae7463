// Package secrets proves rule W6 on the real program: no secret in a log, the journal, the store, a plan or any output,
// whatever goes wrong. It contains only tests.
//
// No kind of the embedded schema has a secret field yet. The program under test is the real one, built with two more
// files, which `go build -overlay` puts in place: testdata/account.cue, a kind with secrets, found by the wildcard with
// which the schema is embedded; and testdata/far.go, its provider, which can do everything with a secret that a careless
// provider does. The keys, tokens and passwords of a site of many machines need no such files: the program makes or reads them itself.
package secrets
