//! Tests of helpers; some have a helper without a thread.

use super::*;
use crate::registry::Registry;
use crate::registry::process::descriptors::{Descriptors, Payer};
use crate::registry::report::job::{Making, Refused};
use crate::registry::report::new_memfd;
use control::{Reply, Request, ToApplication};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::RecvFlags;

const USER: User = user(1000);

const fn user(uid: u32) -> User {
    User { uid, is_administrator: false }
}

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn helpers() -> Helpers {
    Helpers::new(Source::Nowhere).unwrap()
}

/// Adds an idle helper that has no thread. Returns the thread's ends.
fn add_idle(helpers: &mut Helpers) -> (OwnedFd, Receiver<(Task, Option<Report>)>) {
    let (its, orders) = add_starting(helpers);
    let mut last = helpers.helpers.last_entry().unwrap();
    last.get_mut().its = None;
    (its, orders)
}

/// The same for a helper that is starting.
fn add_starting(helpers: &mut Helpers) -> (OwnedFd, Receiver<(Task, Option<Report>)>) {
    let ((socket, its), (tasks, orders)) = (sockets(), channel());
    let far = its.try_clone().unwrap();
    let since = Instant::now();
    helpers
        .helpers
        .insert(helpers.next, Helper { socket, its: Some(its), since, tasks, running: None, charge: None });
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
    assert!(helpers.helpers.is_empty());
    assert!(matches!(helpers.finished(Instant::now())[..], [Done::Stuck(7, None)]));
    check_that_jobs_are_done(&mut helpers);
}

#[test]
fn a_helper_that_ends_during_a_job_is_no_longer_idle_or_busy() {
    let mut helpers = helpers();
    let _far = add_idle(&mut helpers);
    helpers.ask(USER, Job::Receive(7, Arc::new(Line::new(sockets().0))), Instant::now()).unwrap();
    assert!(helpers.finished(Instant::now()).is_empty() && helpers.running().count() == 1);
    helpers.outbox.send((0, Word::Ended)).unwrap();
    assert!(matches!(helpers.finished(Instant::now())[..], [Done::Stuck(7, None)]));
    assert!(!helpers.helpers.contains_key(&0));
    check_that_jobs_are_done(&mut helpers);
}

#[test]
fn a_line_that_no_helper_could_be_given_is_closed_by_another() {
    let (mut helpers, start) = (helpers(), Instant::now());
    drop(add_idle(&mut helpers));
    let (far, line) = sockets();
    helpers.ask(USER, Job::Close(line, None), start).unwrap();
    assert_eq!(helpers.due(), Some(start + PAUSE), "the job waits for another helper");
    assert!(helpers.finished(start + PAUSE).is_empty());
    check_that_jobs_are_done(&mut helpers);
    poll(&mut [PollFd::new(&far, PollFlags::IN)], None).unwrap();
}

#[test]
fn a_helper_that_cannot_start_is_given_no_job_and_another_starts_after_a_pause() {
    let (mut helpers, start) = (helpers(), Instant::now());
    let _far = add_starting(&mut helpers);
    helpers.ask(USER, Job::Receive(7, Arc::new(Line::new(sockets().0))), start).unwrap();
    assert!(helpers.running().next().is_none() && helpers.helpers.len() == 1);
    helpers.outbox.send((0, Word::Ended)).unwrap();
    assert!(helpers.finished(start).is_empty() && helpers.helpers.is_empty());
    assert_eq!(helpers.due(), Some(start + PAUSE));
    assert!(helpers.finished(start + PAUSE).is_empty());
    assert_eq!(helpers.helpers.len(), 1);
}

#[test]
fn a_helper_that_starts_late_keeps_no_job_waiting() {
    let mut helpers = helpers();
    let _far = add_starting(&mut helpers);
    helpers.ask(USER, Job::Close(sockets().0, None), Instant::now()).unwrap();
    assert_eq!(helpers.helpers.len(), 1);
    let late = Instant::now() + PAUSE;
    helpers.finished(late);
    assert_eq!((helpers.helpers.len(), helpers.due()), (2, Some(late + PAUSE)));
    check_that_jobs_are_done(&mut helpers);
}

#[test]
fn a_helper_that_is_starting_keeps_its_descriptor_when_the_service_ends() {
    let mut helpers = helpers();
    drop(add_starting(&mut helpers));
    let near = helpers.helpers[&0].socket.try_clone().unwrap();
    drop(helpers);
    let received = rustix::net::recv(&near, &mut [0; 1][..], RecvFlags::DONTWAIT);
    assert_eq!(received.map(|(_, n)| n), Err(Errno::AGAIN), "the other end is open");
}

#[test]
fn very_many_users_start_no_more_helpers_than_may_be() {
    let mut helpers = helpers();
    for uid in 1..200 {
        helpers.ask(user(uid), Job::Close(sockets().0, None), Instant::now()).unwrap();
        assert!(helpers.helpers.len() <= ALL_MAX.1);
    }
}

#[test]
fn a_stuck_user_is_served_again_when_its_helper_has_ended() {
    let (mut helpers, start) = (helpers(), Instant::now());
    let _far = add_idle(&mut helpers);
    helpers.ask(USER, Job::Receive(7, Arc::new(Line::new(sockets().0))), start).unwrap();
    assert!(matches!(helpers.finished(start + STUCK)[..], [Done::Stuck(7, None)]));
    let refused = helpers.ask(USER, Job::Receive(9, Arc::new(Line::new(sockets().0))), start + STUCK);
    assert_eq!(refused, Err(Errno::AGAIN));
    helpers.outbox.send((0, Word::Ended)).unwrap();
    assert!(helpers.finished(start + STUCK).is_empty(), "the line was given up already");
    check_that_jobs_are_done(&mut helpers);
}

/// A report of which nothing is left to do but to write it.
#[derive(Debug)]
struct Complete(Result<&'static str, Errno>);

impl Making for Complete {
    fn go_on(&mut self, _: &Registry, _: usize) -> bool {
        true
    }

    fn write(self: Box<Self>) -> Result<Vec<u8>, Refused> {
        Ok(self.0?.into())
    }
}

#[test]
fn a_report_is_written_and_sent_while_what_its_user_shows_sticks() {
    let (mut helpers, start) = (helpers(), Instant::now());
    let _far = add_idle(&mut helpers);
    helpers.ask(USER, Job::Receive(7, Arc::new(Line::new(sockets().0))), start).unwrap();
    let asker = Asker { id: 5, number: 6 };
    for (text, is_text) in [(Ok("[]"), true), (Err(Errno::NOSPC), false)] {
        let (far, line) = sockets();
        let report = Some(Report::new(Complete(text)));
        let report = Job::Report(asker, Arc::new(Line::new(line)), report, new_memfd().unwrap().into());
        helpers.ask(USER, report, start).unwrap();
        assert!(matches!(next(&mut helpers)[..], [Done::Reported(same, Ok(_))] if same == asker));
        let got = Line::new(far).receive::<ToApplication>(true).unwrap();
        assert_eq!(
            (got.message == ToApplication::Reply(6, Reply::Text), got.fds.len()),
            (is_text, is_text.into())
        );
    }
    assert_eq!(helpers.running().count(), 1, "the first helper still works");
    let _ = helpers.finished(start + STUCK);
    let refused = helpers.ask(USER, Job::Receive(9, Arc::new(Line::new(sockets().0))), start + STUCK);
    assert_eq!(refused, Err(Errno::AGAIN));
    let report = Some(Report::new(Complete(Ok("[]"))));
    let report = Job::Report(asker, Arc::new(Line::new(sockets().0)), report, new_memfd().unwrap().into());
    helpers.ask(USER, report, start + STUCK).unwrap();
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

#[test]
fn a_line_that_waits_to_be_closed_counts_as_its_users_until_it_is() {
    let (mut helpers, mut all, now) = (helpers(), Descriptors::open(), Instant::now());
    let (_its, _orders) = add_idle(&mut helpers);
    let who = Payer { uid: USER.uid, has_share: false };
    for _ in 0..3 {
        let charge = all.charge(who, 1, 0);
        helpers.ask(USER, Job::Close(sockets().0, charge), now).unwrap();
    }
    assert_eq!(all.used(), 3, "one is being closed, two wait");
    for left in [2, 1, 0] {
        helpers.outbox.send((0, Word::Done(None))).unwrap();
        helpers.finished(now);
        assert_eq!(all.used(), left);
    }
}

#[test]
fn root_of_a_container_neither_waits_for_the_hosts_helper_nor_is_exempt_from_the_limit() {
    let mut helpers = helpers();
    let host = User { uid: 0, is_administrator: true };
    let kept: Vec<_> = (0..HELPERS_MAX + 2).map(|_| add_idle(&mut helpers)).collect();
    let now = Instant::now();
    helpers.ask(host, Job::Close(sockets().0, None), now).unwrap();
    helpers.ask(user(0), Job::Close(sockets().0, None), now).unwrap();
    assert_eq!(helpers.running().count(), 2, "each has a helper");
    (1..100).for_each(|uid| helpers.ask(user(uid), Job::Close(sockets().0, None), now).unwrap());
    assert_eq!(helpers.running().count(), 1 + HELPERS_MAX);
    drop(kept);
}
