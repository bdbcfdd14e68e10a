# Cubic in the datapath (RFC 9438, without its Reno-friendly region). The agent takes the cube root: after a loss report it sets `wmax` (bytes)
# and `k_ms` = 1000 cbrt(wmax (1 - 0.7) / (0.4 mss)).
(def
    (Report (volatile lost 0) (volatile timeout false) (cwnd 0))
    (mss 1448)
    (wmax 0)
    (k_ms 0)
    (is_slow_start true))
(when Flow.was_timeout
    (:= Report.timeout true)
    (:= Report.cwnd Cwnd)
    (:= Cwnd mss)
    (:= is_slow_start true)
    (report))
(when (> Ack.lost_pkts_sample 0)
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= is_slow_start false)
    (:= Report.cwnd Cwnd)
    (:= wmax Cwnd)
    (:= Cwnd (max (* 0.7 Cwnd) (* 2 mss)))
    (reset)                             # the time of the cubic curve
    (report))
(when is_slow_start
    (:= Cwnd (+ Cwnd Ack.bytes_acked)))
(when true
    (:= t (/ Micros 1000))
    (when (> t k_ms)                    # above the plateau
        (:= d (- t k_ms))
        (:= Cwnd (max Cwnd (+ wmax (/ (* (* 0.4 mss) (* d (* d d))) 1000000000)))))
    (when (<= t k_ms)
        (:= d (- k_ms t))
        (:= below (/ (* (* 0.4 mss) (* d (* d d))) 1000000000))
        (when (< below wmax)
            (:= Cwnd (max Cwnd (- wmax below))))))
