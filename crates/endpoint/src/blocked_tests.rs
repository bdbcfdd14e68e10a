//! A blocking call that is told to go on finds something to do, whatever stands in the words of the connection.

use super::*;
use crate::flags;
use crate::receive_wait::{Amount, Received, Receiving};
use crate::stream::tests::{ends, send};
use crate::stream::{How, Progress, Said};
use rustix::io::Errno;
use shm::half_flags::{FIN, OPEN, READ_CLOSED, RELEASED, RESET, URGENT, WANT_SPACE};

/// A call may find once or twice that another was faster, or that only now it knows what it waits for.
const IDLE_ROUNDS: usize = 3;

/// The rest of a blocking receive, up to where it sleeps. True when it goes round and round instead. `rest` is `None` when the call is over.
pub(crate) fn spins_in_receive(link: &Endpoint, rest: &mut Option<Receiving>, out: &mut [u8]) -> bool {
    let mut idle = 0;
    while let Some(receiving) = rest {
        if !receiving.is_cut(link) && !link.can_go_on(receiving.blocked()) {
            return false;
        }
        let before = receiving.done;
        match receiving.go_on(link, &mut [&mut *out]) {
            Ok(false) if receiving.done == before && !receiving.is_cut(link) => idle += 1,
            Ok(false) if !receiving.is_cut(link) => idle = 0,
            _ => *rest = None,
        }
        if idle > IDLE_ROUNDS {
            return true;
        }
    }
    false
}

/// A blocking send of `bytes`, up to where it sleeps or pauses. True when it goes round and round instead.
pub(crate) fn spins_in_send(link: &Endpoint, bytes: &[u8]) -> bool {
    for _ in 0..=IDLE_ROUNDS {
        let result = if link.can_go_on(Blocked::Send) { send(link, bytes) } else { return false };
        if result != Ok(Progress::Wait) || link.lacks_memory() {
            return false;
        }
    }
    true
}

/// A receive of one byte, or with `MSG_WAITALL` of more.
pub(crate) fn receiving(link: &Endpoint, out: &mut [u8], flags: i32) -> Option<Receiving> {
    let amount = Amount { total: out.len(), enough: usize::MAX };
    match link.receive(&mut [out], amount, flags, || false) {
        Ok(Received::Wait(rest)) => Some(rest),
        _ => None,
    }
}

/// All sums of `bits`.
fn subsets<const N: usize>(bits: [u32; N]) -> impl Iterator<Item = u32> {
    (0..1u32 << N).map(move |set| (0..N).filter(|i| set & 1 << i != 0).fold(0, |all, i| all | bits[i]))
}

/// The words of a connection that say whether a call has to wait.
#[derive(Clone, Copy, Debug)]
struct Case {
    state: u32,
    error: u32,
    peer: u32,
    head: u64,
    is_full: bool,
    is_moved: bool,
}

fn cases() -> impl Iterator<Item = Case> {
    let states = || {
        subsets([
            state::OPEN,
            state::OVER,
            state::SHUT_RD,
            state::SHUT_WR,
            state::INTO_THE_VOID,
            state::NOTICE,
            state::UNCONNECTED,
        ])
    };
    let words = move |peer| states().map(move |state| (peer, state));
    let peers = subsets([OPEN, FIN, RESET, READ_CLOSED | RELEASED, WANT_SPACE, URGENT]);
    peers.flat_map(words).flat_map(|(peer, state)| {
        let errors = [0, libc::ECONNRESET as u32, libc::EAGAIN as u32].into_iter();
        let rest = errors.flat_map(|error| [0, 1, 1 << 40].map(|head| (error, head)));
        rest.flat_map(move |(error, head)| {
            [(false, false), (true, false), (true, true)].map(|(is_full, is_moved)| Case {
                state,
                error,
                peer,
                head,
                is_full,
                is_moved,
            })
        })
    })
}

impl Case {
    /// Writes the words; the connection had none of its bytes read.
    fn set(self, link: &Endpoint) {
        let (b, peer) = (link.block(), link.halves().1);
        link.begin(false, false);
        link.halves().0.flags.store(OPEN, Ordering::Relaxed);
        b.state.store(self.state, Ordering::Relaxed);
        b.error.store(self.error, Ordering::Relaxed);
        b.flags.store(if self.is_full { flags::FULL } else { 0 }, Ordering::Relaxed);
        b.rx_lock.store(if self.is_moved { shm::MOVED } else { 0 }, Ordering::Relaxed);
        peer.flags.store(self.peer, Ordering::Relaxed);
        peer.tx_head.store(self.head, Ordering::Relaxed);
    }
}

#[test]
fn what_a_blocking_call_waits_for_is_what_it_can_act_on() {
    let (a, b) = ends(5);
    send(&a, b"x").unwrap();
    let mut out = [0; 4];
    for case in cases() {
        for (len, how) in [(1, 0), (0, 0), (4, libc::MSG_WAITALL), (4, libc::MSG_PEEK)] {
            case.set(&b);
            let mut rest = receiving(&b, &mut out[..len], how);
            // The first try noted an end; the words may say the same to each later one, and no more.
            assert!(!spins_in_receive(&b, &mut rest, &mut out[..len]), "recv of {len}, {how}: {case:?}");
        }
        case.set(&b);
        assert!(!spins_in_send(&b, b"y"), "send: {case:?}");
        let sender = b.sender();
        sender.ring.into_iter().chain(sender.old).for_each(|ring| b.mapped.give_back(ring));
        case.set(&b);
        if b.can_go_on(Blocked::Connect) {
            assert!(b.is_open() || b.is_over(), "connect: {case:?}");
        }
    }
}

#[test]
fn a_notice_in_the_error_queue_ends_no_call() {
    let (a, b) = ends(5);
    let mut out = [0; 4];
    b.note(state::NOTICE);
    assert_ne!(b.stream_readiness() & ready::ERR, 0, "poll tells of it");
    let rest = receiving(&b, &mut out, 0).unwrap();
    assert!(!b.can_go_on(rest.blocked()));
    while let Ok(Progress::Done(_)) = send(&b, &[7; 30_000]) {}
    assert!(!b.can_go_on(Blocked::Send));
    let mut all = vec![0; 1 << 20];
    a.pull(&mut [&mut all], 0, How::default()).unwrap();
    assert!(b.can_go_on(Blocked::Send), "there is space");
    send(&a, b"x").unwrap();
    assert!(b.can_go_on(rest.blocked()), "a byte has come");
}

#[test]
fn a_mark_that_comes_between_two_reads_of_one_call_ends_it() {
    let (a, b) = ends(5);
    let mut out = [0; 9];
    a.push(&[b"abu"], 0, Said::URGENT).unwrap();
    let mut rest = receiving(&b, &mut out, libc::MSG_WAITALL);
    assert_eq!(rest.map(|rest| rest.done), Some(2), "up to the mark");
    // The reader stands at the former mark, and the next one is beyond it.
    a.push(&[b"cdv"], 0, Said::URGENT).unwrap();
    let before = rest.unwrap();
    assert!(!spins_in_receive(&b, &mut rest, &mut out) && rest.is_none(), "{before:?}");
    assert_eq!(b.pull(&mut [&mut out], 0, How::default()), Ok(Progress::Done(2)));
    assert_eq!(&out[..2], b"cd");
}

#[test]
fn a_connect_waits_for_the_end_of_the_handshake() {
    let (a, b) = ends(5);
    a.halves().1.flags.store(0, Ordering::Relaxed);
    a.begin(false, false);
    a.block().error.store(libc::EAGAIN as u32, Ordering::Relaxed);
    assert!(!a.can_go_on(Blocked::Connect));
    b.raise(RESET);
    assert!(a.can_go_on(Blocked::Connect));
    assert_eq!(a.take_error(), Some(Errno::CONNREFUSED));
}
