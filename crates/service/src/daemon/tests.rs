//! The control loop turn by turn: what lies at its sockets before a turn is there all at once.

use super::{EVENTS, Service};
use crate::config::Options;
use control::{Line, LineError, PROTOCOL, Parent, Reply, Request, ToApplication, ToService, Welcome};
use rustix::event::Timespec;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Turns after which the loop has nothing left to do.
const TURNS: usize = 16;

/// A service that takes turns when it is told to, in a thread of its own, which gives up what a service does not need.
struct Stepped {
    path: PathBuf,
    go: Option<Sender<()>>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Stepped {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("service/c");
        let options = Options { region_slots: Some(64), region_mib: Some(1), ..Options::default() };
        let config = Options { control: Some(path.clone()), ..options }.resolve().unwrap();
        let (go, told) = channel();
        let (says, done) = channel();
        let thread = std::thread::spawn(move || {
            let mut service = Service::open(config).unwrap();
            let mut events = Vec::with_capacity(EVENTS);
            says.send(()).unwrap();
            while let Ok(()) = told.recv() {
                for _ in 0..TURNS {
                    service.turn(&mut events, Some(Timespec::default())).unwrap();
                }
                says.send(()).unwrap();
            }
            service.hang_up_all();
        });
        done.recv().unwrap();
        Self { path, go: Some(go), done, thread: Some(thread), _folder: folder }
    }

    fn turns(&self) {
        self.go.as_ref().unwrap().send(()).unwrap();
        self.done.recv().unwrap();
    }

    fn dial(&self) -> Line {
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&fd, &SocketAddrUnix::new(&self.path).unwrap()).unwrap();
        Line::new(fd)
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        self.go = None;
        let joined = self.thread.take().unwrap().join();
        assert!(joined.is_ok() || std::thread::panicking());
    }
}

fn say(line: &Line, number: u32, request: Request) {
    line.send(&ToService { number, request }, &[], true).unwrap();
}

fn hello(parent: Option<Parent>) -> Request {
    let itself = control::Itself::default();
    Request::Hello { protocol: PROTOCOL, layout: shm::VERSION, name: "test".into(), parent, itself }
}

/// The answer to a hello that was said on the line; `None`: it was refused.
fn welcome(line: &Line) -> Option<Welcome> {
    match line.receive::<ToApplication>(false).map(|got| got.message) {
        Ok(ToApplication::Reply(1, Reply::Welcome(welcome))) => Some(welcome),
        Ok(ToApplication::Reply(1, Reply::Refused { .. })) | Err(LineError::Closed) => None,
        other => panic!("{other:?}"),
    }
}

/// `daemon(3)`: the parent forks, and exits at once. The service was stopped meanwhile, so it finds all of it at once.
#[test]
fn a_hello_that_waits_in_the_listening_socket_is_heard_before_the_end_of_the_parents_line() {
    for others in [0, 3, 500] {
        let service = Stepped::new();
        let parent = service.dial();
        say(&parent, 1, hello(None));
        service.turns();
        let Welcome { application, secret, .. } = welcome(&parent).unwrap();
        let place = |holder| Parent { application, secret, holder };
        // Lines that say nothing.
        let silent: Vec<Line> = (0..others).map(|_| service.dial()).collect();
        let promise = service.dial();
        say(&promise, 0, Request::Expect(place(1)));
        let child = service.dial();
        say(&child, 1, hello(Some(place(1))));
        drop((parent, promise));
        (0..4).for_each(|_| service.turns());
        let welcome = welcome(&child);
        assert_eq!(welcome.map(|welcome| welcome.holder), Some(1), "behind {others} lines");
        drop(silent);
    }
}

/// More than lines may be without a hello: none of them is.
#[test]
fn of_a_crowd_that_says_hello_at_once_each_is_welcome() {
    let service = Stepped::new();
    let crowd: Vec<Line> = (0..300).map(|_| service.dial()).collect();
    crowd.iter().for_each(|line| say(line, 1, hello(None)));
    (0..4).for_each(|_| service.turns());
    assert_eq!(crowd.iter().filter_map(welcome).count(), crowd.len());
}

#[test]
fn lines_that_say_no_hello_make_room_for_others() {
    let service = Stepped::new();
    let silent: Vec<Line> = (0..300).map(|_| service.dial()).collect();
    (0..4).for_each(|_| service.turns());
    let last = service.dial();
    say(&last, 1, hello(None));
    service.turns();
    assert!(welcome(&last).is_some());
    let is_open = |line: &&Line| matches!(line.receive::<ToApplication>(false), Err(LineError::WouldBlock));
    assert_eq!(silent.iter().filter(is_open).count(), 63, "as many as may be, with the new one");
    assert!(silent[300 - 63..].iter().all(|line| is_open(&line)), "the last ones");
}
