// Package kinds says what a kind is, and what is wrong with a resource by itself.
//
// A [Schema] is made of CUE files: the embedded ones, or others. It describes each kind as a [schema.Kind], with its fields
// and their types, references, secrets and traits. From the same definitions it compiles checks of the head of a document, of
// names and of specs. They take a thirtieth of the time of CUE and never accept what CUE refuses; where one refuses, or cannot
// judge, CUE is asked, and what CUE refuses is said in our words, as a [Problem].
//
// What the embedded files compile to is in compiled*.go, so that a process starts without CUE.
//
// The package looks at one resource, and at what is above the resources in a document. What only several resources together
// can break is for package rules.
package kinds
