//go:build !race

package carbide_test

const race = false
