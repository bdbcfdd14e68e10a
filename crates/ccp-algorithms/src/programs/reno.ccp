# Reno (RFC 5681): slow start, one segment more for each window that is acknowledged, half after a loss, one segment after a timeout.
(def
    (Report (volatile lost 0) (volatile timeout false) (cwnd 0))
    (mss 1448)
    (ssthresh +infinity)
    (credit 0)                          # bytes acknowledged since the window grew last
    (is_calm true)                      # the acknowledgement that ends a recovery is of old data, and lets nothing grow
    # The window grows only while it is used (RFC 7661; RFC 9438 section 5.8): `flight` is the most bytes in flight in a round trip, `round` what
    # of that is not acknowledged yet.
    (flight 0)
    (round 0)
    # Of what was under way at the last reduction, the bytes that are not acknowledged yet: before they are, losses belong to that reduction,
    # and the window does not grow.
    (recover 0))
(when true
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= is_calm (&& (== recover 0) (== Ack.lost_pkts_sample 0)))
    (:= recover (- recover (min recover Ack.bytes_acked)))
    (:= out (+ Flow.bytes_in_flight Ack.bytes_acked))
    (:= round (- round (min round Ack.bytes_acked)))
    (:= flight (max flight out))
    (:= flight (if (== round 0) out))
    (:= round (if (== round 0) out))
    # As in Linux: slow start may open the window to twice that, later growth to an eighth more, at least a segment.
    (:= is_used (> (+ flight (max mss (/ Cwnd 8))) Cwnd))
    (:= is_used (if (< Cwnd ssthresh) (> flight (/ Cwnd 2))))
    (fallthrough))
(when (|| Flow.was_timeout (&& (> Ack.lost_pkts_sample 0) (== recover 0)))
    (:= ssthresh (max (/ Cwnd 2) (* 2 mss)))
    (:= Cwnd ssthresh)
    (:= credit 0)
    (:= recover (+ Flow.bytes_in_flight (+ Ack.bytes_misordered (* mss Ack.lost_pkts_sample))))
    (fallthrough))
(when Flow.was_timeout
    (:= Report.timeout true)
    (:= recover 0)
    (:= Cwnd mss)
    (fallthrough))
(when (&& (&& is_calm is_used) (< Cwnd ssthresh))
    (:= Cwnd (+ Cwnd Ack.bytes_acked))
    (fallthrough))
(when (&& (&& is_calm is_used) (>= Cwnd ssthresh))
    (:= credit (+ credit Ack.bytes_acked))
    (fallthrough))
(when (>= credit Cwnd)
    (:= credit (- credit Cwnd))
    (:= Cwnd (+ Cwnd mss))
    (fallthrough))
(when (> Ack.lost_pkts_sample 0)
    (:= Report.cwnd Cwnd)
    (report))
