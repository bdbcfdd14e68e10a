//! The host that a script runs against, configured by the script's settings.

use crate::settings::Settings;
use crate::sysctl::{buffers, low_mark};
use base::{Duration, Instant};
use port::Capabilities;
use sim::{Host, HostConfig, SynCookies};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::MacAddr;

/// Ethernet address of the host.
pub const HOST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Ethernet address of all other machines on the link.
pub const OTHERS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Seed of the host's secrets: two runs of a script are equal.
const SEED: u64 = 0x0705_1980;

/// Builds the host for `settings`, starting at `now`.
pub(crate) fn host(settings: &Settings, now: Instant) -> Host {
    let ends = settings.ends();
    let prefix = if ends.local.is_ipv4() { 16 } else { 48 };
    let mut config = HostConfig::new(HOST.0, &[(ends.local, prefix)], SEED);
    let plain = Capabilities::plain(settings.mtu, HOST.0);
    config.capabilities = if settings.shell.is_segmentation_off { plain } else { plain.with_tso() };
    config.slow.mtu = settings.mtu;
    match settings.gateway.filter(|gateway| *gateway != ends.local) {
        Some(IpAddr::V4(gateway)) => config.slow.gateway_v4 = Some(gateway),
        Some(IpAddr::V6(gateway)) => config.slow.gateway_v6 = Some(gateway),
        None => {
            let [a, b, _, _] = match ends.local {
                IpAddr::V4(local) => local.octets(),
                IpAddr::V6(_) => [192, 168, 0, 0],
            };
            config.slow.gateway_v4 = Some(Ipv4Addr::new(a, b, 255, 254));
            config.slow.gateway_v6 = Some(Ipv6Addr::new(0xFD3D, 0xFA7B, 0xD17D, 0x8888, 0, 0, 0, 1));
        }
    }
    // The default of Linux's `tcp_mtu_probing` is 0.
    config.slow.black_hole_detection = false;
    for (name, value) in &settings.shell.sysctls {
        set_sysctl(&mut config, name.strip_prefix("net.ipv4.").unwrap_or(name), value);
    }
    Host::new(&config, now)
}

/// Changes a sysctl while the host runs. False when this host cannot.
pub(crate) fn change(host: &mut Host, name: &str, value: &str) -> bool {
    let is_ecn = name == "net.ipv4.tcp_ecn";
    if is_ecn {
        host.set_ecn(value != "0", value == "1");
    }
    is_ecn
}

/// Configures a host by a sysctl below `net.ipv4.`; its value must be one that `is_understood` accepts.
pub fn set_sysctl(config: &mut HostConfig, name: &str, value: &str) {
    let number = value.parse::<u64>().unwrap_or(0);
    let count = u8::try_from(number).unwrap_or(u8::MAX);
    let (shared, slow) = (&mut config.shared, &mut config.slow);
    match name {
        "tcp_sack" => shared.sack = number != 0,
        "tcp_timestamps" => shared.timestamps = number != 0,
        "tcp_window_scaling" => shared.window_scaling = number != 0,
        // 2: accept ECN when the peer asks, but never ask for it.
        "tcp_ecn" => {
            shared.ecn = number != 0;
            slow.asks_ecn = number == 1;
        }
        "tcp_mtu_probing" => slow.black_hole_detection = number != 0,
        "tcp_syn_retries" => slow.syn_retries = count,
        "tcp_synack_retries" => slow.syn_ack_retries = count,
        "tcp_retries2" => slow.retries = count,
        // On Linux, 0 means 8.
        "tcp_orphan_retries" => slow.orphan_retries = if count == 0 { 8 } else { count },
        "tcp_fin_timeout" => slow.fin_wait_2 = Duration::from_secs(number),
        "tcp_max_syn_backlog" => slow.half_open_per_listener = number as usize,
        "tcp_syncookies" => {
            slow.syn_cookies = match number {
                0 => SynCookies::Never,
                1 => SynCookies::UnderPressure,
                _ => SynCookies::Always,
            }
        }
        "tcp_max_tw_buckets" => slow.time_wait_max = number as usize,
        "tcp_rto_min_us" => shared.rto_min = Duration::from_us(number),
        "tcp_rto_max_ms" => shared.rto_max = Duration::from_ms(number),
        "tcp_early_retrans" => shared.tail_probes = number != 0,
        "tcp_min_tso_segs" => shared.burst_segments_min = u16::from(count.max(1)),
        "tcp_slow_start_after_idle" => shared.slow_start_after_idle = number == 1,
        "tcp_congestion_control" => {
            if let Ok(algorithm) = value.parse() {
                slow.algorithm = algorithm;
            }
        }
        "tcp_rmem" => {
            if let Some([_, first, largest]) = buffers(value) {
                // Rings have sizes of powers of two: take the largest that fits. Linux offers the window shift that its largest buffer
                // needs.
                let power = |bytes: u32| 1 << bytes.max(4096).ilog2();
                shared.receive_buffer_max = power(largest).min(base::limits::RING_MAX);
                shared.receive_buffer_initial =
                    shared.receive_buffer_initial.min(power(first)).min(shared.receive_buffer_max);
            }
        }
        "tcp_wmem" => {
            if let Some([_, first, largest]) = buffers(value) {
                (shared.send_buffer_initial, shared.send_buffer_max) = (first, largest.max(first));
            }
        }
        "tcp_notsent_lowat" => config.not_sent_low = low_mark(value).unwrap_or(u32::MAX),
        _ => {}
    }
}
