// Package e2e holds a few whole journeys against real systems, and the tests that keep the repository in order.
package e2e
