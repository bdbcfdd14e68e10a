# What a learner observes of each interval: sums, the largest rates, the least round-trip time.
(def
    (Report
        (volatile acked 0) (volatile lost 0) (volatile marked 0) (volatile timeout false) (volatile rtt +infinity)
        (volatile rate_in 0) (volatile rate_out 0) (in_flight 0))
    (interval_us 10000))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= Report.marked (+ Report.marked Ack.ecn_bytes))
    (:= Report.timeout (|| Report.timeout Flow.was_timeout))
    (:= Report.rtt (min Report.rtt Flow.rtt_sample_us))
    (:= Report.rate_in (max Report.rate_in Flow.rate_incoming))
    (:= Report.rate_out (max Report.rate_out Flow.rate_outgoing))
    (:= Report.in_flight Flow.bytes_in_flight)
    (fallthrough))
(when (> Micros interval_us)
    (report)
    (reset))
