# CCP paper, Figure 2: counts bytes and losses, and reports on losses.
(def (Report (volatile acked 0) (volatile lost 0)))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (fallthrough))
(when (> Report.lost 0) (report))
