//! What one short connection costs the slow path: SYN, final acknowledgement, accept, both FINs, and letting go.
//!
//! `cargo bench -p towpath-slowpath --bench churn`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement that cannot go on panics")]

#[path = "../tests/harness/mod.rs"]
mod harness;

use flow::{Exception, state};
use harness::*;
use slowpath::Event;
use std::time::Instant;
use wire::FourTuple;

const CONNECTIONS: u32 = 20_000;

fn main() {
    let mut w = World::with(|config, _| config.time_wait_max = 4096);
    w.slow.listen(us(80), 1, u32::MAX - 1).unwrap();
    let owner = w.owner();
    let mut rounds = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        for i in 0..CONNECTIONS {
            connection(&mut w, owner, 1024 + (i % 60_000) as u16, i);
        }
        rounds.push(start.elapsed().as_nanos() / u128::from(CONNECTIONS));
    }
    rounds.sort_unstable();
    println!("{} ns per connection, passive open to record free (median of {})", rounds[2], rounds.len());
}

fn connection(w: &mut World, owner: slowpath::Owner, from: u16, seq: u32) {
    let tuple = FourTuple::new(peer(from), us(80));
    w.segment(tuple, SYN, seq.wrapping_mul(100_000), 0, options(), &[]);
    let answer = w.next().header;
    let seq = answer.ack.0;
    w.segment(tuple, ACK, seq, answer.seq.0.wrapping_add(1), options(), &[]);
    let Some(Event::Incoming { pending, .. }) = w.slow.poll_event() else { panic!("not offered") };
    let flow = w.slow.accept(w.now, pending, owner).unwrap();
    // The peer closes first, as after `Connection: close`.
    w.exception(Exception::FinReceived { flow });
    w.edit(flow, |parts| parts.rx.set(state::FIN_QUEUED | state::FIN_SENT | state::FIN_ACKED));
    w.exception(Exception::AppClosed { flow });
    w.exception(Exception::FinAcked { flow });
    w.exception(Exception::Dropped { flow });
    while w.slow.poll_event().is_some() {}
    w.orders.clear();
    w.sent.clear();
}
