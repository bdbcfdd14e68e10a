//! A store of keys and values that speaks RESP2, the protocol of Redis: PING GET SET DEL INCR EXPIRE MGET INFO.
//!
//! ```text
//! towpath up --detach
//! kv 127.0.0.1:6380 &
//! towpath run -- redis-cli -p 6380 set greeting hello
//! towpath run -- redis-benchmark -p 6380 -t get,set -P 16
//! ```
//! One thread, one ring, one round: wait; for each readable connection run all whole requests where they lie, and put the replies into the
//! connection's own ring; the next wait publishes the replies of all connections at once.

use ring::{Error, Event, Handle, Kind, ListenOptions, Options, Ring, Service};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest request, and most arguments of one.
const REQUEST_MOST: usize = 1 << 20;
const ARGUMENTS_MOST: usize = 1024;
/// Replies that wait for room beyond this stop the reading of further requests: the client must read.
const REPLIES_MOST: usize = 1 << 20;

fn main() -> ExitCode {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6380".to_owned());
    let parsed = address.parse().map_err(|_| format!("{address}: no address"));
    match parsed.and_then(|address| serve(address).map_err(|e| e.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("kv: {why}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: SocketAddr) -> Result<(), Error> {
    let service = Service::open(Options::default())?;
    let mut ring = service.ring()?;
    let listener = ring.listen(address, ListenOptions::default(), 0)?;
    eprintln!("kv: listens at {}", ring.local_address(listener)?);
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
    Event { handle, kind, .. }: Event,
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
        let done = run(read.bytes(), store, replies);
        let (n, is_sound) = done.map_or_else(|n| (n, false), |n| (n, true));
        read.consume(n);
        if !is_sound {
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

/// Runs all whole requests at the beginning of `bytes`. Returns how many bytes they take; `Err`: what follows them is no request, and the
/// replies say so.
fn run(bytes: &[u8], store: &mut Store, replies: &mut Vec<u8>) -> Result<usize, usize> {
    let mut at = 0;
    let mut arguments = Vec::with_capacity(8);
    while at < bytes.len() && replies.len() < REPLIES_MOST {
        arguments.clear();
        match parse(&bytes[at..], &mut arguments) {
            Parsed::Whole(n) => {
                at += n;
                store.run(&arguments, replies);
            }
            Parsed::Part => break,
            Parsed::Wrong(why) => {
                error(replies, why);
                return Err(at);
            }
        }
    }
    Ok(at)
}

/// What a parser finds at the beginning of the bytes.
enum Parsed {
    /// A request of so many bytes.
    Whole(usize),
    /// The beginning of one.
    Part,
    /// The bytes are no request of RESP2.
    Wrong(&'static str),
}

/// `*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`, or words of one line.
fn parse<'a>(bytes: &'a [u8], arguments: &mut Vec<&'a [u8]>) -> Parsed {
    if bytes[0] != b'*' {
        let Some(end) = bytes.iter().position(|b| *b == b'\n') else { return part(bytes) };
        arguments.extend(bytes[..end].split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty()));
        return Parsed::Whole(end + 1);
    }
    let Some((count, mut at)) = number(bytes, 1) else { return part(bytes) };
    if count > ARGUMENTS_MOST {
        return Parsed::Wrong("ERR Protocol error: invalid multibulk length");
    }
    for _ in 0..count {
        match bytes.get(at) {
            None => return part(bytes),
            Some(b'$') => {}
            Some(_) => return Parsed::Wrong("ERR Protocol error: expected '$'"),
        }
        let Some((len, from)) = number(bytes, at + 1) else { return part(bytes) };
        if len > REQUEST_MOST {
            return Parsed::Wrong("ERR Protocol error: invalid bulk length");
        }
        let Some(argument) = bytes.get(from..from + len) else { return part(bytes) };
        at = from + len + 2;
        if at > bytes.len() {
            return part(bytes);
        }
        arguments.push(argument);
    }
    Parsed::Whole(at)
}

fn part(bytes: &[u8]) -> Parsed {
    if bytes.len() > REQUEST_MOST { Parsed::Wrong("ERR Protocol error: too big") } else { Parsed::Part }
}

/// The number at `at`, and where its line ends. `None`: the line is not whole. What is no number is larger than every limit.
fn number(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let len = bytes.get(at..)?.iter().position(|b| *b == b'\n')?;
    let digits = bytes[at..at + len].strip_suffix(b"\r").unwrap_or(&bytes[at..at + len]);
    Some((decimal(digits).unwrap_or(usize::MAX), at + len + 1))
}

fn decimal<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The keys and their values.
struct Store {
    keys: HashMap<Box<[u8]>, Value>,
    /// The time of this round.
    now: Instant,
}

struct Value {
    bytes: Vec<u8>,
    end: Option<Instant>,
}

const NO_NUMBER: &str = "ERR value is not an integer or out of range";

impl Store {
    fn run(&mut self, arguments: &[&[u8]], replies: &mut Vec<u8>) {
        let [name, rest @ ..] = arguments else { return };
        let name = name.to_ascii_uppercase();
        match (&name[..], rest) {
            (b"PING", []) => replies.extend(b"+PONG\r\n"),
            (b"PING", [text]) => bulk(replies, Some(text)),
            (b"GET", [key]) => bulk(replies, self.find(key)),
            (b"MGET", [_, ..]) => {
                replies.extend(format!("*{}\r\n", rest.len()).bytes());
                rest.iter().for_each(|key| bulk(replies, self.find(key)));
            }
            (b"SET", [key, value]) => self.set(key, value, None, replies),
            (b"SET", [key, value, unit, time]) => self.set_for(key, value, unit, time, replies),
            (b"DEL", [_, ..]) => {
                let count = rest.iter().filter(|key| self.find(key).is_some()).count();
                rest.iter().for_each(|key| drop(self.keys.remove(*key)));
                integer(replies, count as i64);
            }
            (b"INCR", [key]) => self.increment(key, replies),
            (b"EXPIRE", [key, seconds]) => self.expire(key, seconds, replies),
            (b"INFO", _) => {
                let text =
                    format!("# Server\r\nserver:kv on towpath\r\n# Keyspace\r\nkeys:{}\r\n", self.keys.len());
                bulk(replies, Some(text.as_bytes()));
            }
            (b"PING" | b"GET" | b"MGET" | b"SET" | b"DEL" | b"INCR" | b"EXPIRE", _) => {
                error(replies, "ERR wrong number of arguments or syntax error");
            }
            _ => error(replies, "ERR unknown command"),
        }
    }

    /// The value of a key that has not expired.
    fn find(&self, key: &[u8]) -> Option<&[u8]> {
        let value = self.keys.get(key)?;
        value.end.is_none_or(|end| end > self.now).then_some(&value.bytes)
    }

    fn set(&mut self, key: &[u8], bytes: &[u8], end: Option<Instant>, replies: &mut Vec<u8>) {
        match self.keys.get_mut(key) {
            Some(value) => {
                value.bytes.clear();
                value.bytes.extend_from_slice(bytes);
                value.end = end;
            }
            None => drop(self.keys.insert(key.into(), Value { bytes: bytes.to_vec(), end })),
        }
        replies.extend(b"+OK\r\n");
    }

    fn set_for(&mut self, key: &[u8], value: &[u8], unit: &[u8], time: &[u8], replies: &mut Vec<u8>) {
        let time: Option<u32> = decimal(time).filter(|time| *time > 0);
        let length = time.and_then(|time| match &unit.to_ascii_uppercase()[..] {
            b"EX" => Some(Duration::from_secs(time.into())),
            b"PX" => Some(Duration::from_millis(time.into())),
            _ => None,
        });
        match length {
            Some(length) => self.set(key, value, Some(self.now + length), replies),
            None => error(replies, "ERR syntax error"),
        }
    }

    fn increment(&mut self, key: &[u8], replies: &mut Vec<u8>) {
        let end = self.find(key).and_then(|_| self.keys.get(key)?.end);
        let before: Option<i64> = self.find(key).map_or(Some(0), decimal);
        let Some(number) = before.and_then(|number| number.checked_add(1)) else {
            return error(replies, NO_NUMBER);
        };
        self.keys.insert(key.into(), Value { bytes: number.to_string().into_bytes(), end });
        integer(replies, number);
    }

    fn expire(&mut self, key: &[u8], seconds: &[u8], replies: &mut Vec<u8>) {
        let Some(seconds) = decimal::<u32>(seconds) else { return error(replies, NO_NUMBER) };
        let is_there = self.find(key).is_some();
        if let Some(value) = self.keys.get_mut(key).filter(|_| is_there) {
            value.end = Some(self.now + Duration::from_secs(seconds.into()));
        }
        integer(replies, i64::from(is_there));
    }
}

fn bulk(replies: &mut Vec<u8>, value: Option<&[u8]>) {
    let Some(bytes) = value else { return replies.extend(b"$-1\r\n") };
    replies.push(b'$');
    digits(replies, bytes.len() as u64);
    replies.extend(b"\r\n");
    replies.extend_from_slice(bytes);
    replies.extend(b"\r\n");
}

/// A number without an allocation.
fn digits(replies: &mut Vec<u8>, mut number: u64) {
    let mut text = [0; 20];
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return replies.extend_from_slice(&text[at..]);
        }
    }
}

fn integer(replies: &mut Vec<u8>, number: i64) {
    replies.extend(format!(":{number}\r\n").bytes());
}

fn error(replies: &mut Vec<u8>, why: &str) {
    replies.extend(format!("-{why}\r\n").bytes());
}
