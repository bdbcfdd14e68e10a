//! The effect of Linux's sysctls on this host. A value is understood when the host can behave like that, or already does.

use congestion::Algorithm;

/// The effect of one sysctl.
enum Means {
    /// `crate::machine` configures the host with it. The value must be one of these numbers; an empty list allows any number.
    Set(&'static [u64]),
    /// The host behaves like Linux with one of these values.
    Is(&'static [&'static str]),
    /// It controls something that the host does not have: any value is accepted and has no effect.
    Nothing,
    Buffers,
    LowMark,
    CongestionControl,
}

/// Sysctls by their name below `net.ipv4.`.
const IPV4: &[(&str, Means)] = &[
    ("tcp_sack", Means::Set(&[0, 1])),
    ("tcp_timestamps", Means::Set(&[0, 1, 2])),
    ("tcp_window_scaling", Means::Set(&[0, 1])),
    ("tcp_ecn", Means::Set(&[0, 1, 2])),
    ("tcp_syn_retries", Means::Set(&[])),
    ("tcp_synack_retries", Means::Set(&[])),
    ("tcp_retries2", Means::Set(&[])),
    ("tcp_orphan_retries", Means::Set(&[])),
    ("tcp_fin_timeout", Means::Set(&[])),
    ("tcp_max_syn_backlog", Means::Set(&[])),
    ("tcp_syncookies", Means::Set(&[0, 1, 2])),
    ("tcp_max_tw_buckets", Means::Set(&[])),
    ("tcp_rto_min_us", Means::Set(&[])),
    ("tcp_rto_max_ms", Means::Set(&[])),
    ("tcp_rmem", Means::Buffers),
    ("tcp_wmem", Means::Buffers),
    ("tcp_congestion_control", Means::CongestionControl),
    ("tcp_slow_start_after_idle", Means::Set(&[0, 1])),
    ("tcp_dsack", Means::Is(&["1"])),
    ("tcp_fack", Means::Is(&["0"])),
    ("tcp_frto", Means::Is(&["1", "2"])),
    ("tcp_recovery", Means::Is(&["1"])),
    ("tcp_early_retrans", Means::Set(&[0, 3, 4])),
    ("tcp_reordering", Means::Is(&["3"])),
    // 1: black hole detection. 2 would probe without a reason.
    ("tcp_mtu_probing", Means::Set(&[0, 1])),
    ("tcp_notsent_lowat", Means::LowMark),
    ("tcp_keepalive_time", Means::Is(&["7200"])),
    ("tcp_keepalive_intvl", Means::Is(&["75"])),
    ("tcp_keepalive_probes", Means::Is(&["9"])),
    ("tcp_abort_on_overflow", Means::Is(&["0"])),
    ("tcp_comp_sack_nr", Means::Is(&["0"])),
    ("tcp_shrink_window", Means::Is(&["0"])),
    ("tcp_ecn_option", Means::Nothing),
    ("tcp_base_mss", Means::Nothing),
    ("tcp_min_snd_mss", Means::Nothing),
    ("tcp_fastopen", Means::Nothing),
    ("tcp_fastopen_key", Means::Nothing),
    ("tcp_no_metrics_save", Means::Nothing),
    ("tcp_tso_win_divisor", Means::Nothing),
    ("tcp_min_tso_segs", Means::Set(&[])),
    ("tcp_tso_rtt_log", Means::Nothing),
    ("tcp_limit_output_bytes", Means::Nothing),
    ("tcp_autocorking", Means::Nothing),
    ("tcp_pacing_ss_ratio", Means::Nothing),
    ("tcp_pacing_ca_ratio", Means::Nothing),
    ("tcp_comp_sack_delay_ns", Means::Nothing),
    ("tcp_comp_sack_slack_ns", Means::Nothing),
    ("tcp_backlog_ack_defer", Means::Nothing),
    ("ip_forward", Means::Nothing),
];

/// The names of all sysctls that have an understood value.
pub fn names() -> impl Iterator<Item = String> {
    IPV4.iter().map(|(name, _)| format!("net.ipv4.{name}"))
}

/// True when the host can behave, or already behaves, like Linux with `name` set to `value`.
#[must_use]
pub fn is_understood(name: &str, value: &str) -> bool {
    let Some(name) = name.strip_prefix("net.ipv4.") else {
        // Limits of buffer sizes, which scripts raise so that they have no effect.
        return matches!(name, "net.core.rmem_max" | "net.core.wmem_max" | "net.core.somaxconn");
    };
    let Some((_, means)) = IPV4.iter().find(|(known, _)| *known == name) else { return false };
    match means {
        Means::Set(values) => value.parse().is_ok_and(|n| values.is_empty() || values.contains(&n)),
        Means::Is(values) => values.contains(&value),
        Means::Nothing => true,
        Means::Buffers => buffers(value).is_some(),
        Means::LowMark => low_mark(value).is_some(),
        Means::CongestionControl => value.parse::<Algorithm>().is_ok(),
    }
}

/// Minimum, initial and maximum size in bytes of `tcp_rmem` or `tcp_wmem`.
pub(crate) fn buffers(value: &str) -> Option<[u32; 3]> {
    let sizes: Vec<u32> = value.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    sizes.try_into().ok()
}

/// The value of `tcp_notsent_lowat` in bytes.
pub(crate) fn low_mark(value: &str) -> Option<u32> {
    if value == "-1" { Some(u32::MAX) } else { value.parse().ok() }
}

/// True when a change of `name` has an effect on this host.
pub(crate) fn matters(name: &str) -> bool {
    let name = name.strip_prefix("net.ipv4.").unwrap_or(name);
    IPV4.iter().any(|(known, means)| *known == name && !matches!(means, Means::Nothing))
}
