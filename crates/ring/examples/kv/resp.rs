//! RESP2, the protocol of Redis: requests found in bytes, and the replies to them.

use crate::store::{Store, decimal, digits};
use crate::{REPLIES_MOST, REQUEST_MOST};
use std::time::Duration;

/// Most arguments of one request.
const ARGUMENTS_MOST: usize = 1024;
const NO_NUMBER: &str = "ERR value is not an integer or out of range";

/// Runs all whole requests at the beginning of `bytes`. Returns how many bytes they take, and whether the connection goes on: not if what
/// follows them is no request; the replies say so.
pub fn run(bytes: &[u8], store: &mut Store, replies: &mut Vec<u8>) -> (usize, bool) {
    let mut at = 0;
    let mut arguments = Vec::with_capacity(8);
    while at < bytes.len() && replies.len() < REPLIES_MOST {
        arguments.clear();
        match parse(&bytes[at..], &mut arguments) {
            Parsed::Whole(n) => {
                at += n;
                answer(store, &arguments, replies);
            }
            Parsed::Part => break,
            Parsed::Wrong(why) => {
                error(replies, why);
                return (at, false);
            }
        }
    }
    (at, true)
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

fn answer(store: &mut Store, arguments: &[&[u8]], replies: &mut Vec<u8>) {
    let [name, rest @ ..] = arguments else { return };
    match (&name.to_ascii_uppercase()[..], rest) {
        (b"PING", []) => replies.extend(b"+PONG\r\n"),
        (b"PING", [text]) => bulk(replies, Some(text)),
        (b"GET", [key]) => value(store, key, replies),
        (b"MGET", [_, ..]) => {
            replies.extend(format!("*{}\r\n", rest.len()).bytes());
            rest.iter().for_each(|key| value(store, key, replies));
        }
        (b"SET", [key, bytes]) => {
            store.set(key, bytes, 0, None);
            replies.extend(b"+OK\r\n");
        }
        (b"SET", [key, bytes, unit, time]) => match length(unit, time) {
            Some(length) => {
                store.set(key, bytes, 0, Some(length));
                replies.extend(b"+OK\r\n");
            }
            None => error(replies, "ERR syntax error"),
        },
        (b"DEL", [_, ..]) => integer(replies, rest.iter().filter(|key| store.remove(key)).count() as i64),
        (b"INCR", [key]) => match store.add(key, 1) {
            Ok(number) => integer(replies, number),
            Err(_) => error(replies, NO_NUMBER),
        },
        (b"EXPIRE", [key, seconds]) => match decimal::<u32>(seconds) {
            Some(seconds) => {
                let length = Duration::from_secs(seconds.into());
                integer(replies, i64::from(store.expire(key, Some(length))));
            }
            None => error(replies, NO_NUMBER),
        },
        (b"INFO", _) => {
            let text =
                format!("# Server\r\nserver:kv on towpath\r\n# Keyspace\r\nkeys:{}\r\n", store.keys.len());
            bulk(replies, Some(text.as_bytes()));
        }
        (b"PING" | b"GET" | b"MGET" | b"SET" | b"DEL" | b"INCR" | b"EXPIRE", _) => {
            error(replies, "ERR wrong number of arguments or syntax error");
        }
        _ => error(replies, "ERR unknown command"),
    }
}

/// The life of a key: `EX 5` or `PX 5000`.
fn length(unit: &[u8], time: &[u8]) -> Option<Duration> {
    let time: u32 = decimal(time).filter(|time| *time > 0)?;
    match &unit.to_ascii_uppercase()[..] {
        b"EX" => Some(Duration::from_secs(time.into())),
        b"PX" => Some(Duration::from_millis(time.into())),
        _ => None,
    }
}

fn value(store: &Store, key: &[u8], replies: &mut Vec<u8>) {
    bulk(replies, store.find(key).map(|value| &value.bytes[..]));
}

fn bulk(replies: &mut Vec<u8>, value: Option<&[u8]>) {
    let Some(bytes) = value else { return replies.extend(b"$-1\r\n") };
    replies.push(b'$');
    digits(replies, bytes.len() as u64);
    replies.extend(b"\r\n");
    replies.extend_from_slice(bytes);
    replies.extend(b"\r\n");
}

fn integer(replies: &mut Vec<u8>, number: i64) {
    replies.extend(format!(":{number}\r\n").bytes());
}

fn error(replies: &mut Vec<u8>, why: &str) {
    replies.extend(format!("-{why}\r\n").bytes());
}
