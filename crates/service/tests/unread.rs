//! Programs that do not read their control line: what is owed to them waits, and costs others nothing.

use crate::common::{App, Daemon, listener};
use control::{Push, Reply, Report, Request};
use rustix::fd::{AsFd, AsRawFd};
use service::Options;
use std::collections::BTreeSet;
use std::time::Duration;

/// Most descriptors in flight to one line, beside one answer.
const IN_FLIGHT: usize = 6;

/// Descriptors that lie unread at this end of a line; `None`: the kernel does not say it.
fn unread_descriptors(app: &App) -> Option<usize> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", app.line.as_fd().as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("scm_fds:"))?.trim().parse().ok()
}

#[test]
fn descriptors_that_a_program_does_not_read_wait_at_the_service_and_come_when_it_reads() {
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let queue = server.listen(&socket, 64);
    for context in 1..100 {
        assert_eq!(server.ask(Request::Context { context }).0, Reply::Done);
    }
    for _ in 0..3 {
        client.connect(address);
        server.accept_wait(queue);
    }
    server.listen_to_pushes();
    server.pushes.clear();
    let application = server.welcome.application;
    for context in 1..100 {
        let (reply, fds) = client.ask(Request::QueueWaker { queue, application, context });
        assert_eq!((reply, fds.len()), (Reply::Done, 1));
    }
    if let Some(unread) = unread_descriptors(&server) {
        assert!((1..=IN_FLIGHT).contains(&unread), "{unread} in flight");
    }
    let before = server.sleepers.len();
    server.until("all wakers come", |s| {
        let context = |push: &Push| match push {
            Push::Waker { context, .. } => *context,
            other => panic!("{other:?}"),
        };
        s.pushes.iter().map(context).collect::<BTreeSet<_>>().len() == 99
    });
    assert_eq!(
        (server.pushes.len(), server.sleepers.len() - before),
        (99, 99),
        "each once, with its eventfd"
    );
}

#[test]
fn a_program_that_reads_nothing_while_its_peers_end_goes_on_and_is_told_of_all_later() {
    const PEERS: usize = 300;
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let mut server = App::new(&daemon);
    let queue = server.listen(&socket, 512);
    let mut kept = App::new(&daemon);
    let mut there = kept.connect(address);
    let (mut here, _) = server.accept_wait(queue);
    let (mut regions, mut peers) = (BTreeSet::new(), Vec::new());
    for _ in 0..PEERS {
        let mut peer = App::new(&daemon);
        regions.insert(peer.connect(address).region);
        let (end, _) = server.accept_wait(queue);
        server.close(&end);
        peers.push(peer);
    }
    drop(peers);
    daemon.until_applications(2);
    assert_eq!(daemon.report(Report::Statistics)["detached"], 0);
    kept.send(&mut there, b"goes on");
    assert_eq!(server.receive_exact(&mut here, 7), b"goes on");
    server.until("it is told of all ends", |s| {
        assert!(s.listen_to_pushes(), "its line is open");
        let ended = s.pushes.iter().filter_map(|push| match push {
            Push::Revoked { region } => Some(*region),
            _ => None,
        });
        regions.is_subset(&ended.collect())
    });
}

#[test]
fn what_would_come_with_descriptors_is_not_made_for_who_wants_no_answer() {
    let daemon = Daemon::start(Options::default());
    let (socket, _) = listener();
    let mut app = App::new(&daemon);
    let queue = app.listen(&socket, 8);
    let application = app.welcome.application;
    app.say(Request::Context { context: 9 });
    let asked = app.ask(Request::QueueWaker { queue, application, context: 9 }).0;
    assert!(matches!(asked, Reply::Refused { .. }), "there is a context: {asked:?}");
    app.say(Request::QueueWaker { queue, application, context: app.context });
    for _ in 0..1000 {
        app.say(Request::Context { context: app.context });
    }
    // The line is served in order.
    assert!(matches!(app.ask(Request::Region { region: u32::MAX }).0, Reply::Refused { .. }));
    assert!(app.pushes.is_empty(), "{:?}", app.pushes);
    assert!(!app.sleep(Duration::ZERO) || app.pushes.is_empty());
}
