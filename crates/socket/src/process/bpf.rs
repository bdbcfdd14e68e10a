//! What a seccomp filter says of a call. Its program (classic BPF, see seccomp(2)) is run with the known arguments of the call; where a
//! branch depends on others, both ways are followed. Installs nothing and calls nothing.

/// One instruction: `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Class, mode and operation.
    pub code: u16,
    /// Number of instructions skipped when the condition holds.
    pub jt: u8,
    /// Number of instructions skipped when it does not.
    pub jf: u8,
    /// The operand: a constant, an offset or a distance.
    pub k: u32,
}

/// A system call that is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The number of the call.
    pub number: u32,
    /// Its first argument, where that is always the same; `None`: any.
    pub first: Option<u64>,
}

/// Most instructions that are run: a filter that takes longer counts as forbidding. A filter has at most 4,096 instructions, and most look
/// at few arguments of a call.
const STEPS: usize = 1 << 14;

/// seccomp(2): mask of the action, the upper half of what a filter returns.
const ACTION: u32 = 0xffff_0000;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;

/// This architecture: `AUDIT_ARCH_X86_64` in `linux/audit.h`.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
/// This architecture: `AUDIT_ARCH_AARCH64` in `linux/audit.h`.
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// `sizeof(struct seccomp_data)`: number, architecture, instruction pointer, six arguments.
const DATA_LEN: u32 = 64;
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const FIRST_AT: u32 = 16;

/// The machine between two instructions. `None`: any value.
#[derive(Clone, Copy, Debug)]
struct Machine {
    at: usize,
    a: Option<u32>,
    x: Option<u32>,
    memory: [Option<u32>; 16],
}

/// The result of one instruction.
enum Next {
    Go(Machine),
    /// Both ways are possible.
    Either(Machine, Machine),
    /// The filter ends: is the call made?
    End(bool),
}

/// True when `call` is made whatever its other arguments are.
#[must_use]
pub fn allows(program: &[Instruction], call: Call) -> bool {
    let mut ways = vec![Machine { at: 0, a: Some(0), x: Some(0), memory: [Some(0); 16] }];
    for _ in 0..STEPS {
        let Some(machine) = ways.pop() else { return true };
        match step(program, call, machine) {
            Next::Go(next) => ways.push(next),
            Next::Either(one, other) => ways.extend([one, other]),
            Next::End(true) => {}
            Next::End(false) => return false,
        }
    }
    false
}

fn step(program: &[Instruction], call: Call, mut m: Machine) -> Next {
    // The kernel accepts no program that runs beyond its end.
    let Some(i) = program.get(m.at) else { return Next::End(false) };
    m.at += 1;
    let operand = if i.code & 0x08 != 0 { m.x } else { Some(i.k) };
    let place = (i.k & 15) as usize;
    match i.code & 0x07 {
        0x00 => m.a = load(i, call, &m),
        0x01 => m.x = load(i, call, &m),
        0x02 => m.memory[place] = m.a,
        0x03 => m.memory[place] = m.x,
        0x04 => m.a = compute(i.code & 0xf0, m.a, operand),
        0x05 => return leap(i, operand, m),
        0x06 => return Next::End(is_done(if i.code & 0x18 == 0x10 { m.a } else { Some(i.k) })),
        _ if i.code & 0xf8 == 0 => m.x = m.a,
        _ => m.a = m.x,
    }
    Next::Go(m)
}

/// True when the kernel makes the call. Other values end the program, ask another process, or fail with an errno.
fn is_done(returned: Option<u32>) -> bool {
    matches!(returned.map(|value| value & ACTION), Some(ALLOW | LOG))
}

fn load(i: &Instruction, call: Call, m: &Machine) -> Option<u32> {
    match i.code & 0xe0 {
        0x00 => Some(i.k),
        0x20 => match i.k {
            NUMBER_AT => Some(call.number),
            ARCHITECTURE_AT => Some(ARCHITECTURE),
            // Low word first: both architectures are little-endian.
            FIRST_AT => call.first.map(|first| first as u32),
            at if at == FIRST_AT + 4 => call.first.map(|first| (first >> 32) as u32),
            _ => None,
        },
        0x60 => m.memory[(i.k & 15) as usize],
        0x80 => Some(DATA_LEN),
        _ => None,
    }
}

fn compute(operation: u16, a: Option<u32>, operand: Option<u32>) -> Option<u32> {
    if operation == 0x80 {
        return a.map(u32::wrapping_neg);
    }
    let (a, b) = (a?, operand?);
    match operation {
        0x00 => Some(a.wrapping_add(b)),
        0x10 => Some(a.wrapping_sub(b)),
        0x20 => Some(a.wrapping_mul(b)),
        0x30 => a.checked_div(b),
        0x40 => Some(a | b),
        0x50 => Some(a & b),
        0x60 => a.checked_shl(b),
        0x70 => a.checked_shr(b),
        0xa0 => Some(a ^ b),
        _ => None,
    }
}

fn leap(i: &Instruction, operand: Option<u32>, m: Machine) -> Next {
    let by = |n: usize| Machine { at: m.at + n, ..m };
    let operation = i.code & 0xf0;
    if operation == 0x00 {
        return Next::Go(by(i.k as usize));
    }
    let (yes, no) = (by(usize::from(i.jt)), by(usize::from(i.jf)));
    let (Some(a), Some(b)) = (m.a, operand) else { return Next::Either(yes, no) };
    let holds = match operation {
        0x10 => a == b,
        0x20 => a > b,
        0x30 => a >= b,
        0x40 => a & b != 0,
        _ => return Next::End(false),
    };
    Next::Go(if holds { yes } else { no })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL: u32 = 0x8000_0000;
    const TRAP: u32 = 0x0003_0000;
    const ERRNO: u32 = 0x0005_0000;

    fn load_word(at: u32) -> Instruction {
        Instruction { code: 0x20, jt: 0, jf: 0, k: at }
    }

    fn equal(k: u32, jt: u8, jf: u8) -> Instruction {
        Instruction { code: 0x15, jt, jf, k }
    }

    fn give(k: u32) -> Instruction {
        Instruction { code: 0x06, jt: 0, jf: 0, k }
    }

    fn call(number: u32) -> Call {
        Call { number, first: None }
    }

    /// Checks the architecture; allows call 1, fails 2, allows 3 with a first argument of 7.
    fn usual() -> Vec<Instruction> {
        vec![
            load_word(ARCHITECTURE_AT),
            equal(ARCHITECTURE, 1, 0),
            give(KILL),
            load_word(NUMBER_AT),
            equal(1, 0, 1),
            give(ALLOW),
            equal(2, 0, 1),
            give(ERRNO | 13),
            equal(3, 0, 5),
            load_word(FIRST_AT),
            equal(7, 0, 3),
            load_word(FIRST_AT + 4),
            equal(0, 0, 1),
            give(ALLOW),
            give(TRAP),
        ]
    }

    #[test]
    fn a_usual_filter_says_what_it_would_do() {
        let program = usual();
        assert!(allows(&program, call(1)));
        assert!(!allows(&program, call(2)), "it fails");
        assert!(!allows(&program, call(4)), "it ends the program");
    }

    #[test]
    fn what_depends_on_an_argument_counts_as_the_worse_unless_it_is_known() {
        let program = usual();
        let with = |first| allows(&program, Call { number: 3, first });
        assert!(!with(None));
        assert!(with(Some(7)));
        assert!(!with(Some(7 | 1 << 32)));
        assert!(!with(Some(8)));
    }

    #[test]
    fn sums_memory_and_masks_are_followed() {
        let program = [
            load_word(NUMBER_AT),
            Instruction { code: 0x02, jt: 0, jf: 0, k: 3 },
            Instruction { code: 0x00, jt: 0, jf: 0, k: 5 },
            Instruction { code: 0x07, jt: 0, jf: 0, k: 0 },
            Instruction { code: 0x60, jt: 0, jf: 0, k: 3 },
            Instruction { code: 0x0c, jt: 0, jf: 0, k: 0 },
            Instruction { code: 0x54, jt: 0, jf: 0, k: 0xf },
            Instruction { code: 0x35, jt: 0, jf: 1, k: 9 },
            give(LOG),
            give(TRAP),
        ];
        assert!(allows(&program, call(4)), "4 + 5 is 9");
        assert!(!allows(&program, call(3)));
        assert!(allows(&program, call(0x14)));
    }

    #[test]
    fn a_program_without_an_end_or_with_too_many_ways_allows_nothing() {
        assert!(!allows(&[], call(1)));
        let beyond = [Instruction { code: 0x05, jt: 0, jf: 0, k: u32::MAX }];
        assert!(!allows(&beyond, call(1)));
        let mut ways = vec![load_word(24)];
        ways.extend((0..40).map(|k| Instruction { code: 0x25, jt: 1, jf: 0, k }));
        ways.extend([give(ALLOW), give(ALLOW)]);
        assert!(!allows(&ways, call(1)));
    }
}
