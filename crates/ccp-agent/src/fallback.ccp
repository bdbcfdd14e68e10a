# Reno without an agent (RFC 5681), for a flow with a failed algorithm. It goes on from the present window, in congestion avoidance from ten
# segments on. A flow that is paced stays paced, at two windows for each round trip, so that an old rate does not bind for ever.
(def
    (mss 1448)
    (ssthresh 0)
    (credit 0)                          # bytes acknowledged since the window grew last
    (recover_us 0)                      # losses before this time belong to the last reduction
    (rtt 100000))
(when true
    (:= rtt (if (&& (!= Flow.rtt_sample_us +infinity) (> Flow.rtt_sample_us 0)) Flow.rtt_sample_us))
    (:= ssthresh (if (== ssthresh 0) (max Cwnd (* 10 mss))))
    (fallthrough))
(when Flow.was_timeout
    (:= ssthresh (max (/ Cwnd 2) (* 2 mss)))
    (:= Cwnd mss)
    (:= credit 0)
    (:= recover_us (+ Ack.now rtt))
    (fallthrough))
(when (&& (> Ack.lost_pkts_sample 0) (&& (>= Ack.now recover_us) (not Flow.was_timeout)))
    (:= ssthresh (max (/ Cwnd 2) (* 2 mss)))
    (:= Cwnd ssthresh)
    (:= credit 0)
    (:= recover_us (+ Ack.now rtt))
    (fallthrough))
(when (&& (< Cwnd ssthresh) (== Ack.lost_pkts_sample 0))
    (:= Cwnd (+ Cwnd Ack.bytes_acked))
    (fallthrough))
(when (&& (>= Cwnd ssthresh) (== Ack.lost_pkts_sample 0))
    (:= credit (+ credit Ack.bytes_acked))
    (fallthrough))
(when (> credit Cwnd)
    (:= credit (- credit Cwnd))
    (:= Cwnd (+ Cwnd mss))
    (fallthrough))
(when (> Rate 0)
    (:= Rate (/ (* Cwnd 2000000) rtt)))
