//! A store of keys and values that speaks RESP2, the protocol of Redis: PING GET SET DEL INCR EXPIRE MGET INFO. At a second address it speaks
//! memcached's text protocol: get gets set delete incr touch version quit.
//!
//! ```text
//! towpath up --detach
//! kv 127.0.0.1:6380 127.0.0.1:11211 &
//! towpath run -- redis-cli -p 6380 set greeting hello
//! towpath run -- redis-benchmark -p 6380 -t get,set -P 16
//! printf 'get greeting\r\nquit\r\n' | towpath run -- nc 127.0.0.1 11211
//! ```
//! One thread, one ring, one round: wait; for each readable connection run all whole requests where they lie, and put the replies into the
//! connection's own ring; the next wait publishes the replies of all connections at once.

mod memcached;
mod resp;
mod store;

use ring::{Error, Event, Handle, Kind, ListenOptions, Options, Ring, Service};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Instant;
use store::Store;

/// The tokens of the listeners, and so of their connections.
const RESP: u64 = 0;
const MEMCACHED: u64 = 1;

/// Most bytes of one request.
const REQUEST_MOST: usize = 1 << 20;
/// Replies that wait for room beyond this stop the reading of further requests: the client must read.
const REPLIES_MOST: usize = 1 << 20;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let resp = arguments.next().unwrap_or_else(|| "127.0.0.1:6380".to_owned());
    let all = [(resp, RESP)].into_iter().chain(arguments.take(1).map(|address| (address, MEMCACHED)));
    let parse = |(address, protocol): (String, u64)| match address.parse() {
        Ok(parsed) => Ok((parsed, protocol)),
        Err(_) => Err(format!("{address}: no address")),
    };
    let parsed: Result<Vec<_>, _> = all.map(parse).collect();
    match parsed.and_then(|addresses| serve(&addresses).map_err(|e| e.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("kv: {why}");
            ExitCode::FAILURE
        }
    }
}

fn serve(addresses: &[(SocketAddr, u64)]) -> Result<(), Error> {
    let service = Service::open(Options::default())?;
    let mut ring = service.ring()?;
    for (address, protocol) in addresses {
        let listener = ring.listen(*address, ListenOptions::default(), *protocol)?;
        eprintln!("kv: listens at {}", ring.local_address(listener)?);
    }
    let mut store = Store { keys: HashMap::new(), now: Instant::now() };
    // Replies for which there was no room, of the few clients that do not read.
    let mut waiting = HashMap::new();
    let (mut events, mut replies) = (Vec::new(), Vec::new());
    loop {
        ring.wait(None, &mut events)?;
        store.now = Instant::now();
        for event in &events {
            replies.clear();
            if turn(&mut ring, &mut store, &mut waiting, &mut replies, *event).is_err() {
                waiting.remove(&event.handle);
                let _ = ring.conn(event.handle).map(|conn| conn.reset());
            }
        }
    }
}

type Waiting = HashMap<Handle, Vec<u8>>;

fn turn(
    ring: &mut Ring,
    store: &mut Store,
    waiting: &mut Waiting,
    replies: &mut Vec<u8>,
    Event { handle, kind, token: protocol }: Event,
) -> Result<(), Error> {
    match kind {
        Kind::Readable | Kind::Writable | Kind::Finished => {}
        Kind::Closed(_) => {
            waiting.remove(&handle);
            ring.conn(handle)?.close();
            return Ok(());
        }
        _ => return Ok(()),
    }
    if let Some(before) = waiting.remove(&handle) {
        replies.extend_from_slice(&before);
    }
    if replies.len() < REPLIES_MOST {
        let mut read = ring.conn(handle)?.read()?;
        // Another application may change these bytes while they are parsed: `bytes` shows a copy then, which does not change.
        let run = if protocol == MEMCACHED { memcached::run } else { resp::run };
        let (n, goes_on) = run(read.bytes(), store, replies);
        // Bytes left unread would make a reset of the end, and take the replies with it.
        let n = if goes_on { n } else { read.len() };
        read.consume(n);
        if !goes_on {
            ring.conn(handle)?.write(replies)?;
            ring.conn(handle)?.close();
            return Ok(());
        }
    }
    let sent = if replies.is_empty() { 0 } else { ring.conn(handle)?.write(replies)? };
    if sent < replies.len() {
        waiting.insert(handle, replies[sent..].to_vec());
    } else if ring.conn(handle)?.is_finished() {
        ring.conn(handle)?.close();
    }
    Ok(())
}
