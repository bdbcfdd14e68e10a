# Sums between two reports, and the most bytes in flight: a window that is not used must not grow (RFC 7661).
# A report each `interval_us` in which something was acknowledged, and at once when packets are lost.
(def
    (Report (volatile acked 0) (volatile lost 0) (volatile timeout false) (volatile rtt +infinity)
        (volatile flight 0))
    (interval_us 100000))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= Report.timeout (|| Report.timeout Flow.was_timeout))
    (:= Report.flight (max Report.flight (+ Flow.bytes_in_flight Ack.bytes_acked)))
    (:= Report.rtt (min Report.rtt Flow.rtt_sample_us))
    (fallthrough))
(when (|| (&& (> Micros interval_us) (> Report.acked 0)) (> Ack.lost_pkts_sample 0))
    (report)
    (reset))
