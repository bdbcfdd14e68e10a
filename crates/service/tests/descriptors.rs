//! One user takes as many of the service's descriptors as it gets: others get what they need. A program of its own, with a limit of
//! descriptors that the test reaches.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(dead_code, reason = "the other tests use the rest of the common part")]

mod common;

use crate::common::{App, Daemon, PATIENCE, listener};
use control::{Line, LineError, Reply, Report, Request, ToApplication, ToService};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, setrlimit};
use service::Options;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The number of an ordinary user.
const STRANGER: u32 = 65_534;
/// Limit of descriptors of the service, which are this process's.
const LIMIT: u64 = 3000;

/// Each test needs the descriptors of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// Asks for contexts until one is refused. Returns how many it got, and whether one was refused.
fn take_contexts(app: &mut App) -> (usize, bool) {
    let own = app.context;
    let mut got = 0;
    for context in (0..254).filter(|context| *context != own) {
        match app.ask(Request::Context { context }).0 {
            Reply::Done => got += 1,
            Reply::Refused { .. } => return (got, true),
            other => panic!("{other:?}"),
        }
    }
    (got, false)
}

/// Programs of that user with as many contexts as it may have, and their number.
fn fill(daemon: &Daemon, uid: u32) -> (Vec<App>, usize) {
    let (mut all, mut contexts, mut is_full) = (Vec::new(), 0, false);
    while !is_full {
        let mut app = App::of_user(daemon, uid);
        let (got, is_refused) = take_contexts(&mut app);
        all.push(app);
        contexts += got;
        is_full = is_refused;
    }
    (all, contexts)
}

#[test]
fn contexts_of_one_user_leave_descriptors_to_others() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root, to act as another user");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) }).unwrap();
    let allow_uids = Some(vec![0, STRANGER, STRANGER - 1]);
    let daemon = Daemon::start(Options { allow_uids, ..Options::default() });
    let (greedy, count) = fill(&daemon, STRANGER);
    let most = LIMIT as usize * 3 / 4;
    assert!((most / 2..most).contains(&count), "{count}");
    // Another user, and root, get all that a program needs.
    for uid in [STRANGER - 1, 0] {
        let mut other = App::of_user(&daemon, uid);
        let (socket, address) = listener();
        let queue = other.listen(&socket, 8);
        for context in 100..150 {
            assert_eq!(other.ask(Request::Context { context }).0, Reply::Done, "of user {uid}");
        }
        other.connect(address);
        assert_eq!(other.accept_wait(queue).1.local, address);
    }
    assert!(daemon.report(Report::Sockets).is_array());
    // What it had is its again, but for ports that the service holds since the connections.
    drop(greedy);
    daemon.until_applications(0);
    assert!((count - 64..=count).contains(&fill(&daemon, STRANGER).1));
}

/// Most lines of one user that say no hello.
const UNFINISHED: usize = 64;

#[test]
fn what_lies_unread_at_closed_lines_counts_as_its_users() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root, to act as another user");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) }).unwrap();
    let allow_uids = Some(vec![0, STRANGER]);
    let daemon = Daemon::start(Options { allow_uids, ..Options::default() });
    let ask = |line: &Line| {
        let said = ToService { number: 1, request: Request::Report(Report::Statistics) };
        line.send(&said, &[], true).is_ok()
    };
    // Lines that got an answer hold it still.
    let is_refused =
        |lines: &[Line]| lines.iter().any(|line| matches!(line.has_descriptors(), Err(LineError::Closed)));
    let mut lines: Vec<Line> = Vec::new();
    for n in 0..600 {
        // The next line closes the oldest, which has not read its answer.
        if let Some(oldest) = (n as usize).checked_sub(UNFINISHED) {
            poll(&mut [PollFd::new(&lines[oldest], PollFlags::IN)], None).unwrap();
        }
        lines.push(daemon.dial_as(STRANGER));
        ask(&lines[lines.len() - 1]);
        if n % 16 == 0 && is_refused(&lines) {
            break;
        }
    }
    assert!(is_refused(&lines), "its user has its share of descriptors");
    assert!(daemon.report(Report::Sockets).is_array(), "others are served");
    // What is read, or goes with its process, counts no more.
    drop(lines);
    let end = Instant::now() + PATIENCE;
    loop {
        let line = daemon.dial_as(STRANGER);
        if ask(&line) && line.receive::<ToApplication>(true).is_ok() {
            return;
        }
        assert!(Instant::now() < end, "it is not served again");
    }
}
