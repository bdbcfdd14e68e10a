//! `when` into events. A `when` inside another becomes events of its own, so that nothing in it runs unless its condition is true.
//!
//! ```text
//! (when A  S1  (when B  S2)  S3)        a, b: hidden locals; s: a third one, the same for all of the outer `when`
//!
//! event 1   condition: b = 0, a = 0, A     body: S1, a = 1, s = fallthrough, fallthrough = 1, b = B
//! event 2   condition: b                   body: S2
//! event 3   condition: a                   body: S3, fallthrough = s        `(fallthrough)` behind event 1 sets s
//! ```
//! While the parts run, `fallthrough` is on, so that each of them is reached; the last part puts it back.

use ccp_vm::{EVENTS_MAX, Event, Implicit, Instruction, Register};

use crate::expression::Code;
use crate::mistake::{Mistake, Place};
use crate::tree::{Call, Node};

/// The program that is being written.
#[derive(Default)]
pub struct Events {
    pub code: Code,
    pub events: Vec<Event>,
    /// The line of the outer `when` of each event.
    pub lines: Vec<usize>,
    pub mistakes: Vec<Mistake>,
}

/// One outer `when` while it is written.
struct Outer {
    place: Place,
    /// Where the instructions of the present event's condition and body begin.
    flag_start: usize,
    body_start: usize,
    /// For a `when` with others inside.
    split: Option<Split>,
}

/// The hidden locals of a `when` with others inside.
struct Split {
    /// Where the fallthrough of the outer `when` waits while its parts run.
    saved: Register,
    /// 1 if the outer `when` was true in this run.
    guard: Register,
    /// One for each `when` inside, in the order of the text; 1 if it was true in this run.
    inner: std::vec::IntoIter<Register>,
    /// The first part has ended: `fallthrough` is on, and `saved` holds what it was.
    is_open: bool,
}

impl Events {
    /// One event of the program.
    pub fn outer(&mut self, when: &Call<'_, '_>) {
        let Some((condition, body)) = self.halves(when) else { return };
        let flag_start = self.code.instructions.len();
        let split = match count_nested(body) {
            0 => None,
            count => match self.hide(count) {
                Some(split) => Some(split),
                None => return self.no_room(when.place),
            },
        };
        let guard = split.as_ref().map(|split| split.guard);
        let condition = self.code.condition(condition, Register::implicit(Implicit::EventFlag));
        self.note(condition);
        let body_start = self.code.instructions.len();
        let mut outer = Outer { place: when.place, flag_start, body_start, split };
        self.body(body, &mut outer, guard);
        if let Some(split) = &outer.split {
            self.code.write(Register::implicit(Implicit::Fallthrough), split.saved);
        }
        self.close(&outer);
    }

    /// Hidden locals for a `when` with `count` others inside. The condition of its first event sets them to 0.
    fn hide(&mut self, count: usize) -> Option<Split> {
        let hidden: Option<Vec<Register>> = (0..count + 2).map(|_| self.code.names.hidden()).collect();
        let mut hidden = hidden?.into_iter();
        let (saved, guard) = (hidden.next()?, hidden.next()?);
        for register in hidden.clone().chain([guard]) {
            self.code.instructions.push(Instruction::bind(register, Register::immediate(0)));
        }
        Some(Split { saved, guard, inner: hidden, is_open: false })
    }

    fn no_room(&mut self, place: Place) {
        self.mistakes.push(
            Mistake::new(place, "room for the hidden locals of a `when` with others inside", "none")
                .hint("8 locals in all; write separate events with `(fallthrough)` instead"),
        );
    }

    /// The statements of one `when`. `guard` holds 1 if this `when` was true; only a `when` with others inside needs it.
    fn body(&mut self, body: &[Node<'_>], outer: &mut Outer, guard: Option<Register>) {
        for node in body {
            if let Some(inner) = nested(node) {
                self.inner(&inner, outer, guard);
            } else {
                let saved = outer.split.as_ref().filter(|split| split.is_open).map(|split| split.saved);
                let outcome = self.statement(node, saved);
                self.note(outcome);
            }
        }
    }

    /// A `when` inside another: its condition belongs to the part before, its body is an event, and so is what follows.
    fn inner(&mut self, when: &Call<'_, '_>, outer: &mut Outer, guard_of_parent: Option<Register>) {
        let Some((condition, body)) = self.halves(when) else { return };
        let Some(split) = &mut outer.split else { return };
        let Some(guard) = split.inner.next() else { return };
        if !split.is_open {
            split.is_open = true;
            let fallthrough = Register::implicit(Implicit::Fallthrough);
            let one = Register::immediate(1);
            let open = [(split.guard, one), (split.saved, fallthrough), (fallthrough, one)];
            let binds = open.map(|(register, value)| Instruction::bind(register, value));
            self.code.instructions.extend(binds);
        }
        let outcome = self.code.condition(condition, guard);
        self.note(outcome);
        self.next(outer, guard);
        self.body(body, outer, Some(guard));
        if let Some(guard) = guard_of_parent {
            self.next(outer, guard);
        }
    }

    /// Ends the present event and begins the next part, which runs if `guard` is not 0.
    fn next(&mut self, outer: &mut Outer, guard: Register) {
        self.close(outer);
        outer.flag_start = self.code.instructions.len();
        self.code.instructions.push(Instruction::bind(Register::implicit(Implicit::EventFlag), guard));
        outer.body_start = self.code.instructions.len();
    }

    fn close(&mut self, outer: &Outer) {
        if self.events.len() == EVENTS_MAX {
            let mistake = Mistake::new(outer.place, format!("at most {EVENTS_MAX} events"), "one more");
            return self.mistakes.push(mistake.hint("a `when` inside another takes two"));
        }
        let end = self.code.instructions.len();
        self.lines.push(outer.place.line);
        self.events.push(Event {
            flag_start: outer.flag_start as u32,
            flag_count: (outer.body_start - outer.flag_start) as u32,
            body_start: outer.body_start as u32,
            body_count: (end - outer.body_start) as u32,
        });
    }

    /// A statement that is no `when`. `saved` is where a fallthrough is noted, if it must wait.
    fn statement(&mut self, node: &Node<'_>, saved: Option<Register>) -> Result<(), Mistake> {
        let call = node.call();
        let (word, count) = call.as_ref().map_or(("", 0), |call| (call.word, call.items.len()));
        match (word, count) {
            ("report", 0) => self.code.raise(Implicit::Report),
            ("reset", 0) => self.code.write(Register::implicit(Implicit::Micros), Register::immediate(0)),
            ("fallthrough", 0) => match saved {
                Some(saved) => self.code.write(saved, Register::immediate(1)),
                None => self.code.raise(Implicit::Fallthrough),
            },
            _ => {
                self.code.statement(node)?;
            }
        }
        Ok(())
    }

    /// Condition and statements of a `when`.
    fn halves<'n, 'a>(&mut self, when: &'n Call<'_, 'a>) -> Option<(&'n Node<'a>, &'n [Node<'a>])> {
        match when.items.split_first() {
            Some((condition, body)) if !body.is_empty() => Some((condition, body)),
            _ => {
                let found = format!("{} parts", when.items.len());
                let expected = "a condition and at least one statement in `when`";
                self.mistakes.push(Mistake::new(when.place, expected, found));
                None
            }
        }
    }

    fn note(&mut self, outcome: Result<(), Mistake>) {
        self.mistakes.extend(outcome.err());
    }
}

/// The node as a `when`, if it is one.
pub fn nested<'n, 'a>(node: &'n Node<'a>) -> Option<Call<'n, 'a>> {
    node.call().filter(|call| call.word == "when")
}

/// The number of `when` among these statements, and inside those.
fn count_nested(body: &[Node<'_>]) -> usize {
    body.iter()
        .filter_map(nested)
        .map(|inner| 1 + count_nested(inner.items.get(1..).unwrap_or_default()))
        .sum()
}
