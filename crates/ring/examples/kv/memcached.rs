//! memcached's text protocol: requests of one line, `set` with a block of bytes behind it, and the replies to them.

use crate::store::{Store, decimal, digits};
use crate::{REPLIES_MOST, REQUEST_MOST};
use std::time::Duration;

/// Longest line, and longest key.
const LINE_MOST: usize = 8 << 10;
const KEY_MOST: usize = 250;
/// Longer times are moments of the calendar, which this server does not keep.
const SECONDS_MOST: u32 = 60 * 60 * 24 * 30;

/// What one request does to the connection.
enum Done {
    /// The request took so many bytes.
    Whole(usize),
    /// It is not whole yet.
    Part,
    /// The connection ends, at the client's wish or because the bytes make no sense.
    End,
}

/// Runs all whole requests at the beginning of `bytes`. Returns how many bytes they take, and whether the connection goes on.
pub fn run(bytes: &[u8], store: &mut Store, replies: &mut Vec<u8>) -> (usize, bool) {
    let mut at = 0;
    while at < bytes.len() && replies.len() < REPLIES_MOST {
        match request(&bytes[at..], store, replies) {
            Done::Whole(n) => at += n,
            Done::Part => break,
            Done::End => return (at, false),
        }
    }
    (at, true)
}

fn request(bytes: &[u8], store: &mut Store, replies: &mut Vec<u8>) -> Done {
    let Some(end) = bytes.iter().take(LINE_MOST).position(|b| *b == b'\n') else {
        return if bytes.len() < LINE_MOST { Done::Part } else { wrong(replies, "line too long") };
    };
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    let words: Vec<_> = line.split(|b| *b == b' ').filter(|word| !word.is_empty()).collect();
    let after = end + 1;
    let is_quiet = words.last() == Some(&&b"noreply"[..]);
    let words = &words[..words.len() - usize::from(is_quiet)];
    if words.iter().skip(1).any(|word| word.len() > KEY_MOST) {
        replies.extend(b"CLIENT_ERROR key too long\r\n");
        return Done::Whole(after);
    }
    let say =
        |replies: &mut Vec<u8>, text: &[u8]| replies.extend_from_slice(if is_quiet { b"" } else { text });
    match words {
        [b"get" | b"gets", keys @ ..] if !keys.is_empty() => {
            let has_unique = words[0] == b"gets";
            keys.iter().for_each(|key| value(store, key, has_unique, replies));
            replies.extend(b"END\r\n");
        }
        [b"set", key, flags, time, len] => {
            let (Some(flags), Some(life), Some(len)) = (decimal(flags), seconds(time), decimal::<usize>(len))
            else {
                return wrong(replies, "bad command line format");
            };
            if len > REQUEST_MOST {
                return wrong(replies, "object too large for cache");
            }
            let Some(block) = bytes.get(after..after + len + 2) else { return Done::Part };
            let Some(block) = block.strip_suffix(b"\r\n") else { return wrong(replies, "bad data chunk") };
            store.set(key, block, flags, length(life));
            say(replies, b"STORED\r\n");
            return Done::Whole(after + len + 2);
        }
        [b"delete", key] => {
            let was_there = store.remove(key);
            say(replies, if was_there { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
        }
        [b"incr", key, more] => match (store.find(key).is_some(), decimal(more)) {
            (false, _) => say(replies, b"NOT_FOUND\r\n"),
            (true, more) => match more.map(|more| store.add(key, more)) {
                Some(Ok(number)) => say(replies, format!("{number}\r\n").as_bytes()),
                _ => say(replies, b"CLIENT_ERROR invalid numeric delta argument\r\n"),
            },
        },
        [b"touch", key, time] => {
            let is_there = seconds(time).is_some_and(|life| store.expire(key, length(life)));
            say(replies, if is_there { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" });
        }
        [b"version"] => replies.extend(b"VERSION kv on towpath\r\n"),
        [b"quit"] => return Done::End,
        _ => replies.extend(b"ERROR\r\n"),
    }
    Done::Whole(after)
}

/// What follows cannot be told from a block of bytes: says why, and ends the connection.
fn wrong(replies: &mut Vec<u8>, why: &str) -> Done {
    replies.extend(format!("CLIENT_ERROR {why}\r\n").bytes());
    Done::End
}

/// A life in seconds; 0: for ever. `None`: a time that this server does not keep.
fn seconds(word: &[u8]) -> Option<u32> {
    decimal(word).filter(|seconds| *seconds <= SECONDS_MOST)
}

fn length(seconds: u32) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// `VALUE key flags bytes`, with a number that changes when the value does for `gets`.
fn value(store: &Store, key: &[u8], has_unique: bool, replies: &mut Vec<u8>) {
    let Some(value) = store.find(key) else { return };
    replies.extend(b"VALUE ");
    replies.extend_from_slice(key);
    for number in [u64::from(value.flags), value.bytes.len() as u64] {
        replies.push(b' ');
        digits(replies, number);
    }
    if has_unique {
        replies.push(b' ');
        digits(replies, hash(&value.bytes));
    }
    replies.extend(b"\r\n");
    replies.extend_from_slice(&value.bytes);
    replies.extend(b"\r\n");
}

fn hash(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
