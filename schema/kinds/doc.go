// Package kinds describes kinds, and finds what is wrong with a single resource.
//
// A [Schema] is made from CUE files: the embedded ones, or others. It describes each kind as a [schema.Kind], with its fields
// and their types, references, secrets and traits. From the same definitions it compiles checks of the head of a document, of
// names and of specs. They take a thirtieth of the time of CUE and never accept what CUE refuses; where a check refuses, or
// cannot decide, CUE decides, and what CUE refuses is reported in our words, as a [Problem].
//
// What the embedded files compile to is in compiled*.go, so that a process starts without CUE.
//
// The package checks one resource at a time, and what is above the resources in a document. What only several resources
// together can violate is for package rules.
package kinds
