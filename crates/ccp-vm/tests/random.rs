//! Random programs and signals, for each machine that runs verified programs: this crate's, and the kernel's in `ccp-linux`.

use ccp_vm::{Event, Implicit, Instruction, Opcode, Register, Scope, Signals};
use proptest::prelude::*;

fn value() -> impl Strategy<Value = u32> {
    prop_oneof![0..12_u32, Just(u32::MAX), Just(0x3fff_ffff), any::<u32>()]
}

fn readable() -> impl Strategy<Value = Register> {
    let register = |scope, end| (0..end).prop_map(move |index| Register::new(scope, index));
    prop_oneof![
        value().prop_map(Register::immediate),
        register(Scope::Control, 3_u32),
        register(Scope::Report, 2),
        register(Scope::Local, 2),
        register(Scope::Primitive, 15),
        register(Scope::Implicit, 6),
        register(Scope::Temp, 3),
    ]
}

fn writable() -> impl Strategy<Value = Register> {
    readable().prop_filter("writable", |register| register.is_writable())
}

fn instruction() -> impl Strategy<Value = Instruction> {
    let op = prop::sample::select(Opcode::ALL.to_vec()).prop_filter("a step", |op| *op != Opcode::Def);
    (op, writable(), readable(), readable()).prop_map(|(op, result, left, right)| Instruction {
        op,
        result,
        left,
        right,
    })
}

/// One event: instructions of its condition without the last, which is added, and of its body.
fn event() -> impl Strategy<Value = (Vec<Instruction>, Register, Vec<Instruction>)> {
    let block = |end| prop::collection::vec(instruction(), 0..end);
    (block(3), readable(), block(6))
}

/// A program with two report variables and three control variables, not verified yet.
pub fn program() -> impl Strategy<Value = (Vec<Instruction>, Vec<Event>)> {
    let initial = prop::collection::vec((value(), any::<bool>()), 5);
    (initial, prop::collection::vec(event(), 0..5)).prop_map(|(initial, events)| {
        let variable = |place: usize, is_volatile: bool| match (place, is_volatile) {
            (0..2, true) => Register::new(Scope::VolatileReport, place as u32),
            (0..2, false) => Register::new(Scope::Report, place as u32),
            (_, true) => Register::new(Scope::VolatileControl, place as u32 - 2),
            (_, false) => Register::new(Scope::Control, place as u32 - 2),
        };
        let definitions = initial.iter().enumerate();
        let mut all: Vec<Instruction> = definitions
            .map(|(place, (value, volatile))| Instruction::define(variable(place, *volatile), *value))
            .collect();
        let mut spans = Vec::new();
        for (flag, condition, body) in events {
            let flag_start = all.len() as u32;
            let (flag_count, body_count) = (flag.len() as u32 + 1, body.len() as u32);
            all.extend(flag);
            all.push(Instruction::bind(Register::implicit(Implicit::EventFlag), condition));
            all.extend(body);
            spans.push(Event { flag_start, flag_count, body_start: flag_start + flag_count, body_count });
        }
        (all, spans)
    })
}

/// Signals of one batch, with numbers of any size.
pub fn signals() -> impl Strategy<Value = Signals> {
    let number = || prop_oneof![0..5000_u64, Just(u64::MAX), any::<u64>()];
    (prop::collection::vec(number(), 13), any::<bool>(), 0..100_000_u64).prop_map(
        |(n, was_timeout, now_us)| Signals {
            bytes_acked: n[0],
            packets_acked: n[1],
            bytes_misordered: n[2],
            packets_misordered: n[3],
            ecn_bytes: n[4],
            ecn_packets: n[5],
            lost_packets: n[6],
            now_us,
            was_timeout,
            rtt_us: n[7],
            rate_outgoing: n[8],
            rate_incoming: n[9],
            bytes_in_flight: n[10],
            packets_in_flight: n[11],
            bytes_pending: n[12],
        },
    )
}
