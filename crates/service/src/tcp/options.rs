//! Socket options on their way to the slow path. The numbers come from an application; each is brought into the range that Linux accepts.

use crate::memory::slot_key::SlotKey;
use crate::registry::{Answer, Registry};
use base::Duration;
use congestion::Algorithm;
use control::{Congestion, SocketOptions};
use slowpath::{FlowOptions, Keepalive, Linger2};
use std::num::NonZeroU64;

/// Most seconds that Linux keeps a connection in FIN-WAIT-2 because of `TCP_LINGER2`.
const LINGER2_MAX: u64 = 120;
/// Most keepalive probes (`TCP_KEEPCNT`) and SYNs (`TCP_SYNCNT`) that Linux accepts.
const COUNT_MAX: u8 = 127;

/// Converts options into the slow path's form; 0 stands for an option that is not set.
pub fn of_flow(told: &SocketOptions) -> FlowOptions {
    let default = Keepalive::default();
    let seconds =
        |s: u16, default: Duration| if s == 0 { default } else { Duration::from_secs(u64::from(s)) };
    let keepalive = Keepalive {
        idle: seconds(told.keep_idle, default.idle),
        interval: seconds(told.keep_interval, default.interval),
        count: if told.keep_count == 0 { default.count } else { told.keep_count.min(COUNT_MAX) },
    };
    FlowOptions {
        algorithm: match told.congestion {
            Congestion::Unset => None,
            Congestion::Reno => Some(Algorithm::Reno),
            Congestion::Cubic => Some(Algorithm::Cubic),
            Congestion::Dctcp => Some(Algorithm::Dctcp),
        },
        keepalive: told.keep_alive.then_some(keepalive),
        user_timeout: (told.user_timeout > 0).then(|| Duration::from_ms(u64::from(told.user_timeout))),
        max_segment: (told.max_segment > 0).then_some(told.max_segment),
        receive_buffer: (told.receive_buffer > 0).then_some(told.receive_buffer),
        max_pacing_rate: NonZeroU64::new(told.max_pacing_rate),
        linger2: match told.linger2 {
            0 => None,
            ..0 => Some(Linger2::Reset),
            s => Some(Linger2::Wait(Duration::from_secs((s as u64).min(LINGER2_MAX)))),
        },
        syn_retries: (told.syn_count > 0).then_some(told.syn_count.min(COUNT_MAX)),
        defer_accept: (told.defer_accept > 0).then(|| Duration::from_secs(u64::from(told.defer_accept))),
        // The lowest two bits are ECN's: TCP sets them, not the application.
        dscp_v4: told.tos >> 2,
        dscp_v6: told.traffic_class >> 2,
        may_fragment: told.may_fragment,
    }
}

impl Registry {
    /// Sets options of a socket. A slot that the socket has left meanwhile is no offence.
    pub fn set_options(&mut self, id: u32, region: u32, slot: u32, told: &SocketOptions) -> Answer {
        let options = of_flow(told);
        if let Some(listener) = self.listeners.all.get(&region) {
            if self.accepts(id, listener) {
                self.set_listener_options(region, options);
            }
            return Answer::Silent;
        }
        let (Some(a), Some(r)) = (self.applications.get(&id), self.regions.get(&region)) else {
            return Answer::Silent;
        };
        // A forked child may use its parent's connections.
        if !a.descends_from(r.owner) {
            return Answer::Offence(format!("options for region {region}, which is a stranger's"));
        }
        let (key, _) = self.origin_of(SlotKey { region, slot });
        let Some(index) = self.regions.get(&key.region).map(|r| r.memory.index) else {
            return Answer::Silent;
        };
        self.tcp.slow.set_slot_options(self.tcp.now(), index, key.slot, &options);
        Answer::Silent
    }

    fn set_listener_options(&mut self, id: u32, options: FlowOptions) {
        let Some(listener) = self.listeners.all.get_mut(&id) else { return };
        let before = std::mem::replace(&mut listener.options, options);
        if before.defer_accept != options.defer_accept {
            // Direct connectors do not wait for first bytes.
            listener.revoke();
        }
        self.tcp_options(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_numbers_stay_within_what_linux_takes() {
        let told = SocketOptions {
            keep_alive: true,
            keep_idle: u16::MAX,
            keep_interval: u16::MAX,
            keep_count: u8::MAX,
            user_timeout: u32::MAX,
            max_segment: 1,
            receive_buffer: 1,
            max_pacing_rate: u64::MAX,
            linger2: i16::MAX,
            syn_count: u8::MAX,
            defer_accept: u16::MAX,
            congestion: Congestion::Reno,
            tos: u8::MAX,
            traffic_class: u8::MAX,
            may_fragment: true,
            reuse_address: true,
        };
        let options = of_flow(&told);
        assert_eq!(options.keepalive.map(|k| k.count), Some(127));
        assert_eq!(options.syn_retries, Some(127));
        assert_eq!((options.dscp_v4, options.dscp_v6), (63, 63));
        assert_eq!(options.linger2, Some(Linger2::Wait(Duration::from_secs(120))));
        assert_eq!(of_flow(&SocketOptions { linger2: i16::MIN, ..told }).linger2, Some(Linger2::Reset));
        assert_eq!(of_flow(&SocketOptions::default()), FlowOptions::default());
    }
}
