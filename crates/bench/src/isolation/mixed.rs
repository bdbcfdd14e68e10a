//! Requests and bulk flows of one process at each end: the server's echoes in one thread, and each bulk flow in a thread of its own.
//! The client measures the requests.

use super::flows::Direction;
use super::pings;
use crate::clock;
use crate::sockets::actor::{Actor, Answer};
use crate::sockets::echo;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Bytes of one read or write of a bulk flow.
const PIECE: usize = 64 << 10;
/// How long the bulk flows run before the first request.
const BEFORE: Duration = Duration::from_millis(200);

/// A request to either process: the last `flows` of its connections are bulk flows, the others carry requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// The number of bulk flows.
    pub flows: u32,
    /// Their direction, as seen from the server.
    pub direction: Direction,
    /// What the client sends besides; `None`: this process is the server, and echoes until the client has closed all connections.
    pub pings: Option<pings::Ask>,
}

/// In either process: executes a request. The client's answer is that of the requests. Both answers end with the number of bytes that the bulk
/// flows brought here, and the processor time of this process in nanoseconds, that of ended threads too.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    let before_ns = clock::process_cpu_ns();
    let first = actor.streams.len().checked_sub(ask.flows as usize).context("too few connections")?;
    let sends = (ask.direction == Direction::Out) == ask.pings.is_none();
    let until_ns = ask.pings.map(|pings| pings.end_ns);
    let carry = |stream| {
        thread::spawn(move || if sends { send(stream, until_ns) } else { receive(stream, until_ns) })
    };
    let threads: Vec<JoinHandle<u64>> = actor.streams.drain(first..).map(carry).collect();
    let mut answer = match ask.pings {
        None => echo::obey(actor, echo::Ask::Epoll)?,
        Some(pings) => {
            thread::sleep(BEFORE);
            pings::obey(actor, pings)?
        }
    };
    let mut bytes = 0;
    for thread in threads {
        bytes += thread.join().ok().context("a thread of a bulk flow panicked")?;
    }
    answer.extend([bytes as f64, (clock::process_cpu_ns() - before_ns) as f64]);
    Ok(answer)
}

/// False once the time is over that the client has for its flows; the server has none, and goes on until the client closes them.
fn goes_on(until_ns: Option<u64>) -> bool {
    until_ns.is_none_or(|end_ns| clock::now_ns() < end_ns)
}

/// Sends until the time is over or the peer has closed the connection.
fn send(mut stream: TcpStream, until_ns: Option<u64>) -> u64 {
    let piece = vec![0x5a; PIECE];
    while goes_on(until_ns) && stream.write_all(&piece).is_ok() {}
    0
}

/// Receives until the time is over or the peer has closed the connection. Returns the number of bytes.
fn receive(mut stream: TcpStream, until_ns: Option<u64>) -> u64 {
    let mut piece = vec![0; PIECE];
    let mut bytes = 0;
    while goes_on(until_ns)
        && let Ok(n @ 1..) = stream.read(&mut piece)
    {
        bytes += n as u64;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolation::pings::Latencies;
    use std::net::TcpListener;

    /// The bytes that came at the server and at the client; `None` when no request was answered within `seconds`.
    fn carried(direction: Direction, seconds: u64) -> Option<[f64; 2]> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (mut client, mut server) = (Actor::default(), Actor::default());
        for _ in 0..3 {
            client.streams.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            server.streams.push(listener.accept().unwrap().0);
        }
        let ask = Ask { flows: 2, direction, pings: None };
        let serving = thread::spawn(move || obey(&mut server, ask).unwrap());
        let pings = pings::Ask { bytes: 64, think_us: 0, end_ns: clock::now_ns() + seconds * 1_000_000_000 };
        let mut answer = obey(&mut client, Ask { pings: Some(pings), ..ask }).unwrap();
        let (_, at_client) = (answer.pop().unwrap(), answer.pop().unwrap());
        let heard = serving.join().unwrap();
        let [.., at_server, _] = heard[..] else { panic!("no bytes, no time: {heard:?}") };
        Latencies::new(&answer).is_ok().then_some([at_server, at_client])
    }

    #[test]
    fn both_directions_carry_bytes_beside_requests_and_end() {
        // A busy machine may need more time for the second round trip, the first that counts.
        let in_time = |direction| [1, 10, 60].into_iter().find_map(|seconds| carried(direction, seconds));
        let [server, client] = in_time(Direction::In).expect("requests are answered");
        assert!(server > 0.0 && client == 0.0);
        let [server, client] = in_time(Direction::Out).expect("requests are answered");
        assert!(server == 0.0 && client > 0.0);
    }
}
