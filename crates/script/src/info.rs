//! `struct tcp_info` of Linux: names, offsets and sizes of its fields (`linux/tcp.h`).

/// Length in bytes of a struct with all fields below.
pub(crate) const LEN: usize = 280;

/// Each field: name behind `tcpi_`, offset in bytes, size in bytes.
const FIELDS: &[(&str, usize, usize)] = &[
    ("state", 0, 1),
    ("ca_state", 1, 1),
    ("retransmits", 2, 1),
    ("probes", 3, 1),
    ("backoff", 4, 1),
    ("options", 5, 1),
    ("rto", 8, 4),
    ("ato", 12, 4),
    ("snd_mss", 16, 4),
    ("rcv_mss", 20, 4),
    ("unacked", 24, 4),
    ("sacked", 28, 4),
    ("lost", 32, 4),
    ("retrans", 36, 4),
    ("fackets", 40, 4),
    ("last_data_sent", 44, 4),
    ("last_ack_sent", 48, 4),
    ("last_data_recv", 52, 4),
    ("last_ack_recv", 56, 4),
    ("pmtu", 60, 4),
    ("rcv_ssthresh", 64, 4),
    ("rtt", 68, 4),
    ("rttvar", 72, 4),
    ("snd_ssthresh", 76, 4),
    ("snd_cwnd", 80, 4),
    ("advmss", 84, 4),
    ("reordering", 88, 4),
    ("rcv_rtt", 92, 4),
    ("rcv_space", 96, 4),
    ("total_retrans", 100, 4),
    ("pacing_rate", 104, 8),
    ("max_pacing_rate", 112, 8),
    ("bytes_acked", 120, 8),
    ("bytes_received", 128, 8),
    ("segs_out", 136, 4),
    ("segs_in", 140, 4),
    ("notsent_bytes", 144, 4),
    ("min_rtt", 148, 4),
    ("data_segs_in", 152, 4),
    ("data_segs_out", 156, 4),
    ("delivery_rate", 160, 8),
    ("busy_time", 168, 8),
    ("rwnd_limited", 176, 8),
    ("sndbuf_limited", 184, 8),
    ("delivered", 192, 4),
    ("delivered_ce", 196, 4),
    ("bytes_sent", 200, 8),
    ("bytes_retrans", 208, 8),
    ("dsack_dups", 216, 4),
    ("reord_seen", 220, 4),
    ("rcv_ooopack", 224, 4),
    ("snd_wnd", 228, 4),
    ("rcv_wnd", 232, 4),
    ("rehash", 236, 4),
    ("total_rto", 240, 2),
    ("total_rto_recoveries", 242, 2),
    ("total_rto_time", 244, 4),
    ("received_ce", 248, 4),
    ("delivered_e1_bytes", 252, 4),
    ("delivered_e0_bytes", 256, 4),
    ("delivered_ce_bytes", 260, 4),
    ("received_e1_bytes", 264, 4),
    ("received_e0_bytes", 268, 4),
    ("received_ce_bytes", 272, 4),
    ("accecn_fail_mode", 276, 2),
    ("accecn_opt_seen", 278, 2),
];

/// Name and value of each field that lies completely in `bytes`.
pub(crate) fn fields(bytes: &[u8]) -> impl Iterator<Item = (String, u64)> + '_ {
    let whole = FIELDS.iter().filter_map(|(name, offset, size)| {
        let field = bytes.get(*offset..offset + size)?;
        let mut value = [0; 8];
        value.get_mut(..*size)?.copy_from_slice(field);
        // Machines for this are little-endian, so the bytes of a field are in little-endian order.
        Some((format!("tcpi_{name}"), u64::from_le_bytes(value)))
    });
    // Bit fields: two window shifts in one byte, flags in the next.
    let bits = [
        ("tcpi_snd_wscale", 6, 0, 0x0F),
        ("tcpi_rcv_wscale", 6, 4, 0x0F),
        ("tcpi_delivery_rate_app_limited", 7, 0, 0x01),
    ];
    whole.chain(bits.into_iter().filter_map(|(name, at, shift, mask)| {
        bytes.get(at).map(|byte| (name.to_owned(), u64::from(byte >> shift & mask)))
    }))
}

#[cfg(test)]
mod tests {
    use super::{FIELDS, LEN, fields};

    #[test]
    fn fields_do_not_overlap_and_a_short_answer_leaves_out_the_rest() {
        let mut end = 8;
        for (name, offset, size) in FIELDS.iter().skip(6) {
            assert_eq!(*offset, end, "{name}");
            end = offset + size;
        }
        assert_eq!(end, LEN);
        let short: Vec<_> = fields(&[1, 0, 0, 0, 0, 0, 0x87, 1, 9, 0, 0, 0, 7]).collect();
        assert!(short.contains(&("tcpi_rto".into(), 9)) && short.contains(&("tcpi_snd_wscale".into(), 7)));
        assert!(short.contains(&("tcpi_rcv_wscale".into(), 8)));
        assert!(!short.iter().any(|(name, _)| name == "tcpi_ato"));
    }
}
