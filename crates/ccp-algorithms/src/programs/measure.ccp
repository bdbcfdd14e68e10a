# The largest rate of delivery and the least round-trip time of each interval.
(def
    (Report (volatile rate 0) (volatile rtt +infinity) (volatile lost 0) (in_flight 0))
    (interval_us 10000))
(when true
    (:= Report.rate (max Report.rate Flow.rate_incoming))
    (:= Report.rtt (min Report.rtt Flow.rtt_sample_us))
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= Report.in_flight Flow.bytes_in_flight)
    (fallthrough))
(when (> Micros interval_us)
    (report)
    (reset))
