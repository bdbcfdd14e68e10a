//! Children that a process promises before it forks them. However late a child says hello, and whatever ends meanwhile, it has what its parent
//! gave it. Nothing is kept for a child that cannot come any more.

use crate::common::{App, Conn, Daemon, PATIENCE, hello, listener};
use control::{Line, LineError, Parent, Reply, Report, Request, ToApplication, ToService};
use service::Options;
use shm::half_flags::{FIN, RELEASED, RESET};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A server, and a process with a connection to it that its children inherit.
struct Forking {
    daemon: Daemon,
    server: App,
    here: Conn,
    parent: App,
    place: Parent,
    _socket: TcpListener,
}

/// Number of the parent's socket block.
const SOCK: u32 = 5;

fn forking(options: Options) -> Forking {
    let daemon = Daemon::start(options);
    let (mut server, mut parent) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    let conn = parent.connect(address);
    let (here, _) = server.accept_wait(queue);
    let block = parent.region.sock(SOCK).unwrap();
    block.region.store(conn.region, Ordering::Relaxed);
    block.slot.store(conn.slot, Ordering::Relaxed);
    block.holders.store(1, Ordering::SeqCst);
    let place = Parent { application: parent.welcome.application, secret: parent.welcome.secret, holder: 0 };
    Forking { daemon, server, here, parent, place, _socket: socket }
}

fn expect(daemon: &Daemon, parent: Parent) -> Line {
    let line = daemon.dial();
    line.send(&ToService { number: 0, request: Request::Expect(parent) }, &[], true).unwrap();
    line
}

impl Forking {
    fn new() -> Self {
        forking(Options::default())
    }

    fn holders(&self) -> &AtomicU64 {
        &self.parent.region.sock(SOCK).unwrap().holders
    }

    fn child(&self, holder: u8) -> Parent {
        Parent { holder, ..self.place }
    }

    /// What the parent does before a fork. The line is the child's, too.
    fn promise(&self, holder: u8) -> Line {
        self.parent.region.header().holders_taken.fetch_or(1 << holder, Ordering::SeqCst);
        let line = expect(&self.daemon, self.child(holder));
        self.holders().fetch_or(1 << holder, Ordering::SeqCst);
        line
    }

    /// The child says hello.
    fn comes(&self, holder: u8) -> App {
        App::with(&self.daemon, Some(self.child(holder)), u32::from(holder))
    }

    /// The parent closes its descriptor of the connection.
    fn close(&self) {
        self.holders().fetch_and(!1, Ordering::SeqCst);
    }

    /// The service has carried out all ends that came before.
    fn settle(&self) {
        let count = self.daemon.report(Report::Statistics)["applications"].as_u64().unwrap();
        drop(App::new(&self.daemon));
        self.daemon.until_applications(count);
    }

    fn is_open(&self) -> bool {
        self.server.peer_flags(&self.here) & (FIN | RESET | RELEASED) == 0
    }

    fn until_closed(&mut self, what: &str) {
        let Self { server, here, .. } = self;
        server.until(what, |server| server.peer_flags(here) & FIN != 0);
    }
}

/// The service closes such a line.
fn is_closed(line: &Line) -> bool {
    matches!(line.receive::<ToApplication>(true), Err(LineError::Closed))
}

#[test]
fn a_child_that_says_hello_after_the_ends_of_its_sibling_and_its_parent_has_its_connection() {
    let all = Forking::new();
    let lines = [all.promise(1), all.promise(2)];
    let sibling = all.comes(1);
    drop(sibling);
    all.daemon.until_applications(2);
    assert!(all.is_open(), "the sibling has ended");
    all.close();
    let heir = all.child(2);
    let Forking { daemon, server, here, parent, _socket, .. } = all;
    drop(parent);
    daemon.until_applications(1);
    let is_open = |server: &App| server.peer_flags(&here) & (FIN | RESET | RELEASED) == 0;
    assert!(is_open(&server), "the parent has ended");
    let child = App::with(&daemon, Some(heir), 2);
    drop(lines);
    drop(App::new(&daemon));
    daemon.until_applications(2);
    assert!(is_open(&server), "the child has it, and needs no promise");
    drop(child);
    let mut server = server;
    server.until("closed with the child", |s| s.peer_flags(&here) & FIN != 0);
}

#[test]
fn what_a_child_held_that_is_killed_before_its_hello_is_closed_while_its_parent_lives() {
    let mut all = Forking::new();
    let line = all.promise(2);
    all.close();
    all.settle();
    assert!(all.is_open(), "the child may come");
    drop(line);
    all.until_closed("no process has the connection");
    let Forking { parent, .. } = &mut all;
    parent.until("the bit is free", |p| p.region.header().holders_taken.load(Ordering::SeqCst) & 4 == 0);
    // The same bit for the next child.
    let line = all.promise(2);
    let child = all.comes(2);
    drop(line);
    all.settle();
    assert_eq!((all.holders().load(Ordering::SeqCst), child.welcome.holder), (4, 2));
}

#[test]
fn a_promise_that_is_false_ends_its_line() {
    let all = Forking::new();
    let Parent { application, secret, .. } = all.place;
    for (what, parent) in [
        ("the secret", Parent { application, secret: !secret, holder: 1 }),
        ("another's secret", Parent { secret, application: all.server.welcome.application, holder: 1 }),
        ("the service's bit", Parent { application, secret, holder: 63 }),
        ("no bit", Parent { application, secret, holder: 64 }),
        ("no bit at all", Parent { application, secret, holder: 255 }),
    ] {
        assert!(is_closed(&expect(&all.daemon, parent)), "{what}");
    }
    assert_eq!(all.daemon.report(Report::Statistics)["detached"], 5);
    // More on the line of a child that was promised: here a hello, and another child.
    for next in [hello(Some(all.child(1))), Request::Expect(all.child(2))] {
        let line = all.promise(1);
        line.send(&ToService { number: 1, request: next }, &[], true).unwrap();
        assert!(is_closed(&line));
    }
    assert_eq!(all.daemon.report(Report::Statistics)["detached"], 7);
    assert!(all.is_open(), "the parent has the connection still");
    // On an application's line.
    all.parent.say(Request::Expect(all.child(1)));
    assert!(is_closed(&all.parent.line));
}

#[test]
fn the_line_of_a_promise_that_was_fulfilled_or_replaced_means_nothing() {
    let mut all = Forking::new();
    all.close();
    let [first, second] = [all.promise(1), all.promise(1)];
    all.settle();
    drop(first);
    all.settle();
    assert!(all.is_open(), "the later promise stands");
    let child = all.comes(1);
    // The hello may be heard first.
    let third = all.promise(1);
    all.settle();
    drop((second, third));
    all.settle();
    assert!(all.is_open(), "the child has come");
    drop(child);
    all.until_closed("closed with the child");
}

#[test]
fn lines_without_a_hello_push_out_no_promised_child() {
    let mut all = Forking::new();
    let line = all.promise(1);
    all.close();
    let silent: Vec<Line> = (0..70).map(|_| all.daemon.dial()).collect();
    all.settle();
    assert!(is_closed(&silent[0]), "the oldest makes room");
    assert!(all.is_open());
    drop(line);
    all.until_closed("no process has the connection");
}

#[test]
fn a_promised_child_counts_as_a_process_of_its_user() {
    let all = forking(Options { max_applications: Some(5), ..Options::default() });
    let is_welcome = || {
        let line = all.daemon.dial();
        line.send(&ToService { number: 1, request: hello(None) }, &[], true).unwrap();
        let answer = line.receive::<ToApplication>(true).unwrap().message;
        matches!(answer, ToApplication::Reply(_, Reply::Welcome(_)))
    };
    let lines = [1, 2, 3].map(|holder| all.promise(holder));
    assert!(!is_welcome(), "there are two processes and three promised children");
    let children = [1, 2].map(|holder| all.comes(holder));
    assert!(!is_welcome(), "there are four, and one promised child");
    drop(lines);
    let end = Instant::now() + PATIENCE;
    while !is_welcome() {
        assert!(Instant::now() < end, "the third child cannot come");
    }
    drop(children);
    // At its limit the service answers no question either.
    while all.daemon.ask_by(&all.daemon.dial(), Report::Statistics).is_err() {
        assert!(Instant::now() < end, "the processes have ended");
    }
    all.daemon.until_applications(2);
}

#[test]
fn as_many_children_as_there_are_bits_are_waited_for() {
    let mut all = Forking::new();
    all.close();
    let lines: Vec<Line> = (1..63).map(|holder| all.promise(holder)).collect();
    all.settle();
    // Every second one comes, and goes again.
    let children: Vec<App> = (1..63).step_by(2).map(|holder| all.comes(holder)).collect();
    drop(children);
    all.daemon.until_applications(2);
    let left = (2..63).step_by(2).fold(0u64, |bits, holder| bits | 1 << holder);
    assert_eq!(all.holders().load(Ordering::SeqCst), left);
    assert!(all.is_open());
    drop(lines);
    all.until_closed("none of the others comes");
    let Forking { parent, .. } = &mut all;
    let taken = |p: &App| p.region.header().holders_taken.load(Ordering::SeqCst) & !shm::TRUST;
    parent.until("all bits are free", |p| taken(p) & !1 == 0);
}
