//! Tests of the accept queue in one thread: order, withdrawal, repair, and which sleepers are woken.

use crate::accept::{Accepting, Sleeper};
use shm::grant_state::{CLAIMED, VALUE};
use shm::{AcceptQueue, GRANTS, SLEEPERS};
use std::sync::atomic::Ordering::Relaxed;

const ME: u32 = 7;
const DEAD: u32 = 5;

struct Empty(AcceptQueue);

impl Empty {
    fn new() -> Self {
        Self(AcceptQueue::create().expect("memory for a queue").0)
    }

    fn queue(&self) -> Accepting<'_> {
        Accepting::new(self.0.words())
    }

    fn with(grants: &[u32]) -> Self {
        let empty = Self::new();
        grants.iter().for_each(|grant| assert!(empty.queue().push(*grant)));
        empty
    }

    fn accept_all(&self) -> Vec<u32> {
        let accept = || self.queue().claim(ME).inspect(|grant| self.queue().finish(*grant, ME));
        std::iter::from_fn(accept).collect()
    }
}

#[test]
fn the_oldest_comes_first_whatever_its_number() {
    let all = [70, 3, GRANTS as u32 - 1, 0, 1025, 64];
    let q = Empty::with(&all);
    assert_eq!((q.queue().count(), q.queue().arrivals(), q.queue().has_any()), (6, 6, true));
    assert_eq!(q.accept_all(), all);
    assert_eq!((q.queue().count(), q.queue().has_any(), q.0.words().top.load(Relaxed)), (0, false, 0));
}

#[test]
fn the_order_survives_the_end_of_the_tickets() {
    let q = Empty::new();
    q.0.words().next.store(VALUE - 1, Relaxed);
    let all = [9, 8, 7, 6, 5];
    all.iter().for_each(|grant| assert!(q.queue().push(*grant)));
    assert_eq!(q.accept_all(), all);
}

/// A process has looked at `next`, and then another grant comes.
#[test]
fn a_grant_with_a_later_ticket_than_the_next_is_no_old_one() {
    let q = Empty::with(&[1, 2]);
    q.0.words().next.fetch_sub(1, Relaxed);
    assert_eq!(q.accept_all(), [1, 2]);
}

#[test]
fn a_grant_is_in_the_queue_once() {
    let q = Empty::with(&[4]);
    assert!(!q.queue().push(4), "it waits");
    assert_eq!(q.queue().claim(ME), Some(4));
    assert!(!q.queue().push(4) && !q.queue().is_queued(4) && !q.queue().is_idle(4), "it is being accepted");
    q.queue().finish(4, ME);
    assert!(q.queue().is_idle(4) && q.queue().push(4) && q.queue().is_queued(4));
}

#[test]
fn numbers_past_the_table_are_no_grants() {
    let q = Empty::new();
    let past = GRANTS as u32;
    assert!(!q.queue().push(past) && !q.queue().withdraw(past) && !q.queue().is_queued(past));
    assert!(q.queue().is_idle(past) && !q.queue().repair(past, DEAD, || true));
    q.queue().finish(past, ME);
    q.queue().awake(SLEEPERS);
}

#[test]
fn only_a_grant_that_waits_can_be_withdrawn() {
    let q = Empty::with(&[1, 2, 3]);
    assert_eq!(q.queue().claim(ME), Some(1));
    assert_eq!([1, 2, 2, 9].map(|grant| q.queue().withdraw(grant)), [false, true, false, false]);
    assert!(q.queue().is_idle(2) && q.queue().push(2), "it can be used again");
    q.queue().finish(1, ME);
    assert_eq!(q.accept_all(), [3, 2]);
}

#[test]
fn what_a_dead_process_had_claimed_comes_before_all_others() {
    let q = Empty::with(&[1, 2, 3, 4]);
    assert_eq!(
        [q.queue().claim(DEAD), q.queue().claim(DEAD), q.queue().claim(ME)],
        [Some(1), Some(2), Some(3)]
    );
    let before = q.queue().arrivals();
    assert!(q.queue().repair(2, DEAD, || true), "it was not set up");
    assert!(!q.queue().repair(1, DEAD, || false), "it was");
    assert!(!q.queue().repair(3, DEAD, || true), "another process has it");
    assert!(q.queue().repair(4, DEAD, || true), "it waits");
    assert!(!q.queue().repair(9, DEAD, || true));
    assert_eq!(q.queue().arrivals(), before + 1, "an edge-triggered epoll set hears of it");
    assert!(q.queue().is_idle(1) && q.queue().push(1));
    q.queue().finish(3, ME);
    assert_eq!(q.accept_all(), [2, 4, 1]);
}

#[test]
fn what_cannot_be_accepted_now_comes_before_all_others() {
    let q = Empty::with(&[1, 2, 3]);
    assert_eq!([q.queue().claim(ME), q.queue().claim(ME)], [Some(1), Some(2)]);
    let before = q.queue().arrivals();
    q.queue().put_back(1, ME);
    assert_eq!(q.queue().arrivals(), before + 1, "an edge-triggered epoll set hears of it");
    // The service has given the other one to another process meanwhile.
    q.queue().put_back(2, DEAD);
    assert!(!q.queue().is_queued(2));
    assert_eq!(q.accept_all(), [1, 3]);
}

#[test]
fn a_grant_without_its_bit_is_found_after_the_repair() {
    let q = Empty::with(&[65]);
    q.0.words().waiting[1].store(0, Relaxed);
    q.0.words().top.store(0, Relaxed);
    assert!(!q.queue().has_any());
    assert!(q.queue().repair(65, DEAD, || true));
    assert_eq!(q.accept_all(), [65]);
}

#[test]
fn a_bit_without_a_grant_is_cleared_by_the_next_accept() {
    let q = Empty::with(&[65]);
    q.0.words().states[65].store(0, Relaxed);
    assert!(!q.queue().has_any());
    assert_eq!((q.accept_all(), q.queue().count(), q.0.words().top.load(Relaxed)), (vec![], 0, 0));
}

#[test]
fn all_states_claimed_leave_nothing_to_accept_and_no_loop() {
    let q = Empty::new();
    q.0.words().states.iter().for_each(|state| state.store(CLAIMED | VALUE, Relaxed));
    q.0.words().waiting.iter().for_each(|word| word.store(u64::MAX, Relaxed));
    q.0.words().top.store(u64::MAX, Relaxed);
    assert!(!q.queue().has_any() && !q.queue().push(1));
    assert_eq!(q.queue().claim(ME), None);
    let place = q.queue().register(sleeper(1, true)).unwrap();
    assert!(q.queue().prepare_sleep(place), "the thread sleeps, and does not spin");
}

fn sleeper(context: u8, is_exclusive: bool) -> Sleeper {
    Sleeper { application: ME, context, is_exclusive }
}

fn woken(q: &Empty) -> Vec<u8> {
    let mut woken = Vec::new();
    q.queue().wake(|sleeper| {
        woken.push(sleeper.context);
        true
    });
    woken
}

#[test]
fn of_exclusive_sleepers_one_is_woken_in_turn_and_of_others_all() {
    let q = Empty::new();
    let all = [(1, true), (2, true), (3, false), (4, true), (5, false)];
    let places =
        all.map(|(context, is_exclusive)| q.queue().register(sleeper(context, is_exclusive)).unwrap());
    let mut exclusive = Vec::new();
    for _ in 0..6 {
        assert!(places.iter().all(|place| q.queue().prepare_sleep(*place)));
        let (others, one): (Vec<u8>, Vec<u8>) =
            woken(&q).into_iter().partition(|context| [3, 5].contains(context));
        assert_eq!((others.len(), one.len()), (2, 1));
        exclusive.extend(one);
    }
    assert_eq!(exclusive[..3], exclusive[3..], "each has its turn");
    exclusive.sort_unstable();
    assert_eq!(exclusive, [1, 1, 2, 2, 4, 4]);
}

#[test]
fn a_sleeper_that_is_woken_is_not_woken_again() {
    let q = Empty::new();
    let place = q.queue().register(sleeper(1, false)).unwrap();
    assert!(!q.queue().has_sleepers() && woken(&q).is_empty());
    assert!(q.queue().prepare_sleep(place) && q.queue().has_sleepers());
    assert_eq!((woken(&q), woken(&q)), (vec![1], vec![]));
    assert!(q.queue().push(1));
    assert!(!q.queue().prepare_sleep(place), "a connection waits");
    assert!(woken(&q).is_empty());
}

#[test]
fn places_are_given_back_and_those_of_the_dead_are_forgotten() {
    let q = Empty::new();
    let dead = Sleeper { application: DEAD, ..sleeper(1, true) };
    let places: Vec<usize> = (0..SLEEPERS).map(|_| q.queue().register(dead).unwrap()).collect();
    places.iter().for_each(|place| q.queue().announce_sleep(*place));
    assert_eq!(q.queue().register(sleeper(1, true)), None, "there are too many");
    assert!(!q.queue().unregister(places[3], dead));
    let mine = q.queue().register(sleeper(2, true)).unwrap();
    assert_eq!(mine, places[3]);
    assert!(q.queue().prepare_sleep(mine));
    q.queue().forget_sleepers(|application| application == DEAD);
    assert_eq!((woken(&q), woken(&q)), (vec![2], vec![]));
}
