//! The machine under test and its network, in virtual time: IP packets in and out. Every Ethernet address that the machine asks for is
//! answered.

use crate::settings::{Settings, Sysctls, default_local, prefix_len, sysctls};
use base::{Duration, Instant};
use sim::{Fd, Host};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::{EtherType, EthernetHeader};

/// The tool's first time: not 0, so that no clock of the machine begins at 0.
const EPOCH: Instant = Instant::from_ns(1_000_000_000_000);
/// Iterations at one instant after which time goes on, in case host and network never come to rest.
const ROUNDS_MAX: u32 = 10_000;

/// An IP packet that the machine has sent.
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) packet: Vec<u8>,
}

/// The machine, its clock, and the packets that it has sent.
pub(crate) struct Stack {
    settings: Settings,
    /// The sysctls before the script ran.
    before: Sysctls,
    /// The machine, made at the first `socket` call: then the script has set the sysctls.
    host: Option<Host>,
    now: Instant,
    sent: VecDeque<Sent>,
}

impl Stack {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, before: sysctls(), host: None, now: EPOCH, sent: VecDeque::new() }
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// The machine; makes it if there is none.
    pub(crate) fn host(&mut self) -> &mut Host {
        let Self { settings, before, host, now, .. } = self;
        host.get_or_insert_with(|| {
            let (config, ignored) = settings.host(before, &sysctls());
            for sysctl in ignored {
                eprintln!("towpath: the stack cannot be made to obey the sysctl {sysctl}");
            }
            Host::new(&config, *now)
        })
    }

    /// Adds an address to the machine if it does not have it.
    pub(crate) fn own(&mut self, address: IpAddr) {
        let address = address.to_canonical();
        let host = self.host();
        if !address.is_unspecified() && !address.is_multicast() && !host.slow().routes().owns(address) {
            host.add_address(address, prefix_len(address));
        }
    }

    /// Adds a default address of this family if the machine has none.
    pub(crate) fn own_any(&mut self, is_v6: bool) {
        if !self.host().slow().routes().own().iter().any(|own| own.addr.is_ipv6() == is_v6) {
            self.own(default_local(is_v6));
        }
    }

    /// Delivers an IP packet to the machine, which also gets the packet's destination address. False if it is not an IP packet.
    pub(crate) fn inject(&mut self, packet: &[u8]) -> bool {
        let Some((ethertype, dst)) = destination(packet) else { return false };
        self.own(dst);
        let mut frame = vec![0; EthernetHeader::LEN];
        let header = EthernetHeader { dst: script::HOST, src: script::OTHERS, ethertype, vlan: None };
        if header.emit(&mut frame).is_err() {
            return false;
        }
        frame.extend_from_slice(packet);
        for piece in crate::cut::cut(frame, self.settings.mss) {
            self.host().inject(&piece);
        }
        self.settle();
        true
    }

    /// The oldest sent packet that was not taken yet.
    pub(crate) fn next_sent(&mut self) -> Option<Sent> {
        self.sent.pop_front()
    }

    pub(crate) fn has_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    /// True if a socket's readiness may have changed since the last call.
    pub(crate) fn take_news(&mut self) -> bool {
        self.host.as_mut().is_some_and(Host::take_news)
    }

    /// Readiness of a socket (epoll's bits) and its pulse, which changes with every received byte or connection (see `sim::Host::pulse`).
    pub(crate) fn readiness(&self, fd: Fd) -> (u32, (u64, u32)) {
        self.host.as_ref().map_or((0, (0, 0)), |host| (host.readiness(fd), host.pulse(fd)))
    }

    /// Runs the machine until nothing more happens at this instant.
    pub(crate) fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let Some(host) = &mut self.host else { return };
            host.run(self.now);
            let frames: Vec<_> = std::iter::from_fn(|| host.next_frame()).collect();
            if frames.is_empty() && host.next_deadline() > self.now {
                return;
            }
            for frame in frames {
                self.take(&frame);
            }
        }
        // The machine did not come to rest: let a microsecond pass.
        self.now = self.now.plus(Duration::from_us(1));
    }

    /// Advances to the next deadline, or to `until` if that is earlier. False if `until` was reached before.
    pub(crate) fn step(&mut self, until: Instant) -> bool {
        if self.now >= until {
            return false;
        }
        let next = self.host.as_ref().map_or(until, |host| host.next_deadline().min(until));
        self.now = next.max(self.now.plus(Duration::from_ns(1)));
        self.settle();
        true
    }

    fn take(&mut self, frame: &[u8]) {
        if let Some(answer) = sim::neighbour(frame, script::OTHERS) {
            self.host().inject(&answer);
        } else if let Some(packet) = frame.get(EthernetHeader::LEN..)
            && destination(packet).is_some_and(|(_, dst)| !dst.is_multicast())
            && is_ip(frame)
        {
            self.sent.push_back(Sent { at: self.now, packet: packet.to_vec() });
        }
    }
}

fn is_ip(frame: &[u8]) -> bool {
    matches!(frame.get(12..14), Some([0x08, 0x00] | [0x86, 0xDD]))
}

/// The Ethernet type and the destination address of an IP packet.
fn destination(packet: &[u8]) -> Option<(EtherType, IpAddr)> {
    match packet.first()? >> 4 {
        4 => {
            let dst: [u8; 4] = *packet.get(16..20)?.first_chunk()?;
            Some((EtherType::IPV4, Ipv4Addr::from(dst).into()))
        }
        6 => {
            let dst: [u8; 16] = *packet.get(24..40)?.first_chunk()?;
            Some((EtherType::IPV6, Ipv6Addr::from(dst).into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::destination;

    #[test]
    fn only_whole_ip_headers_have_a_destination() {
        let mut v4 = [0; 20];
        v4[0] = 0x45;
        v4[16..].copy_from_slice(&[192, 168, 0, 1]);
        assert_eq!(destination(&v4).map(|(_, ip)| ip.to_string()), Some("192.168.0.1".into()));
        assert_eq!(destination(&v4[..19]), None);
        assert_eq!(destination(&[0x60; 39]), None);
        assert_eq!(destination(&[]), None);
    }
}
