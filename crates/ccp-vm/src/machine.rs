//! The registers of one flow, and one run of its program over them. Never reads a clock, and applies nothing itself: the datapath enforces
//! the [`Decision`].

use crate::changes::Changes;
use crate::instruction::Opcode;
use crate::program::Program;
use crate::register::{CONTROLS_MAX, Implicit, PRIMITIVES, REPORTS_MAX};
use crate::signals::{Primitive, Signals};
use crate::slots::{CONTROL, REPORT, ROW, TEMP, WORDS, implicit};

const EVENT_FLAG: usize = implicit(Implicit::EventFlag);
const FALLTHROUGH: usize = implicit(Implicit::Fallthrough);
const REPORT_FLAG: usize = implicit(Implicit::Report);
const MICROS: usize = implicit(Implicit::Micros);
const CWND: usize = implicit(Implicit::Cwnd);
const RATE: usize = implicit(Implicit::Rate);
/// The weights of `ewma` are tenths.
const TENTHS: u64 = 10;

/// What a program is run with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invocation<'a> {
    /// What happened since the last run; its `now_us` is the time of this run, which never goes back.
    pub signals: &'a Signals,
    /// The flow's congestion window, bytes.
    pub cwnd: u64,
    /// The flow's pacing rate, bytes per second; 0: not paced.
    pub rate: u64,
}

/// What the datapath enforces from now on, within the bounds of its policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Congestion window, bytes, never changed to 0.
    pub cwnd: u64,
    /// Pacing rate, bytes per second, never changed to 0.
    pub rate: u64,
}

/// Why a run stopped. Its instruction wrote nothing; window and rate stay, and no report is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A sum, product or average above 2^64 - 1.
    Overflow,
    /// A difference below 0, or an `ewma` with a weight above 10.
    Underflow,
    /// A quotient with 0 below the line.
    DivisionByZero,
}

/// The state of one flow's program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// The row of words, and behind it the program's constants: whatever byte an operand is, it names one of them.
    words: [u64; ROW],
    /// The report that is due: all reports since the last one that was taken.
    report: [u64; REPORTS_MAX],
    /// `Micros` was `timer_base` at `timer_set_us`.
    timer_base: u64,
    timer_set_us: u64,
    faults: u32,
    is_report_due: bool,
}

impl Machine {
    /// A flow in which `program` begins at `now_us`.
    #[must_use]
    pub fn new(program: &Program, now_us: u64) -> Self {
        let mut machine = Self {
            words: [0; ROW],
            report: [0; REPORTS_MAX],
            timer_base: 0,
            timer_set_us: 0,
            faults: 0,
            is_report_due: false,
        };
        machine.start(program, now_us);
        machine
    }

    /// Begins `program` in place of the one before: registers as defined, all others 0, the timer 0, no report due. Faults go on counting.
    pub fn start(&mut self, program: &Program, now_us: u64) {
        self.words[..WORDS].fill(0);
        self.words[CONTROL..TEMP].copy_from_slice(&program.initial);
        self.words[WORDS..].copy_from_slice(&program.constants);
        self.timer_base = 0;
        self.timer_set_us = now_us;
        self.is_report_due = false;
    }

    /// Sets the control variables of `changes`, between two runs. Window and rate are the datapath's.
    pub fn change(&mut self, changes: &Changes) {
        for (word, value) in self.words[CONTROL..].iter_mut().zip(&changes.controls) {
            *word = value.unwrap_or(*word);
        }
    }

    /// Sets control variable `index`, between two runs. False if there is none with that index.
    pub fn set_control(&mut self, index: u8, value: u64) -> bool {
        let is_there = usize::from(index) < CONTROLS_MAX;
        if is_there {
            self.words[CONTROL + usize::from(index)] = value;
        }
        is_there
    }

    /// Runs `program` once. The machine must have been started with the same program.
    ///
    /// # Errors
    /// What stopped the run.
    pub fn run(&mut self, program: &Program, input: &Invocation<'_>) -> Result<Decision, Fault> {
        *self.signals() = input.signals.registers();
        self.run_loaded(program, input.cwnd, input.rate)
    }

    /// The registers of the signals, by [`Primitive`]: what [`run_loaded`](Self::run_loaded) runs with. Those that the program does not read
    /// may hold anything, but the time must be right.
    #[must_use]
    #[inline]
    pub fn signals(&mut self) -> &mut [u64; PRIMITIVES] {
        self.words.first_chunk_mut().expect("the row begins with the signals")
    }

    /// As [`run`](Self::run), with signals that were put into their registers by [`signals`](Self::signals).
    ///
    /// # Errors
    /// What stopped the run.
    #[inline]
    pub fn run_loaded(&mut self, program: &Program, cwnd: u64, rate: u64) -> Result<Decision, Fault> {
        let now_us = self.words[Primitive::Now as usize];
        let micros = self.timer_base.saturating_add(now_us.saturating_sub(self.timer_set_us));
        self.words[MICROS] = micros;
        self.words[CWND] = cwnd;
        self.words[RATE] = rate;
        self.words[EVENT_FLAG] = 0;
        self.words[FALLTHROUGH] = 0;
        self.words[REPORT_FLAG] = 0;
        let end = self.run_events(program);
        if self.words[MICROS] != micros {
            self.timer_base = self.words[MICROS];
            self.timer_set_us = now_us;
        }
        if let Err(fault) = end {
            self.faults = self.faults.saturating_add(1);
            return Err(fault);
        }
        if self.words[REPORT_FLAG] != 0 && program.report_len() > 0 {
            self.note_report(program);
        }
        let or_before =
            |word: usize, before: u64| if self.words[word] == 0 { before } else { self.words[word] };
        Ok(Decision { cwnd: or_before(CWND, cwnd), rate: or_before(RATE, rate) })
    }

    /// True if a run has asked for a report that was not taken yet.
    #[must_use]
    pub const fn is_report_due(&self) -> bool {
        self.is_report_due
    }

    /// The values of the report that is due. It stays due until [`report_taken`](Self::report_taken).
    #[must_use]
    pub fn report(&self, program: &Program) -> Option<&[u64]> {
        if self.is_report_due { self.report.get(..program.report_len()) } else { None }
    }

    /// The report that was due is taken: the next one begins anew.
    pub const fn report_taken(&mut self) {
        self.is_report_due = false;
    }

    /// Takes the report that is due: copies it to `out`, and says how many values it has.
    pub fn take_report(&mut self, program: &Program, out: &mut [u64; REPORTS_MAX]) -> Option<usize> {
        let len = self.report(program)?.len();
        *out = self.report;
        self.report_taken();
        Some(len)
    }

    /// The control variables and, behind them, the report variables, as they are now.
    #[must_use]
    pub fn variables(&self) -> &[u64] {
        &self.words[CONTROL..TEMP]
    }

    /// Runs that a fault has stopped.
    #[must_use]
    pub const fn faults(&self) -> u32 {
        self.faults
    }

    /// Merges the report variables into the report that is due, and begins the volatile ones anew.
    fn note_report(&mut self, program: &Program) {
        let values = &self.words[REPORT..TEMP];
        if self.is_report_due {
            let rules = program.merges.iter().zip(&program.initial[REPORT - CONTROL..]);
            for ((due, value), (merge, initial)) in self.report.iter_mut().zip(values).zip(rules) {
                *due = merge.apply(*due, *value, *initial);
            }
        } else {
            self.report.copy_from_slice(values);
        }
        self.is_report_due = true;
        let mut volatile = program.volatile;
        while volatile != 0 {
            let variable = volatile.trailing_zeros() as usize;
            self.words[CONTROL + variable] = program.initial[variable];
            volatile &= volatile - 1;
        }
    }

    fn run_events(&mut self, program: &Program) -> Result<(), Fault> {
        for span in program.spans.iter().take(usize::from(program.event_count)) {
            let mut start = span.start;
            for end in [span.body, span.end] {
                self.run_steps(program, start, end)?;
                if self.words[EVENT_FLAG] == 0 {
                    break;
                }
                start = end;
            }
            if self.words[EVENT_FLAG] != 0 && self.words[FALLTHROUGH] == 0 {
                break;
            }
        }
        Ok(())
    }

    /// One half of an event. Inlined into the one loop that calls it: 10 % of a small program's instructions.
    #[inline(always)]
    fn run_steps(&mut self, program: &Program, start: u16, end: u16) -> Result<(), Fault> {
        let words = &mut self.words;
        let steps = program.steps.get(usize::from(start)..usize::from(end)).unwrap_or_default();
        for step in steps {
            let left = words[usize::from(step.left)];
            let right = words[usize::from(step.right)];
            let value = match step.op {
                Opcode::Bind | Opcode::Def => right,
                Opcode::Add => left.checked_add(right).ok_or(Fault::Overflow)?,
                Opcode::Sub => left.checked_sub(right).ok_or(Fault::Underflow)?,
                Opcode::Mul => left.checked_mul(right).ok_or(Fault::Overflow)?,
                Opcode::Div => left.checked_div(right).ok_or(Fault::DivisionByZero)?,
                Opcode::Equiv => u64::from(left == right),
                Opcode::Gt => u64::from(left > right),
                Opcode::Lt => u64::from(left < right),
                Opcode::Max => left.max(right),
                Opcode::Min => left.min(right),
                Opcode::MaxWrap => later_serial(left, right),
                Opcode::Ewma => ewma(left, words[usize::from(step.result)], right)?,
                Opcode::If if left == 0 => continue,
                Opcode::NotIf if left != 0 => continue,
                Opcode::If | Opcode::NotIf => right,
            };
            // Verified: results lie in the row, before the constants.
            words[usize::from(step.result)] = value;
        }
        Ok(())
    }
}

/// `weight` tenths of the old value and the rest of the new one; the new one if there was none.
fn ewma(weight: u64, old: u64, new: u64) -> Result<u64, Fault> {
    if old == 0 {
        return Ok(new);
    }
    let rest = TENTHS.checked_sub(weight).ok_or(Fault::Underflow)?;
    let old_part = weight.checked_mul(old).ok_or(Fault::Overflow)?;
    let new_part = rest.checked_mul(new).ok_or(Fault::Overflow)?;
    Ok(old_part.checked_add(new_part).ok_or(Fault::Overflow)? / TENTHS)
}

/// The later one of two serial numbers of 32 bits (RFC 1982); 0 is no number, and of two that are half the circle apart the lesser counts.
fn later_serial(left: u64, right: u64) -> u64 {
    if left == 0 {
        return right;
    }
    if right == 0 {
        return left;
    }
    let (a, b) = (left as u32, right as u32);
    let is_left = match b.wrapping_sub(a).cmp(&(1 << 31)) {
        core::cmp::Ordering::Less => false,
        core::cmp::Ordering::Equal => a < b,
        core::cmp::Ordering::Greater => true,
    };
    u64::from(if is_left { a } else { b })
}
