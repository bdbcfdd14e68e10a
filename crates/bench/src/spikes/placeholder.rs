//! Which kind of descriptor should stand for an accepted connection: the cost to make, keep and inherit each candidate.

use crate::clock::now_ns;
use crate::samples::Samples;
use crate::{Options, Report};
use anyhow::Context;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{
    AddressFamily, Ipv4Addr, SocketAddrV4, SocketFlags, SocketType, bind, socket_with, socketpair, sockopt,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Descriptors made in a row before all are closed.
const BATCH: usize = 500;
/// Descriptors kept open while memory is measured.
const KEPT: usize = 20_000;
/// Descriptors that are open when a process is started.
const INHERITED: usize = 1_000;

struct Candidate {
    name: &'static str,
    make: fn(&Templates) -> rustix::io::Result<OwnedFd>,
}

/// Descriptors that some candidates duplicate.
struct Templates {
    tcp: OwnedFd,
    unix: OwnedFd,
    null: OwnedFd,
}

fn stream(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

const CANDIDATES: &[Candidate] = &[
    Candidate { name: "socket-inet", make: |_| stream(AddressFamily::INET) },
    Candidate { name: "socket-inet6", make: |_| stream(AddressFamily::INET6) },
    Candidate { name: "socket-unix", make: |_| stream(AddressFamily::UNIX) },
    Candidate {
        name: "socketpair-unix-half",
        make: |_| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map(|(a, _)| a)
        },
    },
    Candidate { name: "dup-of-tcp-socket", make: |t| fcntl_dupfd_cloexec(&t.tcp, 0) },
    Candidate { name: "dup-of-unix-socket", make: |t| fcntl_dupfd_cloexec(&t.unix, 0) },
    Candidate { name: "dup-of-o-path", make: |t| fcntl_dupfd_cloexec(&t.null, 0) },
    Candidate { name: "eventfd", make: |_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) },
    Candidate { name: "epoll", make: |_| epoll::create(epoll::CreateFlags::CLOEXEC) },
    Candidate {
        name: "open-o-path",
        make: |_| rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()),
    },
];

/// Runs the measurement `spike-placeholder`.
///
/// # Errors
/// When the limit of descriptors is too low or the kernel refuses one.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("spike-placeholder");
    let room = raise_limit();
    let templates = Templates {
        tcp: stream(AddressFamily::INET)?,
        unix: stream(AddressFamily::UNIX)?,
        null: rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?,
    };
    let mut samples = Samples::default();
    for _ in 0..options.runs() {
        for candidate in CANDIDATES {
            make_and_close(candidate, &templates, &mut samples)?;
        }
        socket_calls(&mut samples)?;
        for kept in [0, 10, 1_000, 10_000] {
            wait_for_one_of(kept, &mut samples)?;
        }
        start_with(None, &templates, &mut samples)?;
        for candidate in CANDIDATES {
            start_with(Some(candidate), &templates, &mut samples)?;
        }
    }
    let kept = KEPT.min(room.saturating_sub(100));
    for candidate in CANDIDATES {
        memory_of(candidate, &templates, kept, &mut samples)?;
    }
    report.note(format!(
        "memory: growth of Slab in /proc/meminfo over {kept} descriptors, so +-50 B; a duplicate shares its \
         template's file and needs only its place in the table"
    ));
    report.note(format!(
        "spawn: a child started and waited for while {INHERITED} descriptors are open: the table is copied as by fork"
    ));
    report.rows = samples.rows();
    Ok(report)
}

/// Raises the limit of descriptors to the hard limit. Returns the new limit.
fn raise_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(1 << 20);
    // If this is refused, the present limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(most) as usize
}

fn many(candidate: &Candidate, templates: &Templates, n: usize) -> anyhow::Result<Vec<OwnedFd>> {
    let made: Result<Vec<OwnedFd>, _> = (0..n).map(|_| (candidate.make)(templates)).collect();
    made.with_context(|| format!("cannot make {n} descriptors of kind {}", candidate.name))
}

fn make_and_close(candidate: &Candidate, templates: &Templates, samples: &mut Samples) -> anyhow::Result<()> {
    let case = "placeholder/cost";
    drop(many(candidate, templates, BATCH)?);
    let start = now_ns();
    let made = many(candidate, templates, BATCH)?;
    let middle = now_ns();
    drop(made);
    let end = now_ns();
    samples.add(case, candidate.name, "make", "ns", (middle - start) as f64 / BATCH as f64);
    samples.add(case, candidate.name, "close", "ns", (end - middle) as f64 / BATCH as f64);
    Ok(())
}

/// The system calls that the library makes on the application's own TCP sockets.
fn socket_calls(samples: &mut Samples) -> anyhow::Result<()> {
    let sockets: Vec<OwnedFd> = (0..BATCH).map(|_| stream(AddressFamily::INET)).collect::<Result<_, _>>()?;
    let case = "placeholder/calls";
    let start = now_ns();
    for socket in &sockets {
        sockopt::socket_cookie(socket)?;
    }
    let cookies = now_ns();
    for socket in &sockets {
        bind(socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    }
    let bound = now_ns();
    samples.add(case, "socket-inet", "SO_COOKIE", "ns", (cookies - start) as f64 / BATCH as f64);
    samples.add(case, "socket-inet", "bind 127.0.0.1:0", "ns", (bound - cookies) as f64 / BATCH as f64);
    Ok(())
}

/// Writes to one eventfd of an epoll set and waits for it. The eventfds are edge-triggered and never read, as those of contexts are.
fn wait_for_one_of(others: usize, samples: &mut Samples) -> anyhow::Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let make = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let fds: Vec<OwnedFd> = (0..=others).map(|_| make()).collect::<Result<_, _>>()?;
    for fd in &fds {
        epoll::add(&set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
    }
    let mut events = Vec::with_capacity(8);
    let case = format!("placeholder/epoll/{}", others + 1);
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let start = now_ns();
    for _ in 0..BATCH {
        events.clear();
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&zero))?;
    }
    let empty = now_ns();
    for i in 0..BATCH {
        rustix::io::write(&fds[i % fds.len()], &1u64.to_ne_bytes())?;
        events.clear();
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&zero))?;
    }
    let woken = now_ns();
    samples.add(&case, "eventfd", "wait, nothing there", "ns", (empty - start) as f64 / BATCH as f64);
    samples.add(&case, "eventfd", "write and wait", "ns", (woken - empty) as f64 / BATCH as f64);
    Ok(())
}

fn start_with(
    candidate: Option<&Candidate>,
    templates: &Templates,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    const STARTS: u32 = 5;
    let kept = match candidate {
        Some(candidate) => many(candidate, templates, INHERITED)?,
        None => Vec::new(),
    };
    let start = now_ns();
    for _ in 0..STARTS {
        Command::new("true").stdin(Stdio::null()).status().context("cannot start `true`")?;
    }
    let each = (now_ns() - start) as f64 / f64::from(STARTS) / 1e3;
    drop(kept);
    samples.add("placeholder/spawn", candidate.map_or("none", |c| c.name), "spawn and wait", "us", each);
    Ok(())
}

/// `Slab` of /proc/meminfo in bytes.
fn slab_bytes() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("Slab:")).context("no Slab in /proc/meminfo")?;
    let kib = line.trim().trim_end_matches(" kB").trim().parse::<f64>()?;
    Ok(kib * 1024.0)
}

fn memory_of(
    candidate: &Candidate,
    templates: &Templates,
    n: usize,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    // The kernel frees some memory of the candidate before this one only after an RCU grace period.
    sleep(Duration::from_millis(100));
    let before = slab_bytes()?;
    let made = many(candidate, templates, n)?;
    let each = (slab_bytes()? - before) / n as f64;
    drop(made);
    samples.add("placeholder/memory", candidate.name, "kernel memory", "B", each);
    Ok(())
}
