# Sums of each interval, the time of its last acknowledgement, and the newest round-trip time.
(def
    (Report (volatile acked 0) (volatile lost 0) (rtt +infinity) (now 0))
    (interval_us 10000))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= Report.rtt (if (!= Flow.rtt_sample_us +infinity) Flow.rtt_sample_us))
    (:= Report.now (if (> Ack.bytes_acked 0) Ack.now))
    (fallthrough))
(when (&& (> Micros interval_us) (> Report.acked 0))
    (report)
    (reset))
