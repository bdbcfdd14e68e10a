//! The scenarios: those with a name, and random ones that a seed determines.

mod elastic;
mod named;
mod random;
mod run;
mod setting;

pub use named::{NAMED, Named, Options};
pub use random::random;
pub use run::{Report, Run};
pub use setting::{Event, Kind, MachineSetting, Setting};

/// The random scenarios, with the kind of their peers and a description: the seed determines everything.
pub const RANDOM: [(&str, Kind, &str); 3] = [
    ("random", Kind::Towpath, "everything is drawn from the seed"),
    ("random-hostile", Kind::Hostile, "the same, against a peer that keeps no rule"),
    ("random-smoltcp", Kind::Smoltcp, "the same, against the released crate smoltcp"),
];

/// The setting of scenario `name`; `None` if there is no such scenario.
#[must_use]
pub fn setting(name: &str, seed: u64, options: &Options) -> Option<Setting> {
    let peers = RANDOM.iter().find(|(random, _, _)| *random == name);
    if let Some((_, kind, _)) = peers {
        return Some(random(seed, *kind));
    }
    NAMED.iter().find(|named| named.name == name).map(|named| (named.make)(seed, options))
}
