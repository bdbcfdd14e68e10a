# Reno without an agent (RFC 5681), for a flow with a failed algorithm. It goes on from the present window, in congestion avoidance from ten
# segments on. A flow that is paced stays paced, at two windows for each round trip, so that an old rate does not bind for ever.
(def
    (mss 1448)
    (ssthresh 0)
    (credit 0)                          # bytes acknowledged since the window grew last
    # The window grows only while it is used (RFC 7661; RFC 9438 section 5.8): `flight` is the most bytes in flight in a round trip, `round` what
    # of that is not acknowledged yet.
    (flight 0)
    (round 0)
    (recover_us 0)                      # losses before this time belong to the last reduction
    (rtt 100000))
(when true
    (:= rtt (if (&& (!= Flow.rtt_sample_us +infinity) (> Flow.rtt_sample_us 0)) Flow.rtt_sample_us))
    (:= ssthresh (if (== ssthresh 0) (max Cwnd (* 10 mss))))
    (:= out (+ Flow.bytes_in_flight Ack.bytes_acked))
    (:= round (- round (min round Ack.bytes_acked)))
    (:= flight (max flight out))
    (:= flight (if (== round 0) out))
    (:= round (if (== round 0) out))
    # As in Linux: slow start may open the window to twice that, later growth to an eighth more, at least a segment.
    (:= is_used (> (+ flight (max mss (/ Cwnd 8))) Cwnd))
    (:= is_used (if (< Cwnd ssthresh) (> flight (/ Cwnd 2))))
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
(when (&& (&& is_used (< Cwnd ssthresh)) (== Ack.lost_pkts_sample 0))
    (:= Cwnd (+ Cwnd Ack.bytes_acked))
    (fallthrough))
(when (&& (&& is_used (>= Cwnd ssthresh)) (== Ack.lost_pkts_sample 0))
    (:= credit (+ credit Ack.bytes_acked))
    (fallthrough))
(when (> credit Cwnd)
    (:= credit (- credit Cwnd))
    (:= Cwnd (+ Cwnd mss))
    (fallthrough))
(when (> Rate 0)
    (:= Rate (/ (* Cwnd 2000000) rtt)))
