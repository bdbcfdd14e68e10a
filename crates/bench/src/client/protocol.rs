//! Requests and the lengths of their replies, as bytes: for a key-value store with a small protocol of our own or memcached's, and for an
//! echo server. All keys have one length and all values another, so a reply's length is known before it arrives.

use serde::{Deserialize, Serialize};

/// First byte of a GET request of our own protocol.
pub const GET: u8 = b'g';
/// First byte of a SET request of our own protocol; a key and a value follow.
pub const SET: u8 = b's';
/// First byte of a successful reply; the value follows if the request was a GET.
pub const FOUND: u8 = b'+';
/// The whole reply if the store does not have the key.
pub const MISSING: u8 = b'-';

/// Every byte of a value.
const VALUE: u8 = b'v';

/// Hexadecimal digits at the end of a key that distinguish keys.
const DIGITS: usize = 8;

/// Bytes of a message that its receiver looks at, and answers with ([`Protocol::Header`]).
pub const HEAD: usize = 64;
/// A request of HTTP, of as many bytes as StackMap's client sends.
const HTTP: &[u8; 96] = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: towpath-bench\r\nAccept: */*\r\nPad: vvvvvvvvv\r\n\r\n";

/// The format of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Protocol {
    Own,
    Memcached,
    /// The request is a value; the reply is the same value.
    Echo,
    /// A GET request of HTTP; the reply's body is as long as a value.
    Http,
    /// The request is a value; the reply is its first [`HEAD`] bytes.
    Header,
}

/// Number and sizes of the keys and values in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shape {
    pub keys: u32,
    pub key_bytes: u32,
    pub value_bytes: u32,
}

/// A GET or SET request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub key: u32,
    pub is_set: bool,
}

impl Shape {
    /// Writes the key with that number.
    pub fn write_key(&self, number: u32, into: &mut Vec<u8>) {
        let (bytes, end) = (self.key_bytes as usize, into.len() + self.key_bytes as usize);
        into.resize(end, b'k');
        for (i, place) in into[end - bytes.min(DIGITS)..].iter_mut().rev().enumerate() {
            *place = b"0123456789abcdef"[(number >> (4 * i)) as usize & 15];
        }
    }

    /// Writes a value (all values are the same).
    pub fn write_value(&self, into: &mut Vec<u8>) {
        into.resize(into.len() + self.value_bytes as usize, VALUE);
    }
}

impl Protocol {
    /// Appends a request to `into`.
    pub fn write(self, shape: &Shape, request: Request, into: &mut Vec<u8>) {
        match (self, request.is_set) {
            (Self::Own, is_set) => {
                into.push(if is_set { SET } else { GET });
                shape.write_key(request.key, into);
                if is_set {
                    shape.write_value(into);
                }
            }
            (Self::Echo | Self::Header, _) => shape.write_value(into),
            (Self::Http, _) => into.extend_from_slice(HTTP),
            (Self::Memcached, false) => {
                into.extend_from_slice(b"get ");
                shape.write_key(request.key, into);
                into.extend_from_slice(b"\r\n");
            }
            (Self::Memcached, true) => {
                into.extend_from_slice(b"set ");
                shape.write_key(request.key, into);
                into.extend_from_slice(format!(" 0 0 {}\r\n", shape.value_bytes).as_bytes());
                shape.write_value(into);
                into.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Bytes of the reply to a request for a key that is in the store.
    pub fn reply_bytes(self, shape: &Shape, is_set: bool) -> u32 {
        let (key, value) = (shape.key_bytes, shape.value_bytes);
        match (self, is_set) {
            (Self::Own, true) => 1,
            (Self::Own, false) => 1 + value,
            (Self::Echo, _) => value,
            (Self::Header, _) => HEAD as u32,
            (Self::Http, _) => {
                let words =
                    "HTTP/1.1 200 OK\r\nContent-Length: \r\nConnection: keep-alive\r\n\r\n".len() as u32;
                words + value.checked_ilog10().unwrap_or(0) + 1 + value
            }
            (Self::Memcached, true) => "STORED\r\n".len() as u32,
            (Self::Memcached, false) => {
                let words = "VALUE  0 \r\n\r\nEND\r\n".len() as u32;
                words + key + value + value.checked_ilog10().unwrap_or(0) + 1
            }
        }
    }

    /// The first byte of a successful reply.
    pub fn good(self, is_set: bool) -> u8 {
        match (self, is_set) {
            (Self::Own, _) => FOUND,
            (Self::Echo | Self::Header, _) => VALUE,
            (Self::Http, _) => b'H',
            (Self::Memcached, true) => b'S',
            (Self::Memcached, false) => b'V',
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { keys: 100, key_bytes: 10, value_bytes: 12 };

    fn written(protocol: Protocol, shape: &Shape, key: u32, is_set: bool) -> String {
        let mut bytes = Vec::new();
        protocol.write(shape, Request { key, is_set }, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn requests_are_what_the_servers_read() {
        assert_eq!(written(Protocol::Own, &SHAPE, 0x1f, false), "gkk0000001f");
        assert_eq!(written(Protocol::Own, &SHAPE, 1, true), "skk00000001vvvvvvvvvvvv");
        assert_eq!(written(Protocol::Memcached, &SHAPE, 2, false), "get kk00000002\r\n");
        assert_eq!(
            written(Protocol::Memcached, &SHAPE, 2, true),
            "set kk00000002 0 0 12\r\nvvvvvvvvvvvv\r\n"
        );
        let short = Shape { key_bytes: 4, ..SHAPE };
        assert_eq!(written(Protocol::Own, &short, 0x12, false), "g0012");
    }

    #[test]
    fn replies_are_as_long_as_memcached_makes_them() {
        let reply = "VALUE kk00000002 0 12\r\nvvvvvvvvvvvv\r\nEND\r\n";
        assert_eq!(Protocol::Memcached.reply_bytes(&SHAPE, false) as usize, reply.len());
        assert_eq!(Protocol::Memcached.reply_bytes(&SHAPE, true), 8);
    }
}
