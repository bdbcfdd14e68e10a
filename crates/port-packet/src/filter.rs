//! Which frames a socket gets, as a program of the kernel's classic packet filter (Documentation/networking/filter.rst of Linux).

use crate::sys;
use std::io;
use std::os::fd::OwnedFd;

const ARP: u32 = 0x0806;
const V4: u32 = 0x0800;
const V6: u32 = 0x86DD;
const VLAN: u32 = 0x8100;
/// TCP, ICMP.
const V4_TAKEN: [u32; 2] = [6, 1];
/// TCP, ICMPv6, a fragment: the last is never of several segments.
const V6_TAKEN: [u32; 3] = [6, 58, 44];
/// Hop-by-hop options, routing, destination options: one of them may stand before TCP or ICMPv6.
const V6_BEFORE: [u32; 3] = [0, 43, 60];
/// All of a frame.
const WHOLE: u32 = 0x4_0000;

/// Frames that a TCP stack has a use for, and of which all offloads have words in a virtio-net header.
pub(crate) fn attach(socket: &OwnedFd) -> io::Result<()> {
    sys::set_filter(socket, &program())
}

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn byte_at(at: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, at)
}

const fn half_at(at: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, at)
}

const fn answer(bytes: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, bytes)
}

/// Goes over the next `skipped` instructions unless what was loaded is `wanted`.
fn unless(wanted: u32, skipped: usize) -> libc::sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: 0, jf: skipped as u8, k: wanted }
}

/// Takes the frame where what was loaded is one of these.
fn take_any(of: &[u32]) -> Vec<libc::sock_filter> {
    of.iter().flat_map(|wanted| [unless(*wanted, 1), answer(WHOLE)]).collect()
}

/// Where what was loaded is `wanted`, `then` decides.
fn when(wanted: u32, then: Vec<libc::sock_filter>) -> Vec<libc::sock_filter> {
    [vec![unless(wanted, then.len())], then].concat()
}

/// Decides by what is behind an EtherType, which was loaded; `at`: the byte after it.
fn behind(at: u32) -> Vec<libc::sock_filter> {
    let v4 = [vec![byte_at(at + 9)], take_any(&V4_TAKEN), vec![answer(0)]].concat();
    let extended = || [vec![byte_at(at + 40)], take_any(&V6_TAKEN[..2]), vec![answer(0)]].concat();
    let before = V6_BEFORE.into_iter().flat_map(|wanted| when(wanted, extended())).collect();
    let v6 = [vec![byte_at(at + 6)], take_any(&V6_TAKEN), before, vec![answer(0)]].concat();
    [take_any(&[ARP]), when(V4, v4), when(V6, v6), vec![answer(0)]].concat()
}

fn program() -> Vec<libc::sock_filter> {
    let tagged = [vec![half_at(16)], behind(18)].concat();
    [vec![half_at(12)], when(VLAN, tagged), behind(14)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would answer: true when it is taken.
    fn runs(program: &[libc::sock_filter], frame: &[u8]) -> bool {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let one = program[at];
            at += 1;
            let k = one.k as usize;
            match u32::from(one.code) {
                code if code == libc::BPF_RET | libc::BPF_K => return one.k > 0,
                code if code == libc::BPF_LD | libc::BPF_B | libc::BPF_ABS => {
                    let Some(byte) = frame.get(k) else { return false };
                    loaded = u32::from(*byte);
                }
                code if code == libc::BPF_LD | libc::BPF_H | libc::BPF_ABS => {
                    let Some(&[a, b]) = frame.get(k..k + 2) else { return false };
                    loaded = u32::from(u16::from_be_bytes([a, b]));
                }
                _ => at += usize::from(if loaded == one.k { one.jt } else { one.jf }),
            }
        }
    }

    fn frame(kind: u16, upper: &[(usize, u8)]) -> Vec<u8> {
        let mut frame = vec![0; 90];
        frame[12..14].copy_from_slice(&kind.to_be_bytes());
        upper.iter().for_each(|(at, byte)| frame[*at] = *byte);
        frame
    }

    #[test]
    fn what_a_tcp_stack_has_a_use_for_is_taken_and_nothing_else() {
        let program = program();
        let taken = |kind, upper: &[(usize, u8)]| runs(&program, &frame(kind, upper));
        assert!(taken(0x0806, &[]));
        for (protocol, is_taken) in [(6, true), (1, true), (17, false), (132, false), (47, false), (4, false)]
        {
            assert_eq!(taken(0x0800, &[(23, protocol)]), is_taken, "IPv4 {protocol}");
        }
        for (next, is_taken) in [(6, true), (58, true), (44, true), (17, false), (132, false), (50, false)] {
            assert_eq!(taken(0x86DD, &[(20, next)]), is_taken, "IPv6 {next}");
        }
        for before in [0, 43, 60] {
            assert!(taken(0x86DD, &[(20, before), (54, 58)]) && taken(0x86DD, &[(20, before), (54, 6)]));
            assert!(!taken(0x86DD, &[(20, before), (54, 17)]) && !taken(0x86DD, &[(20, before), (54, 60)]));
        }
        assert!(taken(0x8100, &[(16, 8), (17, 6)]) && taken(0x8100, &[(16, 8), (17, 0), (27, 6)]));
        assert!(
            !taken(0x8100, &[(16, 8), (17, 0), (27, 17)])
                && !taken(0x88A8, &[(27, 6)])
                && !taken(0x88CC, &[])
        );
        assert!(!runs(&program, &[0; 13]) && !runs(&program, &frame(0x0800, &[(23, 6)])[..20]));
    }
}
