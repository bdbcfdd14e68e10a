//! Control lines of other users, which speak the service's messages without the library: those of an honest program, and those of a user
//! that asks without end.

use anyhow::{Context, bail};
use control::{
    Left, Line, LineError, PROTOCOL, Reply, Report, Request, SocketOptions, ToApplication, ToService,
};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket, socket_with};
use rustix::process::{Gid, Uid};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Contexts that a process may have.
const CONTEXTS: u32 = 254;
/// A port of this host at which nothing listens.
const CLOSED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

/// This thread acts as that user from now on.
pub fn become_user(uid: u32) -> anyhow::Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    Ok(rustix::thread::set_thread_res_uid(user, user, user)?)
}

/// A line with the number of its last request.
pub struct Talker {
    line: Line,
    number: u32,
}

impl Talker {
    /// Connects to the service.
    pub fn dial(control: &Path) -> anyhow::Result<Self> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&fd, &SocketAddrUnix::new(control)?).context("the service takes no line")?;
        Ok(Self { line: Line::new(fd), number: 0 })
    }

    /// Sends a request, and does not wait for the answer.
    pub fn say(&mut self, request: Request, shown: Option<&OwnedFd>) -> anyhow::Result<()> {
        self.number += 1;
        let shown: Vec<_> = shown.into_iter().map(AsFd::as_fd).collect();
        Ok(self.line.send(&ToService { number: self.number, request }, &shown, true)?)
    }

    /// The answer to a request.
    pub fn ask(
        &mut self,
        request: Request,
        shown: Option<&OwnedFd>,
    ) -> anyhow::Result<(Reply, Vec<OwnedFd>)> {
        self.say(request, shown)?;
        loop {
            let got = self.line.receive::<ToApplication>(true)?;
            match got.message {
                ToApplication::Reply(number, reply) if number == self.number => return Ok((reply, got.fds)),
                _ => {}
            }
        }
    }

    /// Takes all that has come. Returns the number of answers.
    fn hear(&self) -> anyhow::Result<u32> {
        let mut answers = 0;
        loop {
            match self.line.receive::<ToApplication>(false) {
                Ok(got) => answers += u32::from(matches!(got.message, ToApplication::Reply(..))),
                Err(LineError::WouldBlock) => return Ok(answers),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Registers, as a program does before its first socket.
    pub fn register(&mut self) -> anyhow::Result<u32> {
        let hello = Request::Hello {
            protocol: PROTOCOL,
            layout: shm::VERSION,
            name: "crowd".into(),
            parent: None,
            itself: control::Itself::default(),
        };
        match self.ask(hello, None)?.0 {
            Reply::Welcome(_) => {}
            other => bail!("no welcome: {other:?}"),
        }
        let region = match self.ask(Request::OpenRegion { room: u64::MAX }, None)?.0 {
            Reply::Region(info) => info.id,
            other => bail!("no region: {other:?}"),
        };
        match self.ask(Request::Context { context: 0 }, None)?.0 {
            Reply::Done => Ok(region),
            other => bail!("no context: {other:?}"),
        }
    }
}

/// What the hostile user does.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// It does nothing: the figures to compare with.
    Nothing,
    /// On 64 lines one report after the other.
    Reports(fn() -> Report),
    /// On 200 lines one connect after the other.
    Connects,
    /// Shows 18,000 sockets of which the service keeps none, and lets something go 200 times a second.
    Shown,
    /// Has as many contexts as it gets.
    Contexts,
}

/// A user that asks without end. Dropping it ends that.
pub struct Crowd {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<u64>>>,
}

impl Crowd {
    /// Starts the load as user `uid`, and waits until it is under way.
    pub fn start(control: &Path, uid: u32, load: Load) -> anyhow::Result<Self> {
        let (stops, ready) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (control, theirs) = (control.to_owned(), [stops.clone(), ready.clone()]);
        let run = move || {
            become_user(uid)?;
            carry_on(&control, load, theirs)
        };
        let thread = std::thread::Builder::new().name("crowd".to_owned()).spawn(run)?;
        while !ready.load(Ordering::Acquire) && !thread.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { stops, thread: Some(thread) })
    }

    /// Ends the load. Returns how many requests were answered or sent.
    pub fn stop(mut self) -> anyhow::Result<u64> {
        self.stops.store(true, Ordering::Release);
        let ended = self.thread.take().context("it has ended")?.join();
        ended.map_err(|_| anyhow::anyhow!("a thread of the crowd has panicked"))?
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn carry_on(control: &Path, load: Load, [stops, ready]: [Arc<AtomicBool>; 2]) -> anyhow::Result<u64> {
    let is_over = || stops.load(Ordering::Acquire);
    let begin = || ready.store(true, Ordering::Release);
    match load {
        Load::Nothing => {
            begin();
            Ok(0)
        }
        Load::Reports(report) => {
            let lines: anyhow::Result<Vec<_>> = (0..64).map(|_| Talker::dial(control)).collect();
            flood(lines?, || Request::Report(report()), begin, is_over)
        }
        Load::Connects => {
            let register = |_| {
                let mut line = Talker::dial(control)?;
                line.register()?;
                Ok(line)
            };
            let lines: anyhow::Result<Vec<_>> = (0..200).map(register).collect();
            let options = SocketOptions::default;
            flood(
                lines?,
                || Request::Connect { remote: CLOSED, options: options(), has_looked: true },
                begin,
                is_over,
            )
        }
        Load::Shown => show(control, begin, is_over),
        Load::Contexts => fill(control, begin, is_over),
    }
}

/// On each line a request as soon as the last one has its answer.
fn flood(
    mut lines: Vec<Talker>,
    request: impl Fn() -> Request,
    begin: impl Fn(),
    is_over: impl Fn() -> bool,
) -> anyhow::Result<u64> {
    let mut count = 0;
    lines.iter_mut().try_for_each(|line| line.say(request(), None))?;
    begin();
    while !is_over() {
        let mut fds: Vec<_> = lines
            .iter()
            .map(|talker| rustix::event::PollFd::new(&talker.line, rustix::event::PollFlags::IN))
            .collect();
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        rustix::event::poll(&mut fds, Some(&pause))?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (line, _) in lines.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready) {
            for _ in 0..line.hear()? {
                count += 1;
                line.say(request(), None)?;
            }
        }
    }
    Ok(count)
}

fn show(control: &Path, begin: impl Fn(), is_over: impl Fn() -> bool) -> anyhow::Result<u64> {
    let mut line = Talker::dial(control)?;
    let home = line.register()?;
    let mut kept = Vec::new();
    while kept.len() < 18_000 && !is_over() {
        let Ok(tcp) = socket(AddressFamily::INET, SocketType::STREAM, None) else { break };
        line.ask(Request::Leave(Left { region: home, slot: 1, side: 0, home, sock: 1 }), Some(&tcp))?;
        kept.push(tcp);
    }
    begin();
    let mut count = kept.len() as u64;
    while !is_over() {
        line.say(Request::LetGo, None)?;
        line.hear()?;
        count += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(count)
}

fn fill(control: &Path, begin: impl Fn(), is_over: impl Fn() -> bool) -> anyhow::Result<u64> {
    let (mut lines, mut count) = (Vec::new(), 0);
    'all: while !is_over() {
        let mut line = Talker::dial(control)?;
        if line.register().is_err() {
            break;
        }
        for context in 1..CONTEXTS {
            if !matches!(line.ask(Request::Context { context }, None), Ok((Reply::Done, _))) {
                lines.push(line);
                break 'all;
            }
            count += 1;
        }
        lines.push(line);
    }
    begin();
    while !is_over() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(count)
}
