//! What one run of a program costs in the kernel: nanoseconds of the machine alone (`bpf/vm.h`), by the kernel's own statistics, for the programs
//! that are named. Usage: `cost [OBJECT.o] FILE.ccp...`, the object being another build of `bpf/conformance.bpf.o`; needs root. Signals are those of a calm flow, with a loss in each hundredth run; the least of
//! several rounds counts, and all caches are warm: on a busy path a run takes longer.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};

use ccp_vm::{Program, Signals};
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};

const OBJECT: &[u8] = include_bytes!("../bpf/conformance.bpf.o");
const ONLY: [u8; 4] = [0; 4];
/// The switch of the kernel's statistics.
const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";
const ROUNDS: usize = 20;
const RUNS: u64 = 2000;

fn main() {
    let is_object = |path: &String| path.ends_with(".o");
    let (objects, programs): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(is_object);
    let bytes = objects.first().map(|path| std::fs::read(path).expect("readable"));
    let mut builder = ObjectBuilder::default();
    let object = builder.open_memory(bytes.as_deref().unwrap_or(OBJECT)).expect("a whole object");
    let mut object = object.load().expect("the kernel takes the object");
    let before = std::fs::read(STATISTICS).expect("the kernel has statistics");
    std::fs::write(STATISTICS, "1").expect("root may switch them");
    for path in programs {
        let text = std::fs::read_to_string(&path).expect("readable");
        let compiled = ccp_lang::compile(&text).unwrap_or_else(|mistakes| panic!("{path}: {mistakes:?}"));
        let ns = (0..ROUNDS).map(|_| round(&mut object, compiled.program())).fold(f64::INFINITY, f64::min);
        writeln!(std::io::stdout(), "{path}: {ns:.0} ns").expect("somewhere to write");
    }
    std::fs::write(STATISTICS, before).expect("it was written before");
}

/// Mean nanoseconds of a run.
fn round(object: &mut Object, program: &Program) -> f64 {
    write(object, "programs", &program.image());
    let from = counted(object);
    for n in 0..RUNS {
        let signals = Signals {
            bytes_acked: 2896,
            packets_acked: 2,
            lost_packets: u64::from(n % 100 == 99),
            now_us: 500 * n,
            bytes_in_flight: 144_800,
            packets_in_flight: 100,
            rtt_us: 20_000 + 10 * (n % 20),
            ..Signals::default()
        };
        let words = signals.registers().into_iter().chain([144_800, 0, u64::from(n == 0)]);
        write(object, "inputs", &words.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>());
        let run = program_of(object).test_run(ProgramInput::default()).expect("the kernel runs it");
        assert_eq!(run.return_value, 0);
    }
    let to = counted(object);
    (to.0 - from.0) as f64 / (to.1 - from.1) as f64
}

fn program_of(object: &mut Object) -> libbpf_rs::ProgramMut<'_> {
    object.progs_mut().find(|program| program.name() == "run_once").expect("the object has it")
}

fn write(object: &Object, map: &str, value: &[u8]) {
    let map = object.maps().find(|known| known.name() == map).expect("a map of the object");
    map.update(&ONLY, value, MapFlags::ANY).expect("the value has the map's size");
}

/// Nanoseconds and runs so far.
fn counted(object: &mut Object) -> (u64, u64) {
    let fd = program_of(object).as_fd().as_raw_fd();
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("an open descriptor");
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("since Linux 5.1");
        line.trim().parse().expect("a number")
    };
    (number("run_time_ns:"), number("run_cnt:"))
}
