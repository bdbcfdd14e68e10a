# CCP paper, Figure 6: slow start in the datapath. The paper has one bracket too many, and no fallthrough: its second event never runs.
(def (volatile Report.loss 0))
(when true
    (:= Cwnd (+ Cwnd Ack.bytes_acked))
    (fallthrough))
(when (> Ack.lost_pkts_sample 0) (report))
