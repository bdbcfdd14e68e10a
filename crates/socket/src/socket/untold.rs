//! Which options the placeholder of a connection has not been given yet (see `pending_sockopts`).
//!
//! ```text
//!   bit   0..3          3..6                     6           7
//!         switch is on  switch was set by that   switches    the listener's options
//!                                                are untold  are untold
//! ```

use std::sync::atomic::{AtomicU8, Ordering};

/// Options that are on or off and concern the TCP stack only.
const SWITCHES: [i32; 3] = [libc::TCP_NODELAY, libc::TCP_CORK, libc::TCP_QUICKACK];

const SWITCHES_UNTOLD: u8 = 1 << 6;
const LISTENERS_UNTOLD: u8 = 1 << 7;

const fn on(switch: usize) -> u8 {
    1 << switch
}

const fn is_set(switch: usize) -> u8 {
    1 << (switch + SWITCHES.len())
}

/// The bits drawn in the module's documentation.
#[derive(Debug, Default)]
pub struct Untold(AtomicU8);

impl Untold {
    fn bits(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    /// True when the placeholder lacks nothing.
    pub fn is_nothing(&self) -> bool {
        self.bits() & (SWITCHES_UNTOLD | LISTENERS_UNTOLD) == 0
    }

    /// True when a switch was noted that the placeholder lacks.
    pub fn has_switches(&self) -> bool {
        self.bits() & SWITCHES_UNTOLD != 0
    }

    /// Notes that the program has set a switch.
    pub fn note(&self, switch: usize, is_on: bool) {
        let noted = |bits: u8| {
            let rest = bits & !on(switch) | is_set(switch) | SWITCHES_UNTOLD;
            Some(if is_on { rest | on(switch) } else { rest })
        };
        // The closure never refuses. AcqRel: as in `take_switches`.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, noted);
    }

    /// The placeholder was given another value of a switch than the one noted.
    pub fn forget(&self, switch: usize) {
        self.0.fetch_and(!is_set(switch), Ordering::AcqRel);
    }

    /// Notes that the placeholder lacks its listener's options.
    pub fn note_listeners(&self) {
        self.0.fetch_or(LISTENERS_UNTOLD, Ordering::Relaxed);
    }

    /// The value of a switch that the placeholder lacks.
    pub fn value(&self, switch: usize) -> Option<bool> {
        let bits = self.bits();
        let is_known = bits & SWITCHES_UNTOLD != 0 && bits & is_set(switch) != 0;
        is_known.then_some(bits & on(switch) != 0)
    }

    /// The switches that were set, each with its value as the kernel takes it.
    pub fn switches(&self) -> impl Iterator<Item = (i32, [u8; 4])> + use<> {
        Self::of(self.bits())
    }

    /// The same, to be set on the placeholder now.
    pub fn take_switches(&self) -> impl Iterator<Item = (i32, [u8; 4])> + use<> {
        // AcqRel: of two threads that do this, the second finds the bits as the first left them.
        Self::of(self.0.fetch_and(!SWITCHES_UNTOLD, Ordering::AcqRel))
    }

    /// True when the listener's options are to be set on the placeholder now.
    pub fn take_listeners(&self) -> bool {
        self.0.fetch_and(!LISTENERS_UNTOLD, Ordering::AcqRel) & LISTENERS_UNTOLD != 0
    }

    fn of(bits: u8) -> impl Iterator<Item = (i32, [u8; 4])> {
        let of = move |(i, name)| (name, i32::from(bits & on(i) != 0).to_ne_bytes());
        SWITCHES.into_iter().enumerate().filter(move |(i, _)| bits & is_set(*i) != 0).map(of)
    }
}

/// The index of a switch in [`SWITCHES`]; `None` for any other option.
pub fn switch(level: i32, name: i32) -> Option<usize> {
    if level == libc::IPPROTO_TCP { SWITCHES.iter().position(|switch| *switch == name) } else { None }
}
