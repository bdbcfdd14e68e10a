//! The verifier: every rule of [`Refusal`], once, when a program is installed. It never runs a program.

use crate::fuse::fuse;
use crate::instruction::{Event, Instruction, Opcode};
use crate::merge::{Merge, Rules};
use crate::program::{Program, Span, Step};
use crate::refusal::Refusal;
use crate::register::{INFINITY, Implicit, LEGACY_INFINITY, Register, Scope};
use crate::slots;
use crate::{EVENTS_MAX, INSTRUCTIONS_MAX};

/// Builds the program of `instructions` and `events`.
pub fn verify(instructions: &[Instruction], events: &[Event]) -> Result<Program, Refusal> {
    if instructions.len() > INSTRUCTIONS_MAX {
        return Err(Refusal::TooManyInstructions);
    }
    if events.len() > EVENTS_MAX {
        return Err(Refusal::TooManyEvents);
    }
    let mut program = Program::empty();
    define(&mut program, instructions)?;
    // Temporaries that a condition writes are written for all that comes later in a run. Those of a body are not: it may not run.
    let mut written = 0;
    let mut rules = Rules::new();
    for (event, span) in events.iter().enumerate() {
        let start = program.step_count;
        let flag = range(instructions, span.flag_start, span.flag_count, event)?;
        let ends_with_flag = flag.clone().last().is_some_and(|(_, last)| {
            last.result == Register::implicit(Implicit::EventFlag) && !last.op.is_reading_result()
        });
        if !ends_with_flag {
            return Err(Refusal::FlagNotWritten { event });
        }
        resolve(&mut program, flag.inspect(|(_, flag)| rules.read(flag)), &mut written)?;
        let body = program.step_count;
        let steps = range(instructions, span.body_start, span.body_count, event)?;
        resolve(&mut program, steps.inspect(|(_, step)| rules.read(step)), &mut written.clone())?;
        program.spans[event] = Span { start, body, end: program.step_count };
        program.event_count += 1;
    }
    for (index, rule) in rules.rules().into_iter().enumerate() {
        let is_volatile = program.volatile & 1 << (slots::REPORT - slots::CONTROL + index) != 0;
        program.merges[index] = if is_volatile { rule } else { Merge::Newest };
    }
    fuse(&mut program);
    Ok(program)
}

/// Reads the definitions at the beginning.
fn define(program: &mut Program, instructions: &[Instruction]) -> Result<(), Refusal> {
    let mut defined = 0_u32;
    let definitions = instructions.iter().take_while(|instruction| instruction.op == Opcode::Def);
    for (number, Instruction { result, left, right, .. }) in definitions.enumerate() {
        let bad = Refusal::BadDefinition { instruction: number };
        let is_variable = left.scope.is_report() || left.scope.is_control();
        if !is_variable || !left.is_in_bounds() || result != left || right.scope != Scope::Immediate {
            return Err(bad);
        }
        let place = slots::base(left.scope) - slots::CONTROL + left.index as usize;
        if defined & 1 << place != 0 {
            return Err(bad);
        }
        defined |= 1 << place;
        let is_legacy = right.index == LEGACY_INFINITY;
        program.initial[place] = if is_legacy { INFINITY } else { u64::from(right.index) };
        program.volatile |= u32::from(left.scope.is_volatile()) << place;
    }
    let reports = defined >> (slots::REPORT - slots::CONTROL);
    if reports & (reports + 1) != 0 {
        return Err(Refusal::UndefinedReport { index: reports.trailing_ones() });
    }
    program.report_count = reports.trailing_ones() as u8;
    Ok(())
}

/// The instructions of one half of an event, each with its number.
fn range<'a>(
    instructions: &'a [Instruction],
    start: u32,
    count: u32,
    event: usize,
) -> Result<impl Iterator<Item = (usize, &'a Instruction)> + Clone + use<'a>, Refusal> {
    let first = start as usize;
    let inside = first.checked_add(count as usize).and_then(|end| instructions.get(first..end));
    let inside = inside.ok_or(Refusal::EventOutOfBounds { event })?;
    Ok((first..).zip(inside))
}

/// Appends one half of an event. `written` has a bit for each temporary that is written before.
fn resolve<'a>(
    program: &mut Program,
    half: impl Iterator<Item = (usize, &'a Instruction)>,
    written: &mut u32,
) -> Result<(), Refusal> {
    for (number, instruction) in half {
        if instruction.op == Opcode::Def {
            return Err(Refusal::DefinitionInEvent { instruction: number });
        }
        let Instruction { op, result, left, right } = *instruction;
        if !result.is_writable() {
            return Err(Refusal::ReadOnly { instruction: number });
        }
        // The left side of an assignment only repeats its result; it is not read.
        let is_left_read = op != Opcode::Bind;
        for (register, is_read) in [(left, is_left_read), (right, true), (result, op.is_reading_result())] {
            check(program, number, register, is_read, *written)?;
        }
        if result.scope == Scope::Temp {
            *written |= 1 << result.index;
        }
        let step = Step {
            op,
            result: operand(program, result)?,
            left: operand(program, if is_left_read { left } else { right })?,
            right: operand(program, right)?,
        };
        let place = program.steps.get_mut(usize::from(program.step_count)).ok_or(Refusal::TooMuchWork)?;
        *place = step;
        program.step_count += 1;
    }
    Ok(())
}

fn check(
    program: &Program,
    number: usize,
    register: Register,
    is_read: bool,
    written: u32,
) -> Result<(), Refusal> {
    if !register.is_in_bounds() {
        return Err(Refusal::NoSuchRegister { instruction: number });
    }
    if register.scope.is_report() && register.index as usize >= program.report_len() {
        return Err(Refusal::UndefinedReport { index: register.index });
    }
    if register.scope == Scope::Temp && is_read && written & 1 << register.index == 0 {
        return Err(Refusal::UnwrittenTemp { instruction: number, temp: register.index });
    }
    Ok(())
}

fn operand(program: &mut Program, register: Register) -> Result<u8, Refusal> {
    match register.scope {
        Scope::Immediate => program.constant(u64::from(register.index)).ok_or(Refusal::TooManyConstants),
        scope => Ok((slots::base(scope) + register.index as usize) as u8),
    }
}
