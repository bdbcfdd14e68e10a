# CCP paper, Figure 4: slow start in the agent, with a report for each round trip. The paper leaves out two brackets.
(def (Report (volatile acked 0) (volatile loss 0)))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (when (> Micros Flow.rtt_sample_us) (report) (reset)))
