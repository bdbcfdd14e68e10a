//! Selects the frames that a socket gets, with a program for the kernel's classic packet filter (Documentation/networking/filter.rst of
//! Linux).
//!
//! The interface belongs to the kernel: most of its frames are for the kernel's own stack, and each would cost a copy, a wake-up and a
//! check. The filter runs before the copy, and answers the questions that need no state: is the frame for us, and is its protocol one
//! that we use?
//!
//! ```text
//!   tagged with another VLAN      --> no: that is another link
//!   to our MAC: ARP about us
//!               TCP, ICMP, fragments to an address of ours (offloads of all of these have words in a virtio-net header)
//!   to a group: ARP about us
//!               ICMPv6 to the solicited-node group of an address of ours; neighbour advertisements to all nodes
//!   ARP about us: an address of ours is asked for, or claimed; or a neighbour announces its own
//! ```

use crate::sys;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

const ARP: u32 = 0x0806;
pub(crate) const V4: u32 = 0x0800;
pub(crate) const V6: u32 = 0x86DD;
pub(crate) const TCP: u32 = 6;
const ICMP: u32 = 1;
const ICMPV6: u32 = 58;
/// The IPv6 fragment header. A fragment never contains several segments.
const FRAGMENT: u32 = 44;
/// Hop-by-hop options, routing and destination options: one of these headers may precede TCP or ICMPv6.
const V6_BEFORE: [u32; 3] = [0, 43, 60];
const NEIGHBOR_SOLICITATION: u32 = 135;
const NEIGHBOR_ADVERTISEMENT: u32 = 136;
/// The bits of a VLAN tag with the VLAN identifier; 0 means that the tag has only a priority (IEEE 802.1Q).
const VLAN_ID: u32 = 0x0FFF;
/// Largest number of bytes taken: the whole frame.
const WHOLE: u32 = 0x4_0000;

/// Offsets of fields in a frame. The kernel removes a VLAN tag before packet sockets see the frame.
mod at {
    pub const KIND: u32 = 12;
    pub const ARP_SENDER: u32 = 14 + 14;
    pub const ARP_TARGET: u32 = 14 + 24;
    pub const V4_PROTOCOL: u32 = 14 + 9;
    pub const V4_DST: u32 = 14 + 16;
    pub const V6_NEXT: u32 = 14 + 6;
    pub const V6_DST: u32 = 14 + 24;
    pub const V6_UPPER: u32 = 14 + 40;
    /// Not an offset in the frame: the kernel's metadata about it.
    pub const VLAN_TAG: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG) as u32;
}

/// The all-nodes address, ff02::1.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

/// Attaches the filter for the Ethernet address `mac` and the IP addresses `own`; an empty `own` stands for all addresses. If there are more
/// addresses than a filter program can hold, it ignores them, and the fast path checks them. Returns the program; `None`: the kernel has
/// refused it, and the socket gets all frames.
pub(crate) fn attach(socket: &OwnedFd, mac: [u8; 6], own: &[IpAddr]) -> Option<Program> {
    [own, &[]]
        .into_iter()
        .map(|own| program(mac, own))
        .find(|program| sys::set_filter(socket, program).is_ok())
}

/// Attaches the filter that refuses all frames.
pub(crate) fn refuse_all(socket: &OwnedFd) -> io::Result<()> {
    sys::set_filter(socket, &[LEAVE])
}

/// Instructions, from the first on.
pub(crate) type Program = Vec<libc::sock_filter>;

pub(crate) const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

pub(crate) const fn byte_at(at: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, at)
}

pub(crate) const fn half_at(at: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, at)
}

pub(crate) const fn word_at(at: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at)
}

const fn and(mask: u32) -> libc::sock_filter {
    statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, mask)
}

/// Ends a program: the socket gets the frame.
pub(crate) const TAKE: libc::sock_filter = statement(libc::BPF_RET | libc::BPF_K, WHOLE);
const LEAVE: libc::sock_filter = statement(libc::BPF_RET | libc::BPF_K, 0);

/// Skips the next instruction if the loaded value is `wanted`.
const fn skip_if(wanted: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: 1, jf: 0, k: wanted }
}

/// Runs `then` if the loaded value is `wanted`, else what follows. A conditional jump reaches only 255 instructions; this one has no such
/// limit.
pub(crate) fn when(wanted: u32, then: Program) -> Program {
    let over = statement(libc::BPF_JMP | libc::BPF_JA, then.len() as u32);
    [vec![skip_if(wanted), over], then].concat()
}

/// Refuses the frame unless the loaded value is one of `of`.
fn only_if(of: &[u32]) -> Program {
    [go_over(of, 1), vec![LEAVE]].concat()
}

/// Skips the following `many` instructions if the loaded value is one of `of`.
pub(crate) fn go_over(of: &[u32], many: usize) -> Program {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let over = |left: usize| (left - 1 + many) as u8;
    let one = |(done, wanted): (usize, &u32)| libc::sock_filter {
        code,
        jt: over(of.len() - done),
        jf: 0,
        k: *wanted,
    };
    of.iter().enumerate().map(one).collect()
}

/// Runs `then` if the words from offset `at` on are `words`, else what follows.
fn when_words(at: u32, words: &[u32], then: Program) -> Program {
    match words.split_first() {
        None => then,
        Some((first, rest)) => [vec![word_at(at)], when(*first, when_words(at + 4, rest, then))].concat(),
    }
}

fn words_of(addr: Ipv6Addr) -> [u32; 4] {
    let bits = addr.to_bits();
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

/// The solicited-node multicast address (RFC 4291 section 2.7.1).
fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let group = 0xFF02_0000_0000_0000_0000_0001_FF00_0000_u128;
    Ipv6Addr::from_bits(group | addr.to_bits() & 0xFF_FFFF)
}

/// Takes the frame if its IPv6 destination is one of `to`.
fn take_v6(to: impl Iterator<Item = Ipv6Addr>) -> Program {
    to.flat_map(|addr| when_words(at::V6_DST, &words_of(addr), vec![TAKE])).collect()
}

/// Our addresses, by family.
struct Own {
    v4: Vec<Ipv4Addr>,
    v6: Vec<Ipv6Addr>,
    /// True: all addresses count as ours.
    any: bool,
}

impl Own {
    fn new(own: &[IpAddr]) -> Self {
        let v4 = |addr: &IpAddr| if let IpAddr::V4(v4) = addr { Some(*v4) } else { None };
        let v6 = |addr: &IpAddr| if let IpAddr::V6(v6) = addr { Some(*v6) } else { None };
        Self {
            v4: own.iter().filter_map(v4).collect(),
            v6: own.iter().filter_map(v6).collect(),
            any: own.is_empty(),
        }
    }

    /// Takes the frame if the IPv4 address at offset `at` is ours.
    fn take_v4(&self, at: u32) -> Program {
        if self.any {
            return vec![TAKE];
        }
        let one = |addr: &Ipv4Addr| when(addr.to_bits(), vec![TAKE]);
        [vec![word_at(at)], self.v4.iter().flat_map(one).collect()].concat()
    }

    /// ARP: takes requests for and claims of our addresses, and announcements, in which sender and target address are the same.
    fn arp(&self) -> Program {
        let announced = vec![
            word_at(at::ARP_SENDER),
            statement(libc::BPF_MISC | libc::BPF_TAX, 0),
            word_at(at::ARP_TARGET),
            libc::sock_filter {
                code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_X) as u16,
                jt: 0,
                jf: 1,
                k: 0,
            },
            TAKE,
            LEAVE,
        ];
        [self.take_v4(at::ARP_TARGET), self.take_v4(at::ARP_SENDER), announced].concat()
    }

    fn v4(&self) -> Program {
        let useful = [vec![byte_at(at::V4_PROTOCOL)], only_if(&[TCP, ICMP])].concat();
        [useful, self.take_v4(at::V4_DST), vec![LEAVE]].concat()
    }

    fn v6(&self) -> Program {
        let behind = [only_if(&V6_BEFORE), vec![byte_at(at::V6_UPPER)], only_if(&[TCP, ICMPV6])].concat();
        let at_once = go_over(&[TCP, ICMPV6, FRAGMENT], behind.len());
        let ours = if self.any { vec![TAKE] } else { take_v6(self.v6.iter().copied()) };
        [vec![byte_at(at::V6_NEXT)], at_once, behind, ours, vec![LEAVE]].concat()
    }

    /// Neighbour discovery by multicast. An advertisement to all nodes: a neighbour has moved, or has one of our addresses.
    fn v6_of_groups(&self) -> Program {
        let kind = |kind| [vec![byte_at(at::V6_UPPER)], when(kind, vec![TAKE]), vec![LEAVE]].concat();
        let solicited = if self.any {
            [vec![byte_at(at::V6_UPPER)], when(NEIGHBOR_SOLICITATION, vec![TAKE])].concat()
        } else {
            take_v6(self.v6.iter().copied().map(solicited_node))
        };
        let advertised = when_words(at::V6_DST, &words_of(ALL_NODES), kind(NEIGHBOR_ADVERTISEMENT));
        [vec![byte_at(at::V6_NEXT)], only_if(&[ICMPV6]), solicited, advertised, vec![LEAVE]].concat()
    }
}

fn program([a, b, c, d, e, f]: [u8; 6], own: &[IpAddr]) -> Program {
    let own = Own::new(own);
    let to_us =
        [vec![half_at(at::KIND)], when(V4, own.v4()), when(V6, own.v6()), when(ARP, own.arp()), vec![LEAVE]]
            .concat();
    let to_group =
        [vec![half_at(at::KIND)], when(ARP, own.arp()), when(V6, own.v6_of_groups()), vec![LEAVE]].concat();
    let low = when(u32::from(u16::from_be_bytes([e, f])), to_us);
    let is_ours = when(u32::from_be_bytes([a, b, c, d]), [vec![half_at(4)], low].concat());
    [
        vec![word_at(at::VLAN_TAG), and(VLAN_ID)],
        only_if(&[0]),
        vec![word_at(0)],
        is_ours,
        vec![byte_at(0), and(1)],
        when(1, to_group),
        vec![LEAVE],
    ]
    .concat()
}

#[cfg(test)]
mod tests;
