//! Runs the program as the kernel would, over IP packets made here. The kernel itself runs it in the tests of the port.

use super::*;
use base::Seed;
use std::net::IpAddr;
use wire::{Endpoint, FourTuple};

/// Interprets the program over an IP packet. A field that is not there ends it with member 0.
fn run(program: &[sock_filter], kind: u32, packet: &[u8]) -> u32 {
    let (mut at, mut loaded, mut index, mut memory) = (0, 0u32, 0u32, [0u32; 16]);
    let load = |from: u32, len: usize| {
        let field = packet.get(from as usize..)?.get(..len)?;
        Some(field.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
    };
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let jump = |holds: bool| usize::from(if holds { jt } else { jf });
        let field = match u32::from(code) {
            0x06 => return k,
            0x28 if k == KIND => Some(kind),
            0x20 => load(k, 4),
            0x28 => load(k, 2),
            0x30 => load(k, 1),
            0x48 => load(index + k, 2),
            code => {
                match code {
                    0x01 => index = k,
                    0x61 => index = memory[k as usize],
                    0xB1 => index = 4 * (load(k, 1).unwrap() & 15),
                    0x02 => memory[k as usize] = loaded,
                    0x03 => memory[k as usize] = index,
                    0x07 => index = loaded,
                    0x05 => at += k as usize,
                    0x15 => at += jump(loaded == k),
                    0x35 => at += jump(loaded >= k),
                    0x45 => at += jump(loaded & k != 0),
                    0xAC => loaded ^= index,
                    0x24 => loaded = loaded.wrapping_mul(k),
                    0x74 => loaded >>= k,
                    _ => panic!("unknown instruction {code:#x}"),
                }
                Some(loaded)
            }
        };
        let Some(value) = field else { return 0 };
        loaded = value;
    }
}

/// A TCP packet without its TCP header's rest; with IPv4 options if `words` says so.
fn packet(tuple: &FourTuple, words: usize) -> Vec<u8> {
    let mut packet = match (tuple.src.addr, tuple.dst.addr) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header = vec![0; 20 + 4 * words];
            (header[0], header[9]) = (0x45 + words as u8, 6);
            header[12..16].copy_from_slice(&src.octets());
            header[16..20].copy_from_slice(&dst.octets());
            header
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            [&[0x60, 0, 0, 0, 0, 20, 6, 64][..], &src.octets(), &dst.octets()].concat()
        }
        _ => panic!("two families"),
    };
    packet.extend(tuple.src.port.to_be_bytes());
    packet.extend(tuple.dst.port.to_be_bytes());
    packet
}

fn drawn(rng: &mut Seed) -> FourTuple {
    let is_v6 = rng.below(2) == 0;
    let mut end = || {
        let bits = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
        let addr: IpAddr = if is_v6 { bits.to_be_bytes().into() } else { (bits as u32).to_be_bytes().into() };
        Endpoint::new(addr, rng.next_u64() as u16)
    };
    FourTuple::new(end(), end())
}

#[test]
fn the_program_finds_the_group_that_the_cores_find() {
    let mut rng = Seed::new(7);
    // The table of most leaves: no two neighbours are alike.
    let table: Table = std::array::from_fn(|group| (group * 7 % 256) as u8);
    let program = program(&table, 0);
    assert!(program.len() < 4096, "{} instructions", program.len());
    for _ in 0..2_000 {
        let tuple = drawn(&mut rng);
        let kind = if tuple.src.addr.is_ipv4() { V4 } else { V6 };
        let packet = packet(&tuple, rng.below(11) as usize);
        assert_eq!(run(&program, kind, &packet), u32::from(table[usize::from(tuple.group())]), "{tuple:?}");
    }
}

#[test]
fn each_group_has_the_member_of_the_table() {
    let mut rng = Seed::new(8);
    let mut tables = vec![[3; GROUPS]];
    tables.extend((0..20).map(|_| {
        let members = 1 + rng.below(14);
        // Runs of groups and single ones.
        let mut member = 0;
        std::array::from_fn(|_| {
            if rng.below(3) == 0 {
                member = rng.below(members) as u8;
            }
            member
        })
    }));
    for table in tables {
        let tree = tree(&table, 0..GROUPS);
        for (group, member) in table.iter().enumerate() {
            let (mut at, mut steps) = (0, 0);
            while tree[at].code as u32 != BPF_RET | BPF_K {
                let sock_filter { jt, k, .. } = tree[at];
                at += 1 + if group as u32 >= k { usize::from(jt) } else { 0 };
                steps += 1;
            }
            assert_eq!((tree[at].k, steps <= 8), (u32::from(*member), true), "group {group}");
        }
    }
    assert_eq!(tree(&[3; GROUPS], 0..GROUPS).len(), 1);
}

#[test]
fn what_has_no_group_comes_to_the_member_for_the_rest() {
    let program = program(&[5; GROUPS], 2);
    let tuple = drawn(&mut Seed::new(9));
    let tuple = FourTuple::new(
        Endpoint::new([10, 0, 0, 1].into(), 1),
        Endpoint::new([10, 0, 0, 2].into(), tuple.dst.port),
    );
    let good = packet(&tuple, 0);
    assert_eq!(run(&program, V4, &good), 5);
    let with = |at: usize, byte| {
        let mut packet = good.clone();
        packet[at] = byte;
        packet
    };
    let first_fragment = with(6, 0x20);
    let later_fragment = with(7, 1);
    let udp = with(9, 17);
    for (kind, packet, member) in [
        (V4, &first_fragment, 2),
        (V4, &later_fragment, 2),
        (V4, &udp, 2),
        (0x0806, &good, 2),
        // The kernel ends the program where a field is not there.
        (V4, &good[..22].to_vec(), 0),
    ] {
        assert_eq!(run(&program, kind, packet), member);
    }
    // "Do not fragment" is no fragment.
    assert_eq!(run(&program, V4, &with(6, 0x40)), 5);
    assert_eq!(super::program(&[2; GROUPS], 2).len(), 1, "nothing to choose");
}
