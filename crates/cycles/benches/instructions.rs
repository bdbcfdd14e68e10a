//! What a border between two sections costs in instructions, on and off: fixed work for callgrind, which counts inside `counted` only.
//! `cargo xtask instructions` runs it.
#![allow(clippy::print_stdout)] // A measurement prints.

use cycles::{Account, Switch, Ticks};

const ROUNDS: usize = 10_000;
/// As many as a round of a core has.
const BORDERS: usize = 8;

fn main() {
    let switch = match std::env::args().nth(1).as_deref() {
        Some("on") => Switch::on(1, 0, Ticks::Tsc),
        Some("off") => Switch::OFF,
        _ => return println!("one of: on, off; see the head of the source"),
    };
    let mut account = Account::<BORDERS>::default();
    account.follow(switch, 0);
    for _ in 0..ROUNDS {
        counted(&mut account);
    }
    println!("{} borders", ROUNDS * BORDERS);
}

#[inline(never)]
fn counted(account: &mut Account<BORDERS>) {
    (0..BORDERS).for_each(|section| std::hint::black_box(&mut *account).enter(section));
}
