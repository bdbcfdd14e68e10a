//! The kernel refuses to send descriptors when too many are in flight for the service's user. No program is detached for that. This test is a
//! program of its own, because it lowers the limit of descriptors and reaches it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(dead_code, reason = "the other tests use the rest of the common part")]

mod common;

use crate::common::{App, Daemon, listener};
use control::{Push, Reply, Report, Request, ToApplication, ToService};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::IoSlice;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use service::Options;
use std::mem::MaybeUninit;

/// Limit of descriptors of the service, and of those in flight for its user.
const LIMIT: u64 = 2000;
/// Descriptors in one message.
const EACH: usize = 250;

/// Sockets whose queues hold more descriptors than may be in flight.
fn fill() -> Vec<OwnedFd> {
    let mut all = Vec::new();
    for _ in 0..=LIMIT as usize / EACH {
        let (near, far) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let fds: Vec<BorrowedFd<'_>> = (0..EACH).map(|_| near.as_fd()).collect();
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(EACH))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&near, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::empty()).unwrap();
        all.extend([near, far]);
    }
    all
}

#[test]
fn a_full_count_of_descriptors_in_flight_detaches_nobody() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root, to have more descriptors in flight than the service may");
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) }).unwrap();
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let queue = server.listen(&socket, 64);
    for _ in 0..3 {
        client.connect(address);
        server.accept_wait(queue);
    }
    let (mut there, mut here) = (client.connect(address), server.accept_wait(queue).0);
    let full = fill();
    // A helper cannot be given the line of a report now: it waits.
    let tool = daemon.dial();
    let said = ToService { number: 1, request: Request::Report(Report::Sockets) };
    tool.send(&said, &[], true).unwrap();
    let (reply, fds) = server.ask(Request::Context { context: 5 });
    assert!(matches!(reply, Reply::Refused { .. }) && fds.is_empty(), "{reply:?}");
    // A push loses its descriptor.
    let (application, context) = (server.welcome.application, server.context);
    let asked = client.ask(Request::QueueWaker { queue, application, context });
    assert!(matches!(asked, (Reply::Refused { .. }, _)), "{asked:?}");
    let before = server.sleepers.len();
    server.until("it is told", |s| s.pushes.contains(&Push::Waker { region: queue, context }));
    assert_eq!(server.sleepers.len(), before, "no descriptor came");
    // Established connections go on, and all is well afterwards.
    client.send(&mut there, b"goes on");
    assert_eq!(server.receive_exact(&mut here, 7), b"goes on");
    drop(full);
    let report = tool.receive::<ToApplication>(true).unwrap();
    assert!(matches!(report.message, ToApplication::Reply(1, Reply::Text)), "{:?}", report.message);
    let [_, after] = server.ask_again_for_wakers();
    assert!(after > 0, "what was lost comes when it is asked for");
    assert_eq!(server.ask(Request::Context { context: 5 }).0, Reply::Done);
    assert_eq!(daemon.report(Report::Statistics)["detached"], 0);
}
