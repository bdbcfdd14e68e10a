//! What is refused leaves nothing behind. A program of its own: it counts all descriptors of the process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(dead_code, reason = "the other tests use the rest of the common part")]

mod common;

use crate::common::{App, Daemon, PATIENCE, hello};
use control::{
    KernelReason, Left, Line, Parent, Reply, Request, SocketOptions, ToApplication, ToService, Unlisten,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketType, socket};
use service::Options;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Instant;

/// Descriptors of the service and its helpers, which have tables of their own, and the sockets in epoll sets.
fn held() -> [usize; 2] {
    let count = |folder: &Path| std::fs::read_dir(folder).map_or(0, Iterator::count);
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_helper = |task: &Path| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("towpath-helper"))
    };
    let of_helpers: usize = tasks.filter(|task| is_helper(task)).map(|task| count(&task.join("fd"))).sum();
    let texts = std::fs::read_dir("/proc/self/fdinfo")
        .unwrap()
        .filter_map(|info| std::fs::read_to_string(info.ok()?.path()).ok());
    let watched = texts.map(|text| text.lines().filter(|line| line.starts_with("tfd:")).count()).sum();
    [count(Path::new("/proc/self/fd")) + of_helpers, watched]
}

fn tcp() -> OwnedFd {
    socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
}

fn file() -> OwnedFd {
    std::fs::File::open("/proc/self/status").unwrap().into()
}

fn listening() -> OwnedFd {
    TcpListener::bind("127.0.0.1:0").unwrap().into()
}

fn bound() -> OwnedFd {
    let fd = tcp();
    rustix::net::bind(&fd, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    fd
}

/// Says it, and a question behind it, and returns the reply to the first; `None`: there was none, or the line was closed.
fn answer(line: &Line, request: Request, fds: &[OwnedFd]) -> Option<Reply> {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let question = Request::Congestion { name: "cubic".parse().unwrap() };
    line.send(&ToService { number: 9, request }, &fds, true).unwrap();
    let _ = line.send(&ToService { number: 10, request: question }, &[], true);
    let mut first = None;
    loop {
        match line.receive::<ToApplication>(true).map(|got| got.message) {
            Ok(ToApplication::Reply(9, reply)) => first = Some(reply),
            Ok(ToApplication::Reply(..)) | Err(_) => return first,
            Ok(ToApplication::Push(_)) => {}
        }
    }
}

/// True for an answer that lets nothing in. Requests that need no socket are answered as if none had come.
fn is_refusal(request: &Request, reply: Option<&Reply>) -> bool {
    let needs_one = matches!(request, Request::Listen { .. } | Request::Leave(_));
    match reply {
        None | Some(Reply::Refused { .. } | Reply::Kernel { .. }) => true,
        reply => reply == Some(&Reply::Done) && !needs_one,
    }
}

fn connect() -> Request {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    Request::Connect { remote: nowhere, options: SocketOptions::default(), has_looked: true }
}

fn leave(region: u32) -> Request {
    Request::Leave(Left { region, slot: 1, side: 0, home: region, sock: 1 })
}

/// A name, a request, and what makes the descriptors that are shown with it.
type Row = (&'static str, Request, fn() -> Vec<OwnedFd>);

/// Requests with what is shown by them. All are refused, or end the line.
fn table() -> Vec<Row> {
    let listen = || Request::Listen { backlog: 8, nonblocking: false };
    let present = || Request::Present { sock: 1 };
    let at = SocketAddr::from(([127, 0, 0, 1], 1));
    vec![
        ("leave: no connection", leave(0), || vec![tcp()]),
        ("leave: a stranger's region", leave(1), || vec![bound()]),
        ("leave: no socket", leave(0), || vec![file()]),
        ("leave: two", leave(0), || vec![tcp(), tcp()]),
        ("listen: it does not listen", listen(), || vec![tcp()]),
        ("listen: no socket", listen(), || vec![file()]),
        ("listen: three", listen(), || vec![listening(), tcp(), file()]),
        ("present: nothing was left", present(), || vec![tcp()]),
        ("present: no socket", present(), || vec![file()]),
        ("connect: nobody listens", connect(), || vec![bound()]),
        ("connect: no socket", connect(), || vec![file()]),
        ("unlisten", Request::Unlisten { queue: 77, because: Unlisten::Closed }, || vec![listening()]),
        ("listen again", Request::ListenAgain { queue: 77, reuse_address: true }, || vec![listening()]),
        ("want port", Request::WantPort { at }, || vec![bound()]),
        ("let go", Request::LetGo, || vec![file()]),
        ("fell back", Request::FellBack { reason: KernelReason::NoListener, inode: 1 }, || vec![tcp()]),
        ("expect", Request::Expect(Parent { application: 1, secret: 1, holder: 1 }), || vec![file()]),
        ("take", Request::Take { queue: 1, grant: 1 }, || vec![tcp()]),
        ("a second hello", hello(None), || vec![tcp()]),
    ]
}

/// What is held when cores have closed what they have been told to, too.
fn settled() -> [usize; 2] {
    let (mut last, mut same) = (held(), 0);
    while same < 25 {
        std::thread::sleep(std::time::Duration::from_millis(2));
        let now = held();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

/// Waits until the service has no more than before: it may close descriptors after it has answered.
fn check_that_nothing_is_left(what: &str, before: [usize; 2]) {
    let end = Instant::now() + PATIENCE;
    while held().iter().zip(before).any(|(now, before)| *now > before) {
        assert!(Instant::now() < end, "{what} leaves something behind: {:?}, before {before:?}", held());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn what_is_refused_leaves_neither_a_descriptor_nor_a_watch() {
    let daemon = Daemon::start(Options::default());
    // The first job starts a helper, which stays; the kernel gives memory for the first of everything.
    for fd in [tcp, listening] {
        let app = App::new(&daemon);
        let listen = Request::Listen { backlog: 8, nonblocking: false };
        answer(&app.line, listen, &[fd()]);
    }
    daemon.until_applications(0);
    let nothing = settled();
    for (what, request, shown) in table() {
        let app = App::new(&daemon);
        let with_it = settled();
        let shown = shown();
        let reply = answer(&app.line, request.clone(), &shown);
        // The socket stays open in this process, which is what a watch would need to stay.
        assert!(is_refusal(&request, reply.as_ref()), "{what}: {reply:?}");
        if reply.is_some() {
            let own = [with_it[0] + shown.len(), with_it[1]];
            check_that_nothing_is_left(what, own);
        }
        drop(app);
        daemon.until_applications(0);
        check_that_nothing_is_left(what, [nothing[0] + shown.len(), nothing[1]]);
        drop(shown);
        // A process that has not said hello, and one without a region.
        let line = daemon.dial();
        answer(&line, request.clone(), &[tcp()]);
        drop(line);
        let line = daemon.dial();
        answer(&line, hello(None), &[]).unwrap();
        let fds = [listening()];
        answer(&line, request, &fds);
        drop((line, fds));
        daemon.until_applications(0);
        check_that_nothing_is_left(what, nothing);
    }
}
