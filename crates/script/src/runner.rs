//! Runs the events of a script in order, in virtual time.

mod arguments;
mod calls;
mod code;
mod epoll;
mod options;
mod packets;
mod waiting;

use crate::connection::Connection;
use crate::epoll::Epoll;
use crate::machine;
use crate::network::Network;
use crate::python::Environment;
use crate::report::{Outcome, Report};
use crate::settings::Settings;
use crate::symbols;
use crate::syntax::{Action, Direction, Event, Micros, Script, Trouble, When};
use std::collections::BTreeMap;
use waiting::Pending;

/// What to keep of a run besides its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keep {
    /// Keep the frames to and from the host.
    pub frames: bool,
}

/// Parses `text` and runs it against a new host.
#[must_use]
pub fn run_text(text: &str, settings: &Settings, keep: Keep) -> Report {
    // `--define` options at the top of the script define words, and words are replaced while parsing: so the text is parsed again.
    let mut settings = settings.clone();
    let first = crate::parse(text, &settings.defines);
    let defines = first.iter().flat_map(|script| &script.options).filter(|option| option.name == "define");
    let count = settings.defines.len();
    settings.defines.extend(defines.filter_map(|option| {
        let (word, value) = option.value.as_deref()?.split_once('=')?;
        Some((word.to_owned(), value.to_owned()))
    }));
    let script = if settings.defines.len() > count { crate::parse(text, &settings.defines) } else { first };
    match script {
        Ok(script) => run(&script, &settings, keep),
        Err(trouble) => Report::ended(trouble.into()),
    }
}

/// Runs `script` against a new host.
#[must_use]
pub fn run(script: &Script, settings: &Settings, keep: Keep) -> Report {
    let settings = match settings.clone().with_options_of(script) {
        Ok(settings) => settings,
        Err(trouble) => return Report::ended(trouble.into()),
    };
    if let Err(trouble) = crate::support::check(script) {
        return Report::ended(trouble.into());
    }
    let mut runner = Runner::new(settings, keep);
    let outcome = match runner.run(script) {
        Ok(()) => Outcome::Passed,
        Err(trouble) => trouble.into(),
    };
    Report { outcome, trace: runner.trace, frames: runner.network.capture.unwrap_or_default() }
}

/// The file behind a descriptor of a script.
pub(crate) enum File {
    Socket(Socket),
    Epoll(Epoll),
    /// A file that contains only zeros.
    Zeros {
        len: usize,
        at: usize,
    },
}

/// The socket behind a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    pub(crate) fd: sim::Fd,
    pub(crate) is_nonblocking: bool,
}

/// Time and direction of the previous event.
#[derive(Clone, Copy)]
struct Last {
    at: Micros,
    is_inbound: bool,
}

/// The time at which an event is due, in script microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) from: Micros,
    pub(crate) to: Micros,
    /// True when any time is accepted.
    pub(crate) is_any: bool,
    /// Largest deviation from the time.
    pub(crate) tolerance: Micros,
    /// The time from which relative times count.
    pub(crate) offset: Micros,
}

pub(crate) struct Runner {
    settings: Settings,
    network: Network,
    connection: Option<Connection>,
    files: BTreeMap<i32, File>,
    pending: Option<Pending>,
    environment: Environment,
    last: Option<Last>,
    /// Line of the event that is running.
    line: u32,
    next_port: u16,
    trace: Vec<String>,
}

impl Runner {
    fn new(settings: Settings, keep: Keep) -> Self {
        let mut environment = Environment::default();
        symbols::CODE.iter().for_each(|(name, value)| environment.set(name, *value));
        Self {
            network: Network::new(|now| machine::host(&settings, now), keep.frames),
            settings,
            connection: None,
            files: BTreeMap::new(),
            pending: None,
            environment,
            last: None,
            line: 0,
            next_port: 40_000,
            trace: Vec::new(),
        }
    }

    fn run(&mut self, script: &Script) -> Result<(), Trouble> {
        for (i, event) in script.events.iter().enumerate() {
            self.line = event.line;
            if i == 0 && !matches!(event.when, When::At(0) | When::After(0) | When::Any) {
                return Err(self.fail("the first event must be at time 0"));
            }
            let due = self.due(event);
            self.event(event, due)?;
            self.last = Some(Last { at: due.from, is_inbound: is_inbound(event) });
        }
        self.await_pending()?;
        self.network.host.check().map_err(|what| self.fail(what))
    }

    pub(crate) fn fail(&self, why: impl Into<String>) -> Trouble {
        Trouble::syntax(self.line, why)
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) -> Trouble {
        Trouble::unsupported(self.line, what)
    }

    /// Computes when `event` is due. A relative time counts from the time of the previous event if both are packets to the stack; otherwise
    /// from now.
    fn due(&self, event: &Event) -> Due {
        let now = self.network.now();
        let offset = match self.last {
            Some(last) if last.is_inbound && is_inbound(event) => last.at,
            _ => now,
        };
        let (from, to) = match event.when {
            When::Any => (now, now),
            When::At(at) => (at, at),
            When::After(by) => (offset + by, offset + by),
            When::Between(from, to) => (from, to),
            When::AfterBetween(from, to) => (offset + from, offset + to),
        };
        let since = self.last.map_or(0, |last| from - last.at);
        let dynamic = (self.settings.tolerance_percent / 100.0 * since as f64) as Micros;
        let tolerance = self.settings.tolerance.max(dynamic);
        Due { from, to, is_any: event.when == When::Any, tolerance, offset }
    }

    fn event(&mut self, event: &Event, due: Due) -> Result<(), Trouble> {
        match &event.action {
            Action::Packet(packet) if packet.direction == Direction::Out => self.expect(packet, due),
            Action::Packet(packet) => {
                self.advance(due.from)?;
                self.check_time(due, self.network.now(), "this packet to the stack")?;
                self.inject(packet)
            }
            Action::Call(call) => {
                self.await_pending()?;
                self.advance(due.from)?;
                self.check_time(due, self.network.now(), "this call")?;
                self.call(call, due)
            }
            Action::Command(text) => {
                self.advance(due.from)?;
                self.check_time(due, self.network.now(), "this command")?;
                self.command(text)
            }
            Action::Code(code) => {
                self.advance(due.from)?;
                self.check_time(due, self.network.now(), "this code")?;
                self.code(code)
            }
        }
    }

    /// A command between events: a sysctl that it changes must be one that can change on a running host.
    fn command(&mut self, text: &str) -> Result<(), Trouble> {
        let mut after = self.settings.shell.clone();
        after.run(text, self.line)?;
        for (name, value) in &after.sysctls {
            let is_changed = self.settings.shell.sysctls.get(name) != Some(value);
            let is_seen = is_changed && crate::sysctl::matters(name);
            if is_seen && !machine::change(&mut self.network.host, name, value) {
                return Err(self.unsupported(format!("the sysctl {name}={value} in the middle of a script")));
            }
        }
        self.settings.shell = after;
        Ok(())
    }

    /// Checks that `at` is a time that `due` allows.
    pub(crate) fn check_time(&self, due: Due, at: Micros, what: &str) -> Result<(), Trouble> {
        if due.is_any || (due.from - due.tolerance <= at && at <= due.to + due.tolerance) {
            return Ok(());
        }
        let seconds = |t: Micros| t as f64 / 1e6;
        let wanted = if due.from == due.to {
            format!("{:.6} s", seconds(due.from))
        } else {
            format!("{:.6} to {:.6} s", seconds(due.from), seconds(due.to))
        };
        let (at, tolerance) = (seconds(at), seconds(due.tolerance));
        Err(self.fail(format!("{what} was due at {wanted} (within {tolerance:.6} s) and came at {at:.6} s")))
    }

    /// Lets time pass up to `until`; pending calls are retried on the way.
    fn advance(&mut self, until: Micros) -> Result<(), Trouble> {
        self.after_change()?;
        while self.step(until)? {}
        Ok(())
    }

    /// Advances to the next event, which may be the timeout of a pending call. False when `until` is reached.
    pub(crate) fn step(&mut self, until: Micros) -> Result<bool, Trouble> {
        let timeout = self.pending.as_ref().and_then(Pending::timeout);
        let is_before = self.network.step(timeout.map_or(until, |timeout| timeout.min(until)));
        self.after_change()?;
        Ok(is_before)
    }

    /// The host has run: retries the pending call.
    ///
    /// Only when a socket has an event or the timeout is over, because a retry is itself a call that changes the host's state.
    pub(crate) fn after_change(&mut self) -> Result<(), Trouble> {
        let has_news = self.network.host.take_news();
        let timeout = self.pending.as_ref().and_then(Pending::timeout);
        if has_news || timeout.is_some_and(|timeout| self.network.now() >= timeout) {
            self.retry_pending()?;
        }
        Ok(())
    }
}

fn is_inbound(event: &Event) -> bool {
    matches!(&event.action, Action::Packet(packet) if packet.direction == Direction::In)
}
