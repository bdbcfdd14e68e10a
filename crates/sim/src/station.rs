//! A machine of the network with its application, its clock and the oracle of its wire.

use crate::apps::{Application, Ledger};
use crate::load::{Load, Tally};
use crate::machine::Machine;
use crate::oracle::WireOracle;
use base::{Duration, Instant};

/// A machine and its application that are still busy after this many turns at one instant never come to rest.
const TURNS_MAX: usize = 100_000;

/// A machine that implements `Debug`.
pub trait MachineDebug: Machine + std::fmt::Debug {}
impl<M: Machine + std::fmt::Debug> MachineDebug for M {}

/// The wire's oracle, with the length of the longest packet.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) oracle: WireOracle,
    pub(crate) mtu: u16,
}

/// A machine with its application and its own clock.
#[derive(Debug)]
pub(crate) struct Station {
    pub(crate) machine: Box<dyn MachineDebug>,
    pub(crate) application: Option<Application>,
    /// An application for figures; a machine has it instead of the other.
    pub(crate) load: Option<Load>,
    pub(crate) watch: Option<Watch>,
    pub(crate) mac: [u8; 6],
    /// By how much its clock is ahead of the network's.
    pub(crate) ahead: Duration,
    /// The machine does not run before this time.
    pub(crate) stopped_until: Instant,
    /// Frames wake the machine no sooner than this after its last run, as with interrupt moderation.
    pub(crate) moderation: Duration,
    /// Frames that have come since the last run, with moderation.
    held: Vec<Vec<u8>>,
    ran_at: Instant,
    has_input: bool,
    pub(crate) cable: Option<usize>,
    /// The network has counted its application as done.
    pub(crate) is_done: bool,
}

impl Station {
    pub(crate) fn new(mac: [u8; 6], machine: Box<dyn MachineDebug>, watched_mtu: Option<u16>) -> Self {
        Self {
            machine,
            application: None,
            load: None,
            watch: watched_mtu.map(|mtu| Watch { oracle: WireOracle::default(), mtu }),
            mac,
            ahead: Duration::ZERO,
            stopped_until: Instant::ZERO,
            moderation: Duration::ZERO,
            held: Vec::new(),
            ran_at: Instant::ZERO,
            has_input: false,
            cable: None,
            is_done: true,
        }
    }

    /// True for frames to this station's address, to a group, or to all.
    pub(crate) fn takes(&self, frame: &[u8]) -> bool {
        let is_for_us = frame.first_chunk::<6>().is_some_and(|dst| dst[0] & 1 == 1 || *dst == self.mac);
        // ARP has no checksum of its own. A damaged ARP frame, which a real link's frame check sequence would find, is dropped here.
        let is_arp = frame.get(12..14) == Some(&[0x08, 0x06]);
        is_for_us && (!is_arp || frame.get(22..28) == frame.get(6..12))
    }

    pub(crate) fn inject(&mut self, frame: Vec<u8>) {
        if let Some(watch) = &mut self.watch {
            watch.oracle.received(&frame);
        }
        // A machine that has frames wants to run at once, so frames that must not wake it wait here.
        if self.moderation == Duration::ZERO {
            self.machine.inject_owned(frame);
        } else {
            self.held.push(frame);
        }
        self.has_input = true;
    }

    /// When the station's next turn is due, in the network's time.
    pub(crate) fn due(&self) -> Instant {
        let input = if self.has_input { self.ran_at.plus(self.moderation) } else { Instant::NEVER };
        let application = self.application.as_ref().map_or(Instant::NEVER, Application::next_deadline);
        let load = self.load.as_ref().map_or(Instant::NEVER, Load::next_deadline);
        let own = match self.machine.next_deadline().min(application).min(load) {
            Instant::NEVER => Instant::NEVER,
            at => Instant::from_ns(at.as_ns().saturating_sub(self.ahead.as_ns())),
        };
        own.min(input).max(self.stopped_until)
    }

    /// True when its application and its load are done.
    pub(crate) fn is_over(&self) -> bool {
        self.application.as_ref().is_none_or(Application::is_done)
            && self.load.as_ref().is_none_or(Load::is_done)
    }

    pub(crate) fn turn(&mut self, network_now: Instant, ledger: &mut Ledger, tally: &mut Tally) {
        let now = network_now.plus(self.ahead);
        (self.ran_at, self.has_input) = (network_now, false);
        for frame in self.held.drain(..) {
            self.machine.inject_owned(frame);
        }
        for _ in 0..TURNS_MAX {
            self.machine.run(now);
            let Some(stack) = self.machine.stack() else { return };
            let is_busy = match (&mut self.application, &mut self.load) {
                (Some(app), _) => app.turn(now, stack, ledger),
                (None, Some(load)) => load.turn(now, stack, tally),
                (None, None) => return,
            };
            if !is_busy {
                return;
            }
        }
        ledger.breach(|| "an application and its stack never come to rest".to_owned());
    }
}
