//! Loom models of the accept queue: processes that put grants in, that take them out, that sleep, and that have died half way.

use crate::accept::{Accepting, Sleeper};
use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;
use shm::QueueWords;
use shm::grant_state::CLAIMED;

const DEAD: u32 = 5;

/// Checks all interleavings with at most so many preemptions.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(f);
}

fn queue() -> Arc<QueueWords> {
    Arc::new(QueueWords::default())
}

fn of(words: &QueueWords) -> Accepting<'_> {
    Accepting::new(words)
}

/// Accepts once, as a process does.
fn accept(words: &QueueWords, application: u32) -> Option<u32> {
    let grant = of(words).claim(application);
    grant.into_iter().for_each(|grant| of(words).finish(grant, application));
    grant
}

/// What is left when all is quiet: no grant waits that the bits do not show.
fn rest(words: &QueueWords) -> Vec<u32> {
    let mut shown = Vec::new();
    of(words).each_queued(|grant, _| shown.push(grant as u32));
    for grant in 0..shm::GRANTS as u32 {
        assert!(!of(words).is_queued(grant) || shown.contains(&grant), "grant {grant} is hidden");
    }
    std::iter::from_fn(|| accept(words, 1)).collect()
}

fn is_each_once(mut taken: Vec<u32>, expected: &[u32]) {
    taken.sort_unstable();
    assert_eq!(taken, expected);
}

#[test]
fn loom_each_grant_is_accepted_once() {
    model(3, || {
        let words = queue();
        assert!(of(&words).push(3));
        let pusher = {
            let words = words.clone();
            thread::spawn(move || assert!(of(&words).push(70)))
        };
        let other = {
            let words = words.clone();
            thread::spawn(move || accept(&words, 7))
        };
        let mut taken: Vec<u32> = accept(&words, 9).into_iter().collect();
        pusher.join().unwrap();
        taken.extend(other.join().unwrap());
        taken.extend(rest(&words));
        is_each_once(taken, &[3, 70]);
    });
}

#[test]
fn loom_a_grant_that_waits_has_its_bit_whatever_is_cleared_beside_it() {
    model(3, || {
        let words = queue();
        assert!(of(&words).push(3));
        let pusher = {
            let words = words.clone();
            thread::spawn(move || assert!(of(&words).push(4)))
        };
        let withdrawn = of(&words).withdraw(3);
        pusher.join().unwrap();
        assert!(withdrawn);
        is_each_once(rest(&words), &[4]);
    });
}

/// The service takes a lent grant out while its connector puts it in again.
#[test]
fn loom_a_grant_that_is_put_in_again_while_it_is_withdrawn_keeps_its_bit() {
    model(3, || {
        let words = queue();
        assert!(of(&words).push(3));
        let pusher = {
            let words = words.clone();
            thread::spawn(move || of(&words).push(3))
        };
        let withdrawn = of(&words).withdraw(3);
        let pushed = pusher.join().unwrap();
        assert!(withdrawn || !pushed);
        is_each_once(rest(&words), if pushed { &[3] } else { &[] });
    });
}

/// A process that accepts, one that closes the connection and uses its lent grant again, and one that looks for bits without a grant.
#[test]
fn loom_a_grant_that_is_used_again_is_accepted_again() {
    model(3, || {
        let words = queue();
        assert!(of(&words).push(3));
        let acceptor = {
            let words = words.clone();
            thread::spawn(move || accept(&words, 7))
        };
        let pusher = {
            let words = words.clone();
            thread::spawn(move || of(&words).push(3))
        };
        let _ = of(&words).has_any();
        let first = acceptor.join().unwrap();
        let again = pusher.join().unwrap();
        assert_eq!(first, Some(3));
        is_each_once(rest(&words), if again { &[3] } else { &[] });
    });
}

fn sleeper(context: u8, is_exclusive: bool) -> Sleeper {
    Sleeper { application: 7, context, is_exclusive }
}

#[test]
fn loom_no_sleeper_is_left_with_a_grant_while_another_process_empties_the_queue() {
    model(3, || {
        let words = queue();
        assert!(of(&words).push(3));
        let place = of(&words).register(sleeper(1, true)).unwrap();
        let pusher = {
            let words = words.clone();
            thread::spawn(move || {
                assert!(of(&words).push(4));
                let mut woken = 0;
                of(&words).wake(|_| {
                    woken += 1;
                    true
                });
                woken
            })
        };
        let acceptor = {
            let words = words.clone();
            thread::spawn(move || accept(&words, 9))
        };
        let slept = of(&words).prepare_sleep(place);
        let woken = pusher.join().unwrap();
        assert!(acceptor.join().unwrap().is_some());
        assert!(!slept || woken == 1 || !of(&words).has_any(), "it sleeps beside a grant");
    });
}

#[test]
fn loom_of_two_exclusive_sleepers_one_is_woken() {
    model(3, || {
        let words = queue();
        let places = [1, 2].map(|context| of(&words).register(sleeper(context, true)).unwrap());
        let pusher = {
            let words = words.clone();
            thread::spawn(move || {
                assert!(of(&words).push(64));
                let mut woken = 0;
                of(&words).wake(|_| {
                    woken += 1;
                    true
                });
                woken
            })
        };
        let second = {
            let words = words.clone();
            thread::spawn(move || of(&words).prepare_sleep(places[1]))
        };
        let slept = of(&words).prepare_sleep(places[0]);
        let both = second.join().unwrap() && slept;
        let woken = pusher.join().unwrap();
        assert!(woken <= 1, "they take turns");
        assert!(woken == 1 || !both);
    });
}

#[test]
fn loom_all_sleepers_that_are_not_exclusive_are_woken() {
    model(3, || {
        let words = queue();
        let places = [1, 2].map(|context| of(&words).register(sleeper(context, false)).unwrap());
        of(&words).announce_sleep(places[0]);
        let pusher = {
            let words = words.clone();
            thread::spawn(move || {
                assert!(of(&words).push(64));
                let mut woken = Vec::new();
                of(&words).wake(|sleeper| {
                    woken.push(sleeper.context);
                    true
                });
                woken
            })
        };
        let slept = of(&words).prepare_sleep(places[1]);
        let woken = pusher.join().unwrap();
        assert!(woken.contains(&1) && (woken.contains(&2) || !slept));
    });
}

/// A process has died that had claimed a grant: before it cleared the bit, and after.
#[test]
fn loom_what_a_dead_process_had_claimed_is_accepted_once_by_another() {
    for bit in [true, false] {
        model(3, move || {
            let words = queue();
            if bit {
                assert!(of(&words).push(3));
                words.states[3].store(CLAIMED | DEAD, Ordering::Relaxed);
            } else {
                assert!(of(&words).push(3) && of(&words).claim(DEAD) == Some(3));
            }
            assert!(of(&words).push(4));
            let acceptor = {
                let words = words.clone();
                thread::spawn(move || [accept(&words, 7), accept(&words, 7)])
            };
            assert!(of(&words).repair(3, DEAD, || true));
            let taken = acceptor.join().unwrap();
            let all = taken.into_iter().flatten().chain(rest(&words)).collect();
            is_each_once(all, &[3, 4]);
        });
    }
}

/// A process has died that had put a grant in and had not set its bit.
#[test]
fn loom_what_a_dead_process_had_put_in_is_accepted_once() {
    model(3, || {
        let words = queue();
        assert!(of(&words).push(3) && of(&words).push(4));
        words.waiting[0].store(1 << 4, Ordering::Relaxed);
        let acceptor = {
            let words = words.clone();
            thread::spawn(move || [accept(&words, 7), accept(&words, 7)])
        };
        assert!(of(&words).repair(3, DEAD, || true) || !of(&words).is_queued(3));
        let taken = acceptor.join().unwrap();
        is_each_once(taken.into_iter().flatten().chain(rest(&words)).collect(), &[3, 4]);
    });
}

/// The service ends a dead process's claim while the connector puts its lent grant in again.
#[test]
fn loom_a_grant_that_is_put_in_again_while_a_dead_claim_ends_keeps_its_bit() {
    model(3, || {
        let words = queue();
        assert!(of(&words).push(3));
        words.states[3].store(CLAIMED | DEAD, Ordering::Relaxed);
        let pusher = {
            let words = words.clone();
            thread::spawn(move || of(&words).push(3))
        };
        assert!(!of(&words).repair(3, DEAD, || false));
        let pushed = pusher.join().unwrap();
        is_each_once(rest(&words), if pushed { &[3] } else { &[] });
    });
}

#[test]
fn loom_an_exclusive_set_leaves_a_grant_only_to_one_that_was_woken_for_it() {
    model(3, || {
        let words = queue();
        let places = [1, 2].map(|context| of(&words).register(sleeper(context, true)).unwrap());
        of(&words).announce_sleep(places[0]);
        assert!(of(&words).push(3));
        let mut woken = Vec::new();
        of(&words).wake(|sleeper| {
            woken.push(sleeper.context);
            true
        });
        assert_eq!(woken, [1]);
        let pusher = {
            let words = words.clone();
            thread::spawn(move || {
                assert!(of(&words).push(64));
                let mut woken = 0;
                of(&words).wake(|_| {
                    woken += 1;
                    true
                });
                woken
            })
        };
        // The first one is about to look; the second one goes to sleep beside the first grant.
        let slept = of(&words).prepare_exclusive_sleep(places[1]);
        let woken = pusher.join().unwrap();
        assert!(!slept || woken == 1, "it sleeps beside a grant that no other was woken for");
        assert!(of(&words).has_for(places[0]), "the first one has a grant");
    });
}

#[test]
fn loom_a_set_that_was_woken_and_leaves_says_that_a_grant_is_left() {
    model(3, || {
        let words = queue();
        let first = of(&words).register(sleeper(1, true)).unwrap();
        of(&words).announce_sleep(first);
        let pusher = {
            let words = words.clone();
            thread::spawn(move || {
                assert!(of(&words).push(3));
                let mut woken = 0;
                of(&words).wake(|_| {
                    woken += 1;
                    true
                });
                woken
            })
        };
        let is_left = of(&words).unregister(first, sleeper(1, true));
        let woken = pusher.join().unwrap();
        // Woken after it had left: then the sleeper's word was there still, and another set sees a grant that nothing was woken for.
        let second = of(&words).register(sleeper(2, true)).unwrap();
        assert!(
            is_left
                || woken == 0
                || of(&words).has_for(second)
                || !of(&words).prepare_exclusive_sleep(second)
        );
    });
}
