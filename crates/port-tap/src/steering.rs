//! Brings the frames of each group of flows to a queue of the TAP, with a program of the kernel's (`TUNSETSTEERINGEBPF`) and an array that the
//! program reads. A new table is a few bytes written to the array: no system call, no privilege, and the next frame goes by it.
//!
//! ```text
//!   r6 = frame      EtherType: IPv4 or IPv6?  -- no -->  queue 0
//!                   TCP at once, not a fragment?  -- no -->  queue 0
//!   r7 = addresses ^ ports
//!   r7 = r7 * factor >> 24                    as wire::FourTuple::group
//!   queue = array[r7]
//! ```
//! The program sees the frame from its Ethernet header on. When a field is not there, the kernel ends the program with queue 0.

use crate::bpf::{self, Array};
use crate::sys;
use port::{Steering, Table};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use wire::GROUP_FACTOR;

/// The steering of one interface; it ends with the interface.
#[derive(Debug)]
pub struct TapSteering {
    queues: Array,
}

impl TapSteering {
    /// Steers the interface with the queue `tun` by `table`.
    pub(crate) fn new(tun: BorrowedFd<'_>, table: &Table) -> io::Result<Self> {
        let mut steering = Self { queues: Array::new()? };
        steering.apply(table)?;
        let program = bpf::load(&program(steering.queues.fd().as_raw_fd()))?;
        // The interface holds the program, and the program the array.
        sys::set_steering(tun, program.as_raw_fd())?;
        Ok(steering)
    }
}

impl Steering for TapSteering {
    /// A processor that has chosen a queue by the table before may yet put its frame there: it takes less than a microsecond for that.
    fn apply(&mut self, table: &Table) -> io::Result<()> {
        (0..=u8::MAX).zip(table).for_each(|(group, queue)| self.queues.set(group, *queue));
        Ok(())
    }

    fn means(&self) -> &'static str {
        "a program of the TAP"
    }
}

/// Registers: 0 has results, 1 to 5 are arguments and scratch, 6 has the frame.
const R0: u8 = 0;
const R1: u8 = 1;
const FRAME: u8 = 6;
const FOLDED: u8 = 7;
const HEADER: u8 = 8;

const IP: i32 = 14;
const TCP: i32 = 6;
/// "More fragments", and the fragment's offset: fragments have no group, since only the first has ports.
const FRAGMENT: i32 = 0x3FFF;

/// Sizes of loads, as BPF encodes them.
const WORD: u8 = 0x00;
const HALF: u8 = 0x08;
const BYTE: u8 = 0x10;

/// Operations of the 32-bit arithmetic on registers (`0x0C`) or with a number (`0x04`).
const AND: u8 = 0x50;
const SHIFT_LEFT: u8 = 0x60;
const SHIFT_RIGHT: u8 = 0x70;
const XOR: u8 = 0xA0;
const MULTIPLY: u8 = 0x20;
const MOVE: u8 = 0xB0;

/// One instruction as the kernel lays it out: code, registers, offset, number.
const fn instruction(code: u8, to: u8, from: u8, offset: i16, number: i32) -> u64 {
    u64::from_le_bytes({
        let (o, n) = (offset.to_le_bytes(), number.to_le_bytes());
        [code, from << 4 | to, o[0], o[1], n[0], n[1], n[2], n[3]]
    })
}

/// `r0` = the field of that size at offset `at`, in this machine's byte order.
const fn load(size: u8, at: i32) -> u64 {
    instruction(0x20 | size, 0, 0, 0, at)
}

/// `r0` = the field of that size at offset `at` behind the register `base`.
const fn load_behind(size: u8, base: u8, at: i32) -> u64 {
    instruction(0x40 | size, 0, base, 0, at)
}

const fn with(operation: u8, to: u8, from: u8) -> u64 {
    instruction(0x0C | operation, to, from, 0, 0)
}

const fn with_number(operation: u8, to: u8, number: i32) -> u64 {
    instruction(0x04 | operation, to, 0, 0, number)
}

const EXIT: u64 = instruction(0x95, 0, 0, 0, 0);

/// Ends with queue 0 unless `r0` is `wanted`.
const fn only_if(wanted: i32) -> [u64; 3] {
    [instruction(0x15, R0, 0, 2, wanted), with_number(MOVE, R0, 0), EXIT]
}

/// Folds the word at offset `at` into the register [`FOLDED`].
const fn fold(at: i32) -> [u64; 2] {
    [load(WORD, at), with(XOR, FOLDED, R0)]
}

/// What both families end with: the ports at offset `at` behind the register [`HEADER`] are folded, the group computed, its queue returned.
fn choose(array: RawFd, at: i32) -> Vec<u64> {
    let address = |number: i32, is_second: bool| match is_second {
        // A number of 64 bits takes two instructions. From "register" 2, BPF_PSEUDO_MAP_VALUE: the address of the array's value.
        false => instruction(0x18, R1, 2, 0, number),
        true => instruction(0, 0, 0, 0, number),
    };
    vec![
        load_behind(HALF, HEADER, at),
        with(XOR, FOLDED, R0),
        load_behind(HALF, HEADER, at + 2),
        with(XOR, FOLDED, R0),
        with_number(MULTIPLY, FOLDED, GROUP_FACTOR as i32),
        with_number(SHIFT_RIGHT, FOLDED, 24),
        address(array, false),
        address(0, true),
        // r1 += group, as 64 bits; r0 = the byte there.
        instruction(0x0F, R1, FOLDED, 0, 0),
        instruction(0x71, R0, R1, 0, 0),
        EXIT,
    ]
}

/// The program; `array` is the descriptor of the array with the queue of each group.
fn program(array: RawFd) -> Vec<u64> {
    let v4 = [
        vec![load(HALF, IP + 6), with_number(AND, R0, FRAGMENT)],
        only_if(0).to_vec(),
        vec![load(BYTE, IP + 9)],
        only_if(TCP).to_vec(),
        [12, 16].map(|at| fold(IP + at)).concat(),
        // The header's length is in words.
        vec![
            load(BYTE, IP),
            with_number(AND, R0, 15),
            with_number(SHIFT_LEFT, R0, 2),
            with(MOVE, HEADER, R0),
        ],
        choose(array, IP),
    ]
    .concat();
    let v6 = [
        vec![load(BYTE, IP + 6)],
        only_if(TCP).to_vec(),
        (8..40).step_by(4).flat_map(|at| fold(IP + at)).collect(),
        choose(array, IP + 40),
    ]
    .concat();
    let over = v4.len() as i16;
    [
        // r6 = r1, as the loads want it.
        vec![
            instruction(0xBF, FRAME, R1, 0, 0),
            with_number(MOVE, FOLDED, 0),
            with_number(MOVE, HEADER, 0),
            load(HALF, 12),
            // Unless it is IPv4, to the check for IPv6.
            instruction(0x55, R0, 0, over, 0x0800),
        ],
        v4,
        only_if(0x86DD).to_vec(),
        v6,
    ]
    .concat()
}
