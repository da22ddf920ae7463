// Package deploy is how converge is installed as a service: units for systemd, an image, manifests for Kubernetes, and what watches
// over it in Prometheus and Grafana. docs/deploying.md leads through it.
//
// There is no code in it but tests, beside what embeds the files that an installer contains: they hold that every command, flag, setting and metric in these files exists in the program, that
// systemd, kubectl and promtool have nothing against them, and that nothing that confines a service is lost by an edit.
package deploy
