//! Address conflicts (RFC 5227 section 2.4): when another station claims one of our addresses, the link is told once that the address is
//! ours, and the service gets an event. The address is kept: it was configured, and connections use it.

use crate::{Count, Event, SlowPath};
use base::{Duration, Instant};
use std::net::IpAddr;
use wire::{DropReason, Icmpv6Message, IpPacket, MacAddr};

/// RFC 5227: DEFEND_INTERVAL. Without it, two stations that answer each other would fill the link.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// When each of our addresses was last defended; one entry per address ever defended.
#[derive(Debug, Default)]
pub(crate) struct Defences(Vec<(IpAddr, Instant)>);

impl Defences {
    /// True when `addr` may be defended at `now`; then remembers `now`.
    fn begin(&mut self, now: Instant, addr: IpAddr) -> bool {
        let Some((_, last)) = self.0.iter_mut().find(|(known, _)| *known == addr) else {
            self.0.push((addr, now));
            return true;
        };
        let is_due = last.plus(DEFEND_INTERVAL) <= now;
        if is_due {
            *last = now;
        }
        is_due
    }
}

impl SlowPath {
    /// Handles neighbour discovery sent to a group from an address of ours: another station may advertise the address as its own.
    pub(crate) fn on_own_address(&mut self, now: Instant, core: u8, ip: &IpPacket, frame: &[u8]) {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (ip.src, ip.dst) else { return };
        match Icmpv6Message::parse(&src, &dst, ip.payload.of(frame)) {
            Ok(Icmpv6Message::NeighborAdvertisement { target, target_link, overrides, .. }) => {
                self.on_advertisement(now, core, target, target_link, overrides);
            }
            _ => self.counters.drop(DropReason::LandAttack),
        }
    }

    /// Station `by` claims that `addr`, one of ours, is its own.
    pub(crate) fn on_conflict(&mut self, now: Instant, core: u8, addr: IpAddr, by: MacAddr) {
        self.counters.add(Count::AddressConflicts);
        if self.defences.begin(now, addr) {
            self.announce_address(core, addr);
            self.events.push_back(Event::AddressConflict { addr, by });
        }
    }
}
