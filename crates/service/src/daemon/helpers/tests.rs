//! Tests of helpers; some have a helper without a thread.

use super::*;
use rustix::event::{PollFd, PollFlags, poll};

const USER: u32 = 1000;

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn helpers() -> Helpers {
    Helpers::new(Watched::open().unwrap(), Source::Nowhere).unwrap()
}

/// Adds an idle helper that has no thread. Returns the thread's ends.
fn add_idle(helpers: &mut Helpers) -> (OwnedFd, Receiver<Task>) {
    let ((socket, its), (tasks, orders)) = (sockets(), channel());
    let far = its.try_clone().unwrap();
    let helper = Helper { socket, its: Some(its), tasks, running: None };
    helpers.helpers.insert(helpers.next, helper);
    helpers.next += 1;
    (far, orders)
}

/// Waits for the next results.
fn next(helpers: &mut Helpers) -> Vec<Done> {
    loop {
        let done = helpers.finished(Instant::now());
        if !done.is_empty() {
            return done;
        }
        poll(&mut [PollFd::new(&helpers.told, PollFlags::IN)], None).unwrap();
        rustix::io::read(&helpers.told, &mut [0; 8]).unwrap();
    }
}

/// Has a helper receive a message for `USER`, which takes a helper with a thread.
fn check_that_jobs_are_done(helpers: &mut Helpers) {
    let (far, line) = sockets();
    let message = ToService { number: 1, request: Request::Refused };
    Line::new(far.try_clone().unwrap()).send(&message, &[far.as_fd()], true).unwrap();
    helpers.ask(USER, Job::Receive(8, Arc::new(Line::new(line))), Instant::now()).unwrap();
    assert!(matches!(next(helpers)[..], [Done::Received(8, Ok(_))]));
}

#[test]
fn a_job_fails_when_its_helper_has_ended_and_the_next_gets_another_helper() {
    let mut helpers = helpers();
    let orders = add_idle(&mut helpers).1;
    drop(orders);
    let line = Arc::new(Line::new(sockets().0));
    helpers.ask(USER, Job::Receive(7, line), Instant::now()).unwrap();
    assert!(helpers.helpers.is_empty() && helpers.due().is_some());
    assert!(matches!(helpers.finished(Instant::now())[..], [Done::Stuck(7)]));
    check_that_jobs_are_done(&mut helpers);
}

#[test]
fn a_helper_that_ends_during_a_job_is_no_longer_idle_or_busy() {
    let mut helpers = helpers();
    let _far = add_idle(&mut helpers);
    helpers.ask(USER, Job::Receive(7, Arc::new(Line::new(sockets().0))), Instant::now()).unwrap();
    assert!(helpers.finished(Instant::now()).is_empty() && helpers.running().count() == 1);
    helpers.outbox.send((0, Word::Ended)).unwrap();
    assert!(matches!(helpers.finished(Instant::now())[..], [Done::Stuck(7)]));
    assert!(!helpers.helpers.contains_key(&0));
    check_that_jobs_are_done(&mut helpers);
}

#[test]
fn a_line_that_no_helper_could_be_given_is_closed_by_the_next_helper() {
    let mut helpers = helpers();
    drop(add_idle(&mut helpers));
    let (far, line) = sockets();
    helpers.ask(USER, Job::Close(line), Instant::now()).unwrap();
    assert!(helpers.due().is_some(), "the job waits for another helper");
    assert!(helpers.finished(Instant::now()).is_empty());
    poll(&mut [PollFd::new(&far, PollFlags::IN)], None).unwrap();
}

#[test]
fn a_line_that_a_helper_was_sent_and_did_not_receive_is_closed_by_the_next_helper() {
    let mut helpers = helpers();
    let (socket, _orders) = add_idle(&mut helpers);
    let (far, line) = sockets();
    helpers.ask(USER, Job::Close(line), Instant::now()).unwrap();
    drop(socket);
    helpers.outbox.send((0, Word::Ended)).unwrap();
    assert!(helpers.finished(Instant::now()).is_empty());
    poll(&mut [PollFd::new(&far, PollFlags::IN)], None).unwrap();
}

#[test]
fn a_stuck_user_is_served_again_when_its_helper_has_ended() {
    let (mut helpers, start) = (helpers(), Instant::now());
    let _far = add_idle(&mut helpers);
    helpers.ask(USER, Job::Receive(7, Arc::new(Line::new(sockets().0))), start).unwrap();
    assert!(matches!(helpers.finished(start + STUCK)[..], [Done::Stuck(7)]));
    let refused = helpers.ask(USER, Job::Receive(9, Arc::new(Line::new(sockets().0))), start + STUCK);
    assert_eq!(refused, Err(Errno::AGAIN));
    helpers.outbox.send((0, Word::Ended)).unwrap();
    assert!(helpers.finished(start + STUCK).is_empty(), "the line was given up already");
    check_that_jobs_are_done(&mut helpers);
}
#[test]
fn a_policy_that_is_read_slowly_keeps_no_user_waiting() {
    let (mut helpers, start) = (helpers(), Instant::now());
    let _far = add_idle(&mut helpers);
    let asker = Asker { id: 5, number: 6 };
    helpers.ask(SERVICE, Job::ReadPolicy(Some(asker)), start).unwrap();
    helpers.ask(SERVICE, Job::ReadPolicy(None), start).unwrap();
    check_that_jobs_are_done(&mut helpers);
    let all = helpers.finished(start + STUCK);
    assert!(
        matches!(all[..], [Done::Policy(Some(same), Err(_)), Done::Policy(None, Err(_))] if same == asker)
    );
    assert_eq!(helpers.ask(SERVICE, Job::ReadPolicy(None), start + STUCK), Err(Errno::AGAIN));
    check_that_jobs_are_done(&mut helpers);
}

#[test]
fn a_policy_is_read_by_a_helper() {
    let mut helpers = helpers();
    helpers.ask(SERVICE, Job::ReadPolicy(None), Instant::now()).unwrap();
    assert!(matches!(&next(&mut helpers)[..], [Done::Policy(None, Ok(rules))] if rules.is_empty()));
}
