//! The parts that run inside the namespaces: the user-space half, a receiver, senders.

use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::Seed;
use ccp_linux::{Bridge, Setup};
use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};

/// The variable that says which part to play.
pub const PART: &str = "CCP_LINUX_PART";
/// What stands in front of an answer, so that the words of the test's own frame are passed by.
pub const ANSWER: &str = "answer: ";
/// The address of the receiver, in its own namespace.
pub const PEER: &str = "10.77.0.2";
const PORT: u16 = 5201;
/// A flow that does not move for so long is stuck: many retransmission timeouts.
const STUCK: Duration = Duration::from_secs(20);
/// The mean time between two swaps of a flow, and how many it makes.
const SWAP_MS: u64 = 100;
const SWAPS: u32 = 30;

/// Plays the part that the stage asked for; the test itself, without one, has nothing to play.
pub fn play() {
    match std::env::var(PART).as_deref() {
        Ok("bridge") => bridge(),
        Ok("sink") => sink(),
        Ok("source") if variable("ALGORITHMS").is_empty() => source(),
        Ok("source") => swapping_source(),
        Ok("long_source") => long_source(),
        Ok(other) => panic!("there is no part {other}"),
        Err(_) => {}
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("the stage sets {name}"))
}

fn say(answer: &str) {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "\n{ANSWER}{answer}").expect("the stage reads");
}

/// The byte at a place of the stream; its period is no power of two.
fn byte_at(place: u64) -> u8 {
    (place % 251) as u8 ^ (place / 65_521) as u8
}

fn piece_at(place: u64, len: usize) -> Vec<u8> {
    (place..place + len as u64).map(byte_at).collect()
}

/// What a bridge is set up with that has its sockets in this folder.
pub fn setup(name: &str, folder: &Path, rules: &str) -> Setup {
    Setup {
        name: name.to_owned(),
        rules: rules.split_whitespace().map(|rule| rule.parse().expect("a rule")).collect(),
        socket: folder.join("datapath"),
        agents: vec![(folder.join("agent"), Vec::new())],
        endpoint: ccp::Config {
            datapath: 1,
            own_uid: 0,
            allowed_uids: Vec::new(),
            messages_per_second: 20_000,
            cwnd_max: 1 << 30,
            rate_max: u64::MAX,
            flows_max: 1000,
        },
    }
}

fn bridge() {
    let setup = setup(&variable("NAME"), &PathBuf::from(variable("FOLDER")), &variable("RULES"));
    let mut bridge = Bridge::up(&setup).expect("the kernel takes the programs");
    say("up");
    let stdin = std::io::stdin();
    loop {
        bridge.turn(&[stdin.as_fd()]).expect("the kernel goes on");
        if !is_readable(stdin.as_fd()) {
            continue;
        }
        let mut line = String::new();
        stdin.lock().read_line(&mut line).expect("readable");
        match line.trim() {
            "status" => say(&serde_json::to_string(&bridge.status().expect("readable")).expect("plain data")),
            "down" => {
                bridge.down().expect("all flows go back");
                return say("down");
            }
            _ => return,
        }
    }
}

fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn sink() {
    let listener = TcpListener::bind((PEER, PORT)).expect("the address is this namespace's");
    say("listening");
    let flows: u32 = variable("FLOWS").parse().expect("a number");
    let accept = |_| {
        let (stream, _) = listener.accept().expect("a sender comes");
        std::thread::spawn(move || checked(stream))
    };
    let checks: Vec<_> = (0..flows).map(accept).collect();
    let wrong: Vec<String> =
        checks.into_iter().filter_map(|check| check.join().expect("it reads to the end").err()).collect();
    say(if wrong.is_empty() { "right" } else { &wrong[0] });
}

/// Reads a flow to its end, and says what is wrong.
fn checked(mut stream: TcpStream) -> Result<(), String> {
    let expected: u64 = variable("BYTES").parse().expect("a number");
    let mut place = 0;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let len = stream.read(&mut buffer).expect("no reset");
        if len == 0 {
            break;
        }
        if buffer[..len] != piece_at(place, len)[..] {
            return Err(format!("wrong between {place} and {}", place + len as u64));
        }
        place += len as u64;
    }
    let is_right = place > 0 && (expected == 0 || place == expected);
    if is_right { Ok(()) } else { Err(format!("{place} bytes of {expected}")) }
}

fn connect() -> TcpStream {
    let stream = TcpStream::connect((PEER, PORT)).expect("the sink listens");
    stream.set_write_timeout(Some(STUCK)).expect("settable");
    stream
}

/// Sends the bytes that follow `place`; where the next ones begin.
fn send(stream: &mut TcpStream, place: u64, len: usize) -> u64 {
    match stream.write_all(&piece_at(place, len)) {
        Err(why) if why.kind() == ErrorKind::WouldBlock => panic!("the flow is stuck at {place}"),
        other => other.expect("no reset"),
    }
    place + len as u64
}

fn close(mut stream: TcpStream) {
    stream.shutdown(std::net::Shutdown::Write).expect("open");
    assert_eq!(stream.read(&mut [0]).expect("no reset"), 0, "the sink says nothing");
}

fn source() {
    let mut stream = connect();
    let (bytes, mut place): (u64, u64) = (variable("BYTES").parse().expect("a number"), 0);
    // Slowly enough that the flow is seen and moved while it lives.
    while place < bytes {
        place = send(&mut stream, place, (bytes - place).min(1 << 16) as usize);
        std::thread::sleep(Duration::from_millis(1));
    }
    close(stream);
    say("sent");
}

/// Flows that each swap between the algorithms in an order and at times of their own seed. Says how often they swapped, and how many
/// retransmission timeouts there were.
fn swapping_source() {
    let algorithms = variable("ALGORITHMS");
    let names: Vec<String> = algorithms.split(',').map(str::to_owned).collect();
    let flows: u64 = variable("FLOWS").parse().expect("a number");
    let swap = |seed| {
        let names = names.clone();
        std::thread::spawn(move || swapping_flow(&names, &mut Seed::new(seed)))
    };
    let all: Vec<_> = (1..=flows).map(swap).collect();
    let swaps: u32 = all.into_iter().map(|flow| flow.join().expect("it goes on to its end")).sum();
    say(&format!("{swaps} {}", timeouts()));
}

fn swapping_flow(names: &[String], rng: &mut Seed) -> u32 {
    let mut stream = connect();
    let (mut place, mut present) = (0, 0);
    for _ in 0..SWAPS {
        present = (present + 1 + rng.below(names.len() as u64 - 1) as usize) % names.len();
        let name = &names[present];
        set_tcp_congestion(&stream, name).unwrap_or_else(|why| panic!("{name}: {why}"));
        let (begin, time) = (Instant::now(), Duration::from_millis(SWAP_MS / 2 + rng.below(SWAP_MS)));
        while begin.elapsed() < time {
            place = send(&mut stream, place, 1 << 14);
        }
    }
    set_tcp_congestion(&stream, "cubic").expect("each kernel here has it");
    close(stream);
    SWAPS
}

/// The retransmission timeouts of all flows of this namespace so far.
fn timeouts() -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/netstat").expect("each kernel has it");
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (heads, values) = (lines.next().expect("names"), lines.next().expect("numbers"));
    let mut pairs = heads.split_whitespace().zip(values.split_whitespace());
    pairs.find(|(head, _)| *head == "TCPTimeouts").expect("since Linux 2.6").1.parse().expect("a number")
}

fn long_source() {
    let mut stream = connect();
    say("connected");
    let stdin = std::io::stdin();
    let mut place = 0;
    loop {
        place = send(&mut stream, place, 1 << 14);
        std::thread::sleep(Duration::from_millis(1));
        if !is_readable(stdin.as_fd()) {
            continue;
        }
        let mut line = String::new();
        if stdin.lock().read_line(&mut line).expect("readable") == 0 {
            break;
        }
        say(&tcp_congestion(&stream).expect("a TCP socket"));
    }
    close(stream);
    say("stopped");
}
