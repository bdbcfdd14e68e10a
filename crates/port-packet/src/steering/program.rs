//! The program that brings the frames of each group of flows to a member of the group of packet sockets, for the kernel's classic packet filter.
//!
//! ```text
//!   IPv4, IPv6?  -- no -->  the member of queue 0
//!   TCP at once, not a fragment?  -- no -->  the member of queue 0
//!   group = (addresses ^ ports) * factor >> 24        as wire::FourTuple::group
//!   a tree of comparisons: runs of neighbouring groups with one queue are one leaf
//! ```
//! The program sees the frame from its IP header on. When a field is not there, the kernel ends the program with member 0.

use crate::filter::{Program, TCP, V4, V6, byte_at, go_over, half_at, statement, when, word_at};
use libc::{
    BPF_ALU, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_MEM,
    BPF_MISC, BPF_MSH, BPF_MUL, BPF_RET, BPF_RSH, BPF_ST, BPF_STX, BPF_TAX, BPF_X, BPF_XOR, sock_filter,
};
use port::Table;
use std::ops::Range;
use wire::{GROUP_FACTOR, GROUPS};

/// "More fragments", and the fragment's offset: fragments have no group, since only the first has ports.
const FRAGMENT: u32 = 0x3FFF;
/// The frame's EtherType: not in what the program sees, but in what the kernel knows about the frame.
const KIND: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
/// Offsets from the IP header on.
const V4_FRAGMENT: u32 = 6;
const V4_PROTOCOL: u32 = 9;
const V4_ADDRESSES: [u32; 2] = [12, 16];
const V6_NEXT: u32 = 6;
const V6_ADDRESSES: Range<u32> = 8..40;
const V6_PORTS: u32 = 40;
/// The program's words of memory: the folded addresses, and a port.
const FOLDED: u32 = 0;
const PORT: u32 = 1;

const XOR_INDEX: sock_filter = statement(BPF_ALU | BPF_XOR | BPF_X, 0);

/// Classic BPF: sets the index register.
const fn index(value: u32) -> sock_filter {
    statement(BPF_LDX | BPF_IMM, value)
}

/// Ends the program with member `member`.
const fn choose(member: u32) -> sock_filter {
    statement(BPF_RET | BPF_K, member)
}

/// Folds the words at these offsets by exclusive or, into [`FOLDED`].
fn fold(offsets: impl Iterator<Item = u32>) -> Program {
    let word = |at| [word_at(at), XOR_INDEX, statement(BPF_MISC | BPF_TAX, 0)];
    let words: Program = offsets.flat_map(word).collect();
    [vec![index(0)], words, vec![statement(BPF_STX, FOLDED)]].concat()
}

/// The group, from the folded addresses and the two ports at offset `ports` from the index register on; then its member.
fn group(ports: u32, choice: &[sock_filter]) -> Program {
    let port_at = |at| statement(BPF_LD | BPF_H | BPF_IND, at);
    let recall = |word| statement(BPF_LDX | BPF_MEM, word);
    let code = [
        port_at(ports),
        statement(BPF_ST, PORT),
        port_at(ports + 2),
        recall(PORT),
        XOR_INDEX,
        recall(FOLDED),
        XOR_INDEX,
        statement(BPF_ALU | BPF_MUL | BPF_K, GROUP_FACTOR),
        statement(BPF_ALU | BPF_RSH | BPF_K, 24),
    ];
    [&code, choice].concat()
}

/// A tree of comparisons over the groups of `range`, by their number in the accumulator. At most two instructions for each group, less one,
/// so that a jump over half of them fits its eight bits.
fn tree(table: &Table, range: Range<usize>) -> Program {
    let members = &table[range.clone()];
    if members.iter().all(|member| *member == members[0]) {
        return vec![choose(u32::from(members[0]))];
    }
    let middle = usize::midpoint(range.start, range.end);
    let (low, high) = (tree(table, range.start..middle), tree(table, middle..range.end));
    let jump = sock_filter {
        code: (BPF_JMP | BPF_JGE | BPF_K) as u16,
        jt: low.len() as u8,
        jf: 0,
        k: middle as u32,
    };
    [vec![jump], low, high].concat()
}

/// The program for the members that the groups' frames come to; frames without a group come to member `rest`.
pub(super) fn program(members: &Table, rest: u8) -> Program {
    if members.iter().all(|member| *member == rest) {
        return vec![choose(rest.into())];
    }
    let choice = tree(members, 0..GROUPS);
    let is_tcp = || [go_over(&[TCP], 1), vec![choose(rest.into())]].concat();
    let no_fragment = sock_filter { code: (BPF_JMP | BPF_JSET | BPF_K) as u16, jt: 0, jf: 1, k: FRAGMENT };
    let v4 = [
        vec![half_at(V4_FRAGMENT), no_fragment, choose(rest.into()), byte_at(V4_PROTOCOL)],
        is_tcp(),
        fold(V4_ADDRESSES.into_iter()),
        vec![statement(BPF_LDX | BPF_B | BPF_MSH, 0)],
        group(0, &choice),
    ]
    .concat();
    let v6 = [
        vec![byte_at(V6_NEXT)],
        is_tcp(),
        fold(V6_ADDRESSES.step_by(4)),
        vec![index(0)],
        group(V6_PORTS, &choice),
    ]
    .concat();
    [vec![half_at(KIND)], when(V4, v4), when(V6, v6), vec![choose(rest.into())]].concat()
}

#[cfg(test)]
mod tests;
