# Cubic (RFC 9438): after a loss report the agent sets `w_max` (bytes), `k_ms` = 1000 cbrt((w_max - 0.7 cwnd) / 0.4 mss), and `is_waiting` to 0.
(def
    (Report (volatile lost 0) (volatile timeout false) (prior 0))
    (mss 1448)
    (ssthresh +infinity)
    (w_max 0)
    (k_ms 0)
    (is_waiting false)
    (est 0)                             # Reno's window, in thousandths of a byte (section 4.3)
    (is_calm true)                      # the acknowledgement that ends a recovery is of old data, and lets nothing grow
    # The window grows only while it is used (RFC 7661; RFC 9438 section 5.8): `flight` is the most bytes in flight in a round trip, `round` what
    # of that is not acknowledged yet.
    (flight 0)
    (round 0)
    (seen 0)                            # the time of the curve at the run before
    # Of what was under way at the last reduction, the bytes that are not acknowledged yet: before they are, losses belong to that reduction,
    # and the window does not grow.
    (recover 0)
    (rtt 100000)
    (alpha 529)                         # 3 (1 - 0.7) / (1 + 0.7), in thousandths
    (target 0))
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
    (:= Micros (if (not is_used) seen)) # the curve stands still meanwhile (section 5.8)
    (:= rtt (if (!= Flow.rtt_sample_us +infinity) Flow.rtt_sample_us))
    (fallthrough))
(when (|| Flow.was_timeout (&& (> Ack.lost_pkts_sample 0) (== recover 0)))
    (:= Report.prior Cwnd)
    (:= ssthresh (max (* 0.7 Cwnd) (* 2 mss)))
    (:= w_max Cwnd)
    (:= Cwnd ssthresh)
    (:= est (* 1000 Cwnd))
    (:= alpha 529)
    (:= is_waiting true)
    (:= recover (+ Flow.bytes_in_flight (+ Ack.bytes_misordered (* mss Ack.lost_pkts_sample))))
    (reset)                             # the time of the curve
    (report)
    (fallthrough))
(when Flow.was_timeout
    (:= Report.timeout true)
    (:= recover 0)
    (:= is_waiting false)
    (:= k_ms 0)
    (:= w_max ssthresh)
    (:= Cwnd mss)
    (fallthrough))
(when (&& (&& is_calm is_used) (< Cwnd ssthresh))
    (:= Cwnd (+ Cwnd Ack.bytes_acked))
    (reset)
    (fallthrough))
(when (&& (&& is_calm is_used) (>= Cwnd ssthresh))
    (:= alpha (if (>= est (* 1000 Report.prior)) 1000))
    (:= est (+ est (/ (* alpha (* Ack.bytes_acked mss)) Cwnd)))
    (:= Cwnd (max Cwnd (/ est 1000)))
    (:= ahead (max k_ms (/ (+ Micros rtt) 1000)))
    (:= d (- ahead k_ms))
    (:= left (- k_ms (min k_ms (/ (+ Micros rtt) 1000))))
    (:= target (+ w_max (/ (* (* 0.4 mss) (* d (* d d))) 1000000000)))
    (:= target (- target (min target (/ (* (* 0.4 mss) (* left (* left left))) 1000000000))))
    # A window grows to the curve within a round trip: by its part of what is missing, at most by half (section 4.2).
    (:= target (max Cwnd (min target (+ Cwnd (/ Cwnd 2)))))
    (:= target (* Ack.bytes_acked (- target Cwnd)))
    (:= target (if is_waiting 0))
    (:= Cwnd (+ Cwnd (/ target Cwnd)))
    (fallthrough))
(when true
    (:= seen Micros))
