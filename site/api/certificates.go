package api

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"converge.dev/converge/trust"
)

// A Certificate is one that the site agent has for itself: to be known by, or to know others by.
type Certificate struct {
	Name                string    // https, carbide, carbide_ca
	NotBefore, NotAfter time.Time // zero: there is none
	Err                 error     // why there is none, or none newer; nil when nothing is wrong
}

// certificates returns them.
func (a *API) certificates() []Certificate {
	if a.o.Certificates == nil {
		return nil
	}
	return a.o.Certificates()
}

// certificatesHealth returns a component for each. None counts for the whole: without them the site is kept all the same, as long
// as its providers are reached, which have components of their own.
func (a *API) certificatesHealth(now time.Time) (list []Component) {
	for _, cert := range a.certificates() {
		c := Component{Name: "certificate/" + cert.Name, State: OK}
		switch {
		case cert.NotAfter.IsZero():
			c.State, c.Detail = Error, "there is none"
		case !now.Before(cert.NotAfter):
			c.State, c.Since, c.Detail = Critical, at(cert.NotAfter), "it ended "+clock(cert.NotAfter)
		default:
			share := trust.Share(cert.NotBefore, cert.NotAfter, now)
			c.Detail = "it ends " + clock(cert.NotAfter)
			switch {
			case share >= 90:
				c.State = Error
			case share >= 75, cert.Err != nil:
				c.State = Warn
			}
			if c.State != OK && share > 0 {
				c.Detail = fmt.Sprintf("%d %% of its life have passed; ", share) + c.Detail
			}
		}
		if cert.Err != nil {
			c.Detail += ": " + cert.Err.Error()
		}
		list = append(list, c)
	}
	return list
}

// certificateMetrics are read when they are asked for.
type certificateMetrics struct {
	a *API

	expiry, used, attempts, enrolments *prometheus.Desc
}

func newCertificateMetrics(a *API) *certificateMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &certificateMetrics{
		a:          a,
		expiry:     desc("converge_site_certificate_expiry_timestamp_seconds", "When a certificate of the site agent itself ends. Absent while there is none.", "certificate"),
		used:       desc("converge_site_certificate_used_ratio", "How much of the life of a certificate of the site agent itself has passed: 0 to 1, and more after its end. Absent while there is none.", "certificate"),
		attempts:   desc("converge_enrolment_attempts_total", "How often this replica has asked for the site's credentials with a one-time password."),
		enrolments: desc("converge_enrolments_total", "How often this replica got them."),
	}
}

// Describe implements [prometheus.Collector].
func (m *certificateMetrics) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.expiry, m.used, m.attempts, m.enrolments} {
		c <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *certificateMetrics) Collect(c chan<- prometheus.Metric) {
	now := m.a.o.Now()
	for _, cert := range m.a.certificates() {
		if cert.NotAfter.IsZero() {
			continue
		}
		used := float64(now.Sub(cert.NotBefore)) / float64(cert.NotAfter.Sub(cert.NotBefore))
		c <- prometheus.MustNewConstMetric(m.expiry, prometheus.GaugeValue, seconds(cert.NotAfter), cert.Name)
		c <- prometheus.MustNewConstMetric(m.used, prometheus.GaugeValue, used, cert.Name)
	}
	if m.a.o.Enrolments != nil {
		attempted, succeeded := m.a.o.Enrolments()
		c <- prometheus.MustNewConstMetric(m.attempts, prometheus.CounterValue, float64(attempted))
		c <- prometheus.MustNewConstMetric(m.enrolments, prometheus.CounterValue, float64(succeeded))
	}
}
