//! A whole program: definitions, then events. The first place where an agent or a tool meets the compiler.

use ccp_vm::{Event, Field, INSTRUCTIONS_MAX, Instruction, LEGACY_INFINITY, Program, Register};

use crate::TEXT_MAX;
use crate::events::{Events, nested};
use crate::expression::number;
use crate::lexer::shown;
use crate::mistake::{Mistake, Place};
use crate::names::{Declaration, Kind};
use crate::tree::{Node, What, parse};

const START: Place = Place { line: 1, column: 1 };

/// A compiled program: what an INSTALL carries, and the names of its variables.
#[derive(Clone, Debug)]
pub struct Compiled {
    instructions: Vec<Instruction>,
    events: Vec<Event>,
    declared: Vec<(String, Register)>,
    locals: Vec<(String, Register)>,
    event_lines: Vec<usize>,
    program: Program,
}

impl Compiled {
    /// Definitions first, then the events' instructions.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// The events, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The line of the outer `when` that each event belongs to.
    #[must_use]
    pub fn event_lines(&self) -> &[usize] {
        &self.event_lines
    }

    /// The name of a variable, declared or local; `None` for registers without one.
    #[must_use]
    pub fn name(&self, register: Register) -> Option<&str> {
        let all = self.declared.iter().chain(&self.locals);
        all.into_iter().find(|(_, own)| *own == register).map(|(name, _)| name.as_str())
    }

    /// The names of the variables that an agent may set, beside `Cwnd` and `Rate`, in the order of the text.
    pub fn controls(&self) -> impl Iterator<Item = &str> {
        let controls = self.declared.iter().filter(|(_, register)| register.scope.is_control());
        controls.map(|(name, _)| name.as_str())
    }

    /// The same program, verified and ready to run.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// What an agent names to set `name`: a variable outside `Report`, `Cwnd` or `Rate`. `None` if it may not.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Field> {
        match name {
            "Cwnd" => Some(Field::Cwnd),
            "Rate" => Some(Field::Rate),
            _ => Field::of(self.register(name)?),
        }
    }

    /// The register of a declared variable by its full name (`Report.x`, or `x`).
    #[must_use]
    pub fn register(&self, name: &str) -> Option<Register> {
        self.declared.iter().find(|(declared, _)| declared == name).map(|(_, register)| *register)
    }

    /// The names of the report variables without `Report.`, in the order of the values in a report.
    pub fn reports(&self) -> impl Iterator<Item = &str> {
        let reports = self.declared.iter().filter(|(_, register)| register.scope.is_report());
        reports.map(|(name, _)| name.strip_prefix("Report.").unwrap_or(name))
    }
}

/// Compiles a program of at most [`TEXT_MAX`] bytes.
///
/// # Errors
/// Every mistake that was found, in the order of the text; at least one.
pub fn compile(text: &str) -> Result<Compiled, Vec<Mistake>> {
    if text.len() > TEXT_MAX {
        let found = format!("{} bytes", text.len());
        return Err(vec![Mistake::new(START, format!("at most {TEXT_MAX} bytes"), found)]);
    }
    let nodes = parse(text).map_err(|mistake| vec![mistake])?;
    let mut writer = Events::default();
    let Some((definitions, events)) = nodes.split_first() else {
        return Err(vec![no_definitions(START, "an empty text".to_owned())]);
    };
    define_all(&mut writer, definitions);
    let defined = writer.code.names.definitions().len();
    for node in events {
        match nested(node) {
            Some(when) => writer.outer(&when),
            None => {
                let mistake =
                    Mistake::new(node.place, "an event, `(when condition statement ..)`", node.shown());
                writer.mistakes.push(mistake);
            }
        }
        // Definitions count, too, and one mistake of this kind is enough.
        let count = defined + writer.code.instructions.len();
        if count > INSTRUCTIONS_MAX {
            let expected = format!("at most {INSTRUCTIONS_MAX} instructions");
            writer.mistakes.push(Mistake::new(node.place, expected, format!("{count} up to this event")));
            break;
        }
    }
    if events.is_empty() && writer.mistakes.is_empty() {
        let mistake =
            Mistake::new(definitions.place, "at least one event behind `(def ..)`", "the end of the text");
        writer.mistakes.push(mistake);
    }
    finish(writer, events.last().map_or(START, |node| node.place))
}

fn finish(writer: Events, last: Place) -> Result<Compiled, Vec<Mistake>> {
    let Events { code, mut events, lines, mut mistakes } = writer;
    mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let mut instructions = code.names.definitions();
    let definitions = instructions.len() as u32;
    instructions.extend(code.instructions);
    for event in &mut events {
        event.flag_start += definitions;
        event.body_start += definitions;
    }
    match Program::verify(&instructions, &events) {
        Ok(program) => {
            let locals = code.names.locals();
            let declared = code.names.into_declared();
            Ok(Compiled { instructions, events, declared, locals, event_lines: lines, program })
        }
        Err(refusal) => Err(vec![Mistake::new(last, "a program that a datapath takes", refusal.to_string())]),
    }
}

fn no_definitions(place: Place, found: String) -> Mistake {
    Mistake::new(place, "`(def ..)` at the beginning", found)
        .hint("a program without variables begins with `(def)`")
}

/// `(def ..)`: variables in `Report` are numbered first, then those outside, both in the order of the text.
fn define_all(writer: &mut Events, node: &Node<'_>) {
    let Some(call) = node.call().filter(|call| call.word == "def") else {
        writer.mistakes.push(no_definitions(node.place, node.shown()));
        return;
    };
    let mut outside = Vec::new();
    let mut has_report = false;
    for item in call.items.iter() {
        match item.call().filter(|call| call.word == "Report") {
            Some(report) => {
                if std::mem::replace(&mut has_report, true) {
                    let mistake = Mistake::new(report.place, "one `(Report ..)`", "another");
                    writer.mistakes.push(mistake);
                }
                report.items.iter().for_each(|item| define(writer, item, "Report."));
            }
            None => outside.push(item),
        }
    }
    outside.into_iter().for_each(|item| define(writer, item, ""));
}

fn define(writer: &mut Events, item: &Node<'_>, prefix: &str) {
    let outcome = declaration(item, prefix).and_then(|declaration| writer.code.names.declare(declaration));
    writer.mistakes.extend(outcome.err());
}

/// The declaration that `([volatile] name initial)` makes.
fn declaration<'a>(node: &Node<'a>, prefix: &str) -> Result<Declaration<'a>, Mistake> {
    let wrong = || Mistake::new(node.place, "`(name initial)` or `(volatile name initial)`", node.shown());
    let What::List(items) = &node.what else { return Err(wrong()) };
    let (is_volatile, items) = match items.as_slice() {
        [Node { what: What::Word("volatile"), .. }, items @ ..] => (true, items),
        items => (false, items),
    };
    let [Node { what: What::Word(word), place }, initial] = items else { return Err(wrong()) };
    let (kind, initial) = initial_value(initial)?;
    let name = format!("{prefix}{word}");
    Ok(Declaration { place: *place, name, word, is_volatile, initial, kind })
}

fn initial_value(node: &Node<'_>) -> Result<(Kind, u32), Mistake> {
    const EXPECTED: &str = "a number, `true`, `false` or `+infinity`";
    let What::Word(word) = node.what else { return Err(Mistake::new(node.place, EXPECTED, node.shown())) };
    match word {
        "true" => Ok((Kind::Truth, 1)),
        "false" => Ok((Kind::Truth, 0)),
        _ => match number(node.place, word)? {
            Some(LEGACY_INFINITY) => Err(Mistake::new(node.place, "another number", shown(word))
                .hint("datapaths read 1073741823 in a definition as +infinity")),
            Some(value) => Ok((Kind::Number, value)),
            None => Err(Mistake::new(node.place, EXPECTED, shown(word))),
        },
    }
}
