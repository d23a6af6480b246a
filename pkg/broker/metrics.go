package broker

import "github.com/prometheus/client_golang/prometheus"

// Metrics count what consumers do. One set serves all consumers of a process.
type Metrics struct {
	handled  *prometheus.HistogramVec // queue
	failures *prometheus.CounterVec   // queue, class
	setAside *prometheus.CounterVec   // queue, to

	deadLetters *prometheus.GaugeVec // queue
}

// NewMetrics registers the metrics with registerer, or nowhere where it is nil.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		handled: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "consumer_handled_seconds", Help: "Time to handle a message, with its quick tries and the outages that it waited out.",
		}, []string{"queue"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "consumer_failures_total", Help: "Tries that failed, by class: permanent, transient, outage.",
		}, []string{"queue", "class"}),
		setAside: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "consumer_set_aside_total", Help: "Messages moved to a retry queue, to the dead letters, or, in a long outage, to the end of their own queue.",
		}, []string{"queue", "to"}),
		deadLetters: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "consumer_dead_letters", Help: "Messages in the dead letters of the queue, as last seen; each replica reports them.",
		}, []string{"queue"}),
	}
	if registerer != nil {
		registerer.MustRegister(m.handled, m.failures, m.setAside, m.deadLetters)
	}
	return m
}
