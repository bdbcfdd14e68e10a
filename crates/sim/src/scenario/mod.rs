//! What can be run: scenarios by name, and random ones by seed.

mod named;
mod random;
mod run;
mod setting;

pub use named::{NAMED, Named, Options};
pub use random::random;
pub use run::{Report, Run};
pub use setting::{Event, Kind, MachineSetting, Setting};

/// The setting of scenario `name`, or none of that name.
#[must_use]
pub fn setting(name: &str, seed: u64, options: &Options) -> Option<Setting> {
    if name == "random" {
        return Some(random(seed));
    }
    NAMED.iter().find(|named| named.name == name).map(|named| (named.make)(seed, options))
}
