# CCP paper, section 4.4: slow start by rate.
(def)
(when (> Timer.Micros Flow.rtt_sample_us)
    (:= Rate (* Rate 2))
    (:= Timer.Micros 0))
