//! Runs the filter program as the kernel would, over frames made here.

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 8];
const BROADCAST: [u8; 6] = [0xFF; 6];
const OWN: [u8; 4] = [10, 78, 0, 9];
const KERNELS: [u8; 4] = [10, 78, 0, 1];
const NEIGHBOUR: [u8; 4] = [10, 78, 0, 8];

fn own() -> Vec<IpAddr> {
    vec![OWN.into(), "10.78.0.10".parse().unwrap(), own_v6().into()]
}

fn own_v6() -> Ipv6Addr {
    "fd00::ab12:3456".parse().unwrap()
}

/// Interprets the program: true when the frame is taken. `tag`: the VLAN tag that the kernel has removed.
fn runs(program: &[libc::sock_filter], frame: &[u8], tag: u32) -> bool {
    let (mut at, mut loaded, mut index) = (0, 0, 0);
    let bytes = |at: u32, len: usize| frame.get(at as usize..)?.get(..len);
    loop {
        let one = program[at];
        at += 1;
        let load = |len| Some(bytes(one.k, len)?.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)));
        let found = match u32::from(one.code) {
            code if code == libc::BPF_RET | libc::BPF_K => return one.k > 0,
            _ if one.k == at::VLAN_TAG => Some(tag),
            code if code == libc::BPF_LD | libc::BPF_B | libc::BPF_ABS => load(1),
            code if code == libc::BPF_LD | libc::BPF_H | libc::BPF_ABS => load(2),
            code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => load(4),
            code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => Some(loaded & one.k),
            code if code == libc::BPF_MISC | libc::BPF_TAX => {
                index = loaded;
                Some(loaded)
            }
            code if code == libc::BPF_JMP | libc::BPF_JA => {
                at += one.k as usize;
                Some(loaded)
            }
            code => {
                let with = if code & libc::BPF_X == libc::BPF_X { index } else { one.k };
                at += usize::from(if loaded == with { one.jt } else { one.jf });
                Some(loaded)
            }
        };
        let Some(value) = found else { return false };
        loaded = value;
    }
}

fn frame(to: [u8; 6], kind: u32, fields: &[(u32, &[u8])]) -> Vec<u8> {
    let mut frame = vec![0; 90];
    frame[..6].copy_from_slice(&to);
    frame[12..14].copy_from_slice(&(kind as u16).to_be_bytes());
    for (at, bytes) in fields {
        frame[*at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    frame
}

fn v4(to: [u8; 6], protocol: u32, dst: [u8; 4]) -> Vec<u8> {
    frame(to, V4, &[(at::V4_PROTOCOL, &[protocol as u8]), (at::V4_DST, &dst)])
}

fn v6(to: [u8; 6], next: u32, dst: Ipv6Addr, upper: u32) -> Vec<u8> {
    let fields =
        [(at::V6_NEXT, &[next as u8][..]), (at::V6_DST, &dst.octets()), (at::V6_UPPER, &[upper as u8])];
    frame(to, V6, &fields)
}

fn arp(to: [u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    frame(to, ARP, &[(at::ARP_SENDER, &sender), (at::ARP_TARGET, &target)])
}

fn group_mac(group: Ipv6Addr) -> [u8; 6] {
    let last = group.octets();
    [0x33, 0x33, last[12], last[13], last[14], last[15]]
}

fn is_taken(frame: &[u8]) -> bool {
    runs(&program(MAC, &own()), frame, 0)
}

#[test]
fn what_a_tcp_stack_has_a_use_for_is_taken_and_nothing_else() {
    for (protocol, taken) in [(6, true), (1, true), (17, false), (132, false), (47, false), (4, false)] {
        assert_eq!(is_taken(&v4(MAC, protocol, OWN)), taken, "IPv4 {protocol}");
    }
    for (next, taken) in [(6, true), (58, true), (44, true), (17, false), (132, false), (50, false)] {
        assert_eq!(is_taken(&v6(MAC, next, own_v6(), 0)), taken, "IPv6 {next}");
    }
    for before in V6_BEFORE {
        for (upper, taken) in [(6, true), (58, true), (17, false), (60, false)] {
            assert_eq!(is_taken(&v6(MAC, before, own_v6(), upper)), taken, "IPv6 {before} {upper}");
        }
    }
    assert!(!is_taken(&frame(MAC, 0x88A8, &[])) && !is_taken(&frame(MAC, 0x8100, &[])));
    assert!(!is_taken(&v4(MAC, 6, OWN)[..20]) && !is_taken(&[0; 13]) && !is_taken(&[]));
}

#[test]
fn frames_to_another_station_are_left() {
    assert!(!is_taken(&v4(OTHER, 6, OWN)) && !is_taken(&v6(OTHER, 6, own_v6(), 0)));
    assert!(!is_taken(&arp(OTHER, NEIGHBOUR, OWN)));
    for byte in 0..6 {
        let mut near = MAC;
        near[byte] ^= 4;
        assert!(!is_taken(&v4(near, 6, OWN)), "byte {byte} is asked for");
    }
}

#[test]
fn packets_to_another_address_are_left_though_the_station_is_ours() {
    assert!(is_taken(&v4(MAC, 6, [10, 78, 0, 10])), "the second of our addresses");
    assert!(!is_taken(&v4(MAC, 6, KERNELS)) && !is_taken(&v4(MAC, 1, KERNELS)));
    for bit in 0..128 {
        let near = Ipv6Addr::from_bits(own_v6().to_bits() ^ 1 << bit);
        assert!(!is_taken(&v6(MAC, 6, near, 0)) && !is_taken(&v6(MAC, 0, near, 58)), "bit {bit}");
    }
}

#[test]
fn of_groups_only_what_concerns_our_addresses_is_taken() {
    let group = solicited_node(own_v6());
    assert_eq!(group, "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
    assert!(is_taken(&v6(group_mac(group), ICMPV6, group, NEIGHBOR_SOLICITATION)));
    let foreign = solicited_node("fd00::1".parse().unwrap());
    assert!(!is_taken(&v6(group_mac(foreign), ICMPV6, foreign, NEIGHBOR_SOLICITATION)));
    for (kind, taken) in [(NEIGHBOR_ADVERTISEMENT, true), (134, false), (128, false), (130, false)] {
        assert_eq!(is_taken(&v6(group_mac(ALL_NODES), ICMPV6, ALL_NODES, kind)), taken, "ICMPv6 {kind}");
    }
    // TCP and echo to all nodes, multicast DNS, and listener reports behind hop-by-hop options.
    assert!(!is_taken(&v4(BROADCAST, 6, OWN)) && !is_taken(&v4(BROADCAST, 1, [255; 4])));
    assert!(!is_taken(&v4([1, 0, 0x5E, 0, 0, 0xFB], 17, [224, 0, 0, 251])));
    assert!(!is_taken(&v6(group_mac(ALL_NODES), 0, ALL_NODES, ICMPV6)));
}

#[test]
fn arp_about_our_addresses_and_announcements_are_taken() {
    for to in [MAC, BROADCAST] {
        assert!(is_taken(&arp(to, NEIGHBOUR, OWN)), "we are asked, or answered");
        assert!(is_taken(&arp(to, [0; 4], OWN)), "a probe for our address");
        assert!(is_taken(&arp(to, OWN, NEIGHBOUR)) && is_taken(&arp(to, OWN, OWN)), "our address is claimed");
        assert!(is_taken(&arp(to, NEIGHBOUR, NEIGHBOUR)), "a neighbour has moved");
        assert!(!is_taken(&arp(to, NEIGHBOUR, KERNELS)) && !is_taken(&arp(to, [0; 4], KERNELS)));
    }
}

#[test]
fn another_vlan_is_another_link() {
    let program = program(MAC, &own());
    for (tag, taken) in [(0, true), (0xE000, true), (7, false), (0xE007, false), (0x0FFF, false)] {
        assert_eq!(runs(&program, &v4(MAC, 6, OWN), tag), taken, "tag {tag:#x}");
        assert_eq!(runs(&program, &arp(BROADCAST, NEIGHBOUR, OWN), tag), taken, "tag {tag:#x}");
    }
}

#[test]
fn without_addresses_every_address_is_taken_for_ours() {
    let program = program(MAC, &[]);
    assert!(
        runs(&program, &v4(MAC, 6, KERNELS), 0) && runs(&program, &arp(BROADCAST, NEIGHBOUR, KERNELS), 0)
    );
    let group = solicited_node("fd00::1".parse().unwrap());
    assert!(runs(&program, &v6(group_mac(group), ICMPV6, group, NEIGHBOR_SOLICITATION), 0));
    assert!(runs(&program, &v6(MAC, FRAGMENT, group, 0), 0));
    assert!(!runs(&program, &v4(OTHER, 6, KERNELS), 0) && !runs(&program, &v4(MAC, 17, KERNELS), 0));
}

#[test]
fn a_hundred_addresses_fit_what_the_kernel_takes() {
    let many: Vec<IpAddr> = (0..50_u8)
        .flat_map(|i| [IpAddr::from([10, 0, 1, i]), Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, i.into()).into()])
        .collect();
    let program = program(MAC, &many);
    assert!(program.len() <= libc::BPF_MAXINSNS as usize);
    assert!(
        runs(&program, &v4(MAC, 6, [10, 0, 1, 49]), 0) && !runs(&program, &v4(MAC, 6, [10, 0, 1, 50]), 0)
    );
}
