# Sums between two reports. A report each `interval_us` in which something was acknowledged, and at once when packets are lost.
(def
    (Report (volatile acked 0) (volatile lost 0) (volatile timeout false) (volatile rtt +infinity))
    (interval_us 100000))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= Report.timeout (|| Report.timeout Flow.was_timeout))
    (:= Report.rtt (min Report.rtt Flow.rtt_sample_us))
    (fallthrough))
(when (|| (&& (> Micros interval_us) (> Report.acked 0)) (> Ack.lost_pkts_sample 0))
    (report)
    (reset))
