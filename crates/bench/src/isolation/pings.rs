//! The client of `isolation`: on each connection one request at a time, with a pause after each reply. It runs on the kernel, and does not know
//! what else the link carries.

use crate::client;
use crate::clock;
use crate::sockets::actor::{Actor, Answer};
use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

/// The quantiles of latency in an answer.
const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];

/// A request to the process of the client: send requests on all its connections, then close them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// The length of a request and of its reply, which has the same bytes; at least 8.
    pub bytes: u32,
    /// The pause between a reply and the next request, in microseconds.
    pub think_us: u32,
    /// The time after which no request is sent, of [`clock::now_ns`].
    pub end_ns: u64,
}

/// Round trips of one run, from the first byte sent to the last byte received.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Latencies {
    /// The number of round trips.
    pub requests: f64,
    /// The median in microseconds.
    pub p50_us: f64,
    /// The 99th percentile in microseconds.
    pub p99_us: f64,
    /// The 99.9th percentile in microseconds.
    pub p999_us: f64,
}

impl Latencies {
    /// Reads the answer of [`obey`].
    ///
    /// # Errors
    /// When the answer has not four numbers, or no request was answered.
    pub fn new(answer: &[f64]) -> anyhow::Result<Self> {
        let &[requests, p50_ns, p99_ns, p999_ns] = answer else { bail!("no answer of the client") };
        if requests == 0.0 {
            bail!("no request was answered");
        }
        Ok(Self { requests, p50_us: p50_ns / 1e3, p99_us: p99_ns / 1e3, p999_us: p999_ns / 1e3 })
    }
}

/// In the client's process: executes a request, with one thread for each connection. The answer: the number of round trips, then
/// [`QUANTILES`] of them in nanoseconds.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    let streams = std::mem::take(&mut actor.streams);
    let threads: Vec<_> =
        streams.into_iter().map(|stream| thread::spawn(move || converse(stream, ask))).collect();
    let mut all = client::histogram()?;
    for thread in threads {
        let one = thread.join().ok().context("a thread of the client panicked")??;
        all.add(one)?;
    }
    let quantiles = QUANTILES.iter().map(|share| all.value_at_quantile(*share));
    Ok([all.len()].into_iter().chain(quantiles).map(|number| number as f64).collect())
}

/// Sends requests on one connection. The first is not counted: it includes the first use of the connection.
fn converse(mut stream: TcpStream, ask: Ask) -> anyhow::Result<Histogram<u64>> {
    stream.set_nodelay(true)?;
    let think = Duration::from_micros(ask.think_us.into());
    let mut request = vec![0x5a; ask.bytes as usize];
    let mut reply = request.clone();
    let mut latencies = client::histogram()?;
    let mut number = 0_u64;
    while number == 0 || clock::now_ns() < ask.end_ns {
        request[..8].copy_from_slice(&number.to_le_bytes());
        let sent_ns = clock::now_ns();
        stream.write_all(&request).context("sending a request")?;
        stream.read_exact(&mut reply).context("receiving a reply")?;
        let took_ns = clock::now_ns() - sent_ns;
        if request != reply {
            bail!("the reply to request {number} has other bytes");
        }
        if number > 0 {
            latencies.saturating_record(took_ns);
        }
        number += 1;
        thread::sleep(think);
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// The client's answer for one connection to a server that calls `change` on each request before it sends it back.
    fn answered_by(change: fn(&mut [u8]), milliseconds: u64) -> anyhow::Result<Latencies> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let mut actor = Actor::default();
        actor.streams.push(TcpStream::connect(listener.local_addr()?)?);
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection waits");
            let mut bytes = [0; 64];
            while stream.read_exact(&mut bytes).is_ok() {
                change(&mut bytes);
                stream.write_all(&bytes).expect("the client waits for its reply");
            }
        });
        let answer = obey(
            &mut actor,
            Ask { bytes: 64, think_us: 0, end_ns: clock::now_ns() + milliseconds * 1_000_000 },
        );
        server.join().expect("the server has ended");
        Latencies::new(&answer?)
    }

    #[test]
    fn round_trips_are_counted_and_their_quantiles_are_in_order() {
        // A busy machine may need more time for the second round trip, the first that counts.
        let found =
            [50, 500, 5_000, 50_000].into_iter().find_map(|limit| answered_by(|_| {}, limit).ok()).unwrap();
        assert!(found.requests >= 1.0 && found.p50_us > 0.0);
        assert!(found.p50_us <= found.p99_us && found.p99_us <= found.p999_us);
    }

    #[test]
    fn a_reply_with_other_bytes_is_an_error() {
        let error = answered_by(|bytes| bytes[63] ^= 1, 50).unwrap_err();
        assert!(error.to_string().contains("request 0 has other bytes"), "{error}");
    }

    #[test]
    fn no_round_trip_is_no_result() {
        assert!(Latencies::new(&[0.0, 0.0, 0.0, 0.0]).is_err());
        assert!(Latencies::new(&[1.0, 2.0]).is_err());
    }
}
