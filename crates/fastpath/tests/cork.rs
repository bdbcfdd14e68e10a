//! Partial segments held back by the application: `TCP_CORK` and `MSG_MORE`, and everything that lets them go.

use crate::scene::{Scene, scene};
use base::Duration;
use core::sync::atomic::Ordering::Relaxed;
use shm::application_flags::{CORK, MORE, NODELAY, PUSHED_SHIFT};
use shm::half_flags::{FIN, WANT_SPACE};
use std::collections::VecDeque;
use wire::TcpFlags;

const MSS: usize = 1448;

/// What the application says, and its doorbell.
fn advise(s: &mut Scene, flags: u64) -> Vec<usize> {
    say(s, flags);
    s.host.ring(5);
    sizes(s)
}

/// Without the doorbell.
fn say(s: &Scene, flags: u64) {
    let (_, own) = s.host.region.halves(5).unwrap();
    own.extra.store(flags, Relaxed);
}

fn send(s: &mut Scene, len: usize) -> Vec<usize> {
    assert_eq!(s.host.send(&mut s.sock, &vec![7; len], 64 << 10), len);
    sizes(s)
}

fn sizes(s: &mut Scene) -> Vec<usize> {
    s.poll().iter().map(|got| got.payload.len()).collect()
}

fn after(s: &mut Scene, ms: u64) -> Vec<usize> {
    s.after(Duration::from_ms(ms)).iter().map(|got| got.payload.len()).collect()
}

fn ack(s: &mut Scene, upto: u32) -> Vec<usize> {
    s.peer.ack(0, upto);
    sizes(s)
}

#[test]
fn a_corked_partial_segment_waits_for_the_cork_to_go() {
    let mut s = scene();
    advise(&mut s, NODELAY | CORK);
    assert_eq!(send(&mut s, 40), []);
    assert_eq!(after(&mut s, 50), []);
    assert_eq!(send(&mut s, 40), []);
    assert_eq!(after(&mut s, 50), []);
    assert_eq!(advise(&mut s, NODELAY), [80], "in one segment");
    assert_eq!(ack(&mut s, 80), []);
    assert_eq!(send(&mut s, 3), [3], "and nothing waits any more");
}

/// "there is a 200 millisecond ceiling on the time for which output is corked" (tcp(7)), counted from when nothing is in flight.
#[test]
fn a_cork_holds_for_a_retransmission_timeout_of_200_ms_at_least() {
    let mut s = scene();
    s.host.keeper.lock(s.id).parts().cold.rto = Duration::from_ms(210);
    advise(&mut s, NODELAY | CORK);
    assert_eq!(send(&mut s, 40), []);
    let deadline = s.host.poll(s.now, &mut s.port).deadline;
    assert!(deadline <= s.now.plus(Duration::from_ms(210)), "the core wakes up for it");
    assert_eq!(after(&mut s, 120), []);
    assert_eq!(send(&mut s, 40), []);
    assert_eq!(after(&mut s, 89), [], "the first byte counts");
    assert_eq!(after(&mut s, 1), [80]);
    // The next wait is its own.
    assert_eq!(ack(&mut s, 80), []);
    assert_eq!(send(&mut s, 10), []);
    s.host.keeper.lock(s.id).parts().cold.rto = Duration::from_secs(3);
    assert_eq!(after(&mut s, 199), [], "the time was set when it began");
    assert_eq!(after(&mut s, 2), [10]);
}

#[test]
fn whole_segments_pass_a_cork_and_their_acknowledgement_starts_the_time() {
    let mut s = scene();
    advise(&mut s, NODELAY | CORK);
    assert_eq!(send(&mut s, 2 * MSS + 100), [MSS, MSS]);
    assert_eq!(ack(&mut s, 2 * MSS as u32), [], "the cork outlives acknowledgements");
    assert_eq!(after(&mut s, 199), []);
    assert_eq!(after(&mut s, 2), [100]);
}

/// A wait that ended before its time leaves no timer that would cut the next one short.
#[test]
fn a_cork_pulled_early_does_not_shorten_the_next() {
    let mut s = scene();
    s.host.keeper.lock(s.id).parts().cold.rto = Duration::from_ms(200);
    advise(&mut s, NODELAY | CORK);
    assert_eq!(send(&mut s, 40), []);
    assert_eq!(after(&mut s, 150), []);
    assert_eq!(advise(&mut s, NODELAY), [40]);
    assert_eq!(ack(&mut s, 40), []);
    advise(&mut s, NODELAY | CORK);
    assert_eq!(send(&mut s, 40), []);
    assert_eq!(after(&mut s, 100), []);
    assert_eq!(after(&mut s, 99), []);
    assert_eq!(after(&mut s, 2), [40]);
}

/// Linux: setting `TCP_NODELAY` makes "an explicit push, which overrides even TCP_CORK for currently queued segments".
#[test]
fn setting_nodelay_pushes_once_what_is_corked() {
    let mut s = scene();
    advise(&mut s, CORK);
    assert_eq!(send(&mut s, 40), []);
    assert_eq!(advise(&mut s, CORK | NODELAY | 40 << PUSHED_SHIFT), [40]);
    assert_eq!(ack(&mut s, 40), []);
    assert_eq!(send(&mut s, 40), [], "what follows is corked again");
    assert_eq!(advise(&mut s, NODELAY), [40]);
}

#[test]
fn the_end_of_the_stream_passes_a_cork() {
    let mut s = scene();
    advise(&mut s, CORK);
    assert_eq!(send(&mut s, 40), []);
    s.host.raise(&s.sock, FIN);
    let out = s.poll();
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].payload.len(), 40);
    assert!(out[0].flags.contains(TcpFlags::FIN));
}

#[test]
fn an_application_that_waits_for_space_is_not_held_back() {
    let mut s = scene();
    advise(&mut s, NODELAY | CORK);
    assert_eq!(send(&mut s, 40), []);
    s.host.raise(&s.sock, WANT_SPACE);
    assert_eq!(sizes(&mut s), [40]);
}

#[test]
fn more_to_come_holds_until_a_call_that_does_not_say_so() {
    let mut s = scene();
    advise(&mut s, NODELAY | MORE);
    assert_eq!(send(&mut s, 100), []);
    assert_eq!(send(&mut s, 160), []);
    say(&s, NODELAY);
    assert_eq!(send(&mut s, 40), [300], "the word goes before the bytes are published: all in one");
}

/// Linux forgets `MSG_MORE` with the call: when an acknowledgement comes, Nagle's rule alone decides.
#[test]
fn more_to_come_is_forgotten_when_the_peer_is_heard() {
    let mut s = scene();
    advise(&mut s, MORE);
    assert_eq!(send(&mut s, MSS + 100), [MSS]);
    assert_eq!(ack(&mut s, MSS as u32), [100]);
    assert_eq!(send(&mut s, 10), []);
    s.host.keeper.lock(s.id).parts().cold.rto = Duration::from_ms(200);
    assert_eq!(ack(&mut s, MSS as u32 + 100), [10]);
    assert_eq!(ack(&mut s, MSS as u32 + 110), []);
    s.host.keeper.lock(s.id).parts().cold.rto = Duration::from_ms(200);
    assert_eq!(send(&mut s, 20), []);
    assert_eq!(after(&mut s, 199), []);
    assert_eq!(after(&mut s, 1), [20]);
}

/// Random advice at random times: nothing that was sent waits longer than the ceiling, whatever is said and whatever comes.
#[test]
fn nothing_is_held_back_for_longer_than_the_ceiling() {
    let (mut rng, mut longest) = (base::Seed::new(4), Duration::ZERO);
    for _ in 0..200 {
        let mut s = scene();
        let (mut total, mut sent) = (0, 0);
        let mut waiting = VecDeque::new();
        for _ in 0..60 {
            let flags = [0, CORK, MORE, CORK | NODELAY, NODELAY][rng.below(5) as usize];
            sent += advise(&mut s, flags).iter().sum::<usize>();
            if rng.below(2) == 0 {
                let len = 1 + rng.below(200) as usize;
                total += len;
                waiting.push_back((total, s.now));
                sent += send(&mut s, len).iter().sum::<usize>();
            }
            sent += after(&mut s, rng.below(120)).iter().sum::<usize>();
            // The peer acknowledges at once whatever comes.
            for _ in 0..3 {
                sent += ack(&mut s, sent as u32).iter().sum::<usize>();
            }
            waiting.retain(|(end, _)| *end > sent);
            let waits = waiting.front().map_or(Duration::ZERO, |(_, at)| s.now.since(*at));
            longest = longest.max(waits);
        }
        assert_eq!(sent + after(&mut s, 251).iter().sum::<usize>(), total);
    }
    assert!(longest < Duration::from_ms(250 + 120), "looked at every 120 ms at least: {longest:?}");
    assert!(longest > Duration::from_ms(150), "something was held: {longest:?}");
}
