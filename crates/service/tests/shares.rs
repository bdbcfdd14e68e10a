//! What one user can use up: others register, ask and connect all the same.

use crate::common::{App, Daemon, listener};
use control::{Report, Request, ToApplication, ToService};
use service::Options;

/// The number of an ordinary user.
const STRANGER: u32 = 65_534;

fn may_change_user() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: needs root, to act as another user");
    }
    is_root
}

fn open_to_all() -> Options {
    Options { allow_uids: Some(vec![0, STRANGER, STRANGER - 1]), ..Options::default() }
}

#[test]
fn idle_control_lines_of_one_user_shut_out_neither_others_nor_its_own_questions() {
    if !may_change_user() {
        return;
    }
    let daemon = Daemon::start(Options { max_applications: Some(8), ..open_to_all() });
    let idle: Vec<_> = (0..200).map(|_| daemon.dial_as(STRANGER)).collect();
    let mut other = App::of_user(&daemon, STRANGER - 1);
    let (socket, _) = listener();
    assert!(other.listen(&socket, 8) > 0);
    let line = daemon.dial_as(STRANGER);
    line.send(&ToService { number: 1, request: Request::Report(Report::Statistics) }, &[], true).unwrap();
    assert!(matches!(line.receive::<ToApplication>(true).unwrap().message, ToApplication::Reply(1, _)));
    let closed = idle.iter().filter(|line| matches!(line.has_descriptors(), Err(control::LineError::Closed)));
    assert!(closed.count() >= 200 - 64 - 1, "the oldest are closed");
}

#[test]
fn processes_of_one_user_leave_room_for_others() {
    if !may_change_user() {
        return;
    }
    let daemon = Daemon::start(Options { max_applications: Some(8), ..open_to_all() });
    let greedy: Vec<App> = (0..6).map(|_| App::of_user(&daemon, STRANGER)).collect();
    let line = daemon.dial_as(STRANGER);
    line.send(&ToService { number: 1, request: crate::common::hello(None) }, &[], true).unwrap();
    let refused = line.receive::<ToApplication>(true).unwrap().message;
    assert!(matches!(refused, ToApplication::Reply(1, control::Reply::Refused { .. })), "{refused:?}");
    let _root = App::new(&daemon);
    let _other = App::of_user(&daemon, STRANGER - 1);
    drop(greedy);
}
