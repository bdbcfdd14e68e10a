//! The model test of the registry: seeded walks of programs that listen, connect, accept, send, shut down, fork, execute, pass descriptors,
//! close and die, with a registry that has no daemon around it, and beside them a small model of Linux's rules. After each step both must say the same.
//! Time is virtual: nothing sleeps, no thread runs. Only memory and sockets are the kernel's.
//!
//! ```text
//!   walk      draws steps, takes them in both worlds     linux     the reference: holders of each socket, and what each end sees
//!   program   a process: the library's side              world     registry, one core by hand, time: the control loop's side
//!   checks    what must hold after each step, and when all is closed       reports   lists made in pieces, of such a world
//!   bounds    what one user can make the registry do
//!   held      what the control thread does for sockets that hold bytes back
//!   resets    what a relay passes on before a reset
//! ```
//! A failure names its seed: `TOWPATH_MODEL_SEED=N cargo test -p towpath-service registry::model` walks that one and prints its steps.
//! `TOWPATH_MODEL_SEEDS=N` walks N seeds instead of the usual number. The steps depend on the seed alone; which port the kernel gives, and in
//! which order the registry goes through its tables, do not: a rare failure may need several walks of its seed.

mod bounds;
mod checks;
mod held;
mod linux;
mod program;
mod reports;
mod resets;
mod walk;
mod world;

use crate::config::Sharing;
use walk::Walk;

/// Seeds that the usual run of the tests walks, for each way of sharing.
const SEEDS: u64 = 320;
/// Steps of one walk.
const STEPS: usize = 120;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Walks each seed. A failure is that of the step which the output ends with. Returns how many connections were made without the service.
fn walk(sharing: Sharing) -> usize {
    let mut direct = 0;
    let only = number("TOWPATH_MODEL_SEED");
    let seeds = only.map_or(0..number("TOWPATH_MODEL_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    for seed in seeds {
        let result = std::panic::catch_unwind(|| Walk::new(seed, sharing, only.is_some()).run(STEPS));
        match result {
            Ok(made) => direct += made,
            Err(cause) => {
                eprintln!("TOWPATH_MODEL_SEED={seed} fails with sharing {sharing:?}");
                std::panic::resume_unwind(cause);
            }
        }
    }
    direct
}

#[test]
fn programs_that_share_memory_see_what_linux_shows() {
    let direct = walk(Sharing::Always);
    assert!(number("TOWPATH_MODEL_SEED").is_some() || direct > 0, "no process connected without the service");
}

#[test]
fn programs_between_which_the_service_relays_see_what_linux_shows() {
    assert_eq!(walk(Sharing::Never), 0, "a connection that should be relayed was not");
}

#[test]
fn programs_of_two_users_see_what_linux_shows() {
    let _ = walk(Sharing::SameUser);
}
