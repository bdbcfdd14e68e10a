//! Serves files over HTTP/1.1 (RFC 9112): GET and HEAD, connections that stay, pipelined requests, errors 400 404 413 431 501 505, and an
//! end for clients that are slow or idle.
//!
//! ```text
//! towpath up --detach
//! http 127.0.0.1:8080 /usr/share/doc &
//! towpath run -- curl -i http://127.0.0.1:8080/ok
//! ```
//! `/ok` is a body of two bytes, everything else a file below the folder.

use ring::{Error, Event, Handle, Kind, ListenOptions, Options, Ring, Service};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest head of a request, and longest body that is skipped, in bytes.
const HEAD_MOST: usize = 8 << 10;
const BODY_MOST: usize = 1 << 20;
/// Replies that wait for room beyond this stop the reading of further requests.
const REPLIES_MOST: usize = 1 << 20;
/// A request must be whole, a reply read, and an idle connection used again within this time.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let folder = PathBuf::from(arguments.next().unwrap_or_else(|| ".".to_owned()));
    let patience = arguments.next().and_then(|ms| ms.parse().ok()).map_or(PATIENCE, Duration::from_millis);
    let parsed = address.parse().map_err(|_| format!("{address}: no address"));
    match parsed.and_then(|address| serve(address, folder, patience).map_err(|e| e.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("http: {why}");
            ExitCode::FAILURE
        }
    }
}

/// What is kept of one connection.
struct Client {
    /// Replies for which there was no room.
    waiting: Vec<u8>,
    /// The client has made progress then.
    since: Instant,
    /// No request is served after this.
    is_last: bool,
}

struct Server {
    folder: PathBuf,
    patience: Duration,
    clients: HashMap<Handle, Client>,
}

fn serve(address: SocketAddr, folder: PathBuf, patience: Duration) -> Result<(), Error> {
    let service = Service::open(Options::default())?;
    let mut ring = service.ring()?;
    let listener = ring.listen(address, ListenOptions::default(), 0)?;
    eprintln!("http: listens at {}", ring.local_address(listener)?);
    let mut server = Server { folder, patience, clients: HashMap::new() };
    let mut events = Vec::new();
    loop {
        ring.wait(None, &mut events)?;
        for event in &events {
            // The token of a timer is the connection's handle.
            let handle = match event.kind {
                Kind::Timer => Handle::from_bits(event.token),
                _ => event.handle,
            };
            if !matches!(server.turn(&mut ring, handle, *event), Ok(true)) {
                server.clients.remove(&handle);
                let _ = end(&mut ring, handle);
                // A connection that is closed already is gone.
                let _ = ring.conn(handle).map(|conn| conn.close());
            }
        }
    }
}

impl Server {
    /// Deals with an event of a connection. False: the connection ends.
    fn turn(&mut self, ring: &mut Ring, handle: Handle, event: Event) -> Result<bool, Error> {
        match event.kind {
            Kind::Accepted { .. } => {
                let since = Instant::now();
                self.clients.insert(handle, Client { waiting: Vec::new(), since, is_last: false });
                ring.timer(since + self.patience, handle.to_bits());
                Ok(true)
            }
            Kind::Readable | Kind::Writable | Kind::Finished => self.serve(ring, handle),
            Kind::Timer => Ok(self.look(ring, handle)),
            _ => Ok(false),
        }
    }

    /// A timer is due: looks whether the client was too slow.
    fn look(&self, ring: &mut Ring, handle: Handle) -> bool {
        // The connection has ended before its timer.
        let Some(client) = self.clients.get(&handle) else { return true };
        let end = client.since + self.patience;
        let is_in_time = end > Instant::now();
        if is_in_time {
            ring.timer(end, handle.to_bits());
        }
        is_in_time
    }

    fn serve(&mut self, ring: &mut Ring, handle: Handle) -> Result<bool, Error> {
        let Some(client) = self.clients.get_mut(&handle) else { return Ok(false) };
        let mut replies = std::mem::take(&mut client.waiting);
        if !client.is_last && replies.len() < REPLIES_MOST {
            let mut read = ring.conn(handle)?.read()?;
            // Another application may change these bytes while they are parsed: `bytes` shows a copy then, which does not change.
            let n = run(read.bytes(), &self.folder, client, &mut replies);
            read.consume(n);
            if n > 0 {
                client.since = Instant::now();
            }
        }
        let sent = if replies.is_empty() { 0 } else { ring.conn(handle)?.write(&replies)? };
        if sent > 0 {
            client.since = Instant::now();
        }
        replies.drain(..sent);
        client.waiting = replies;
        if !client.waiting.is_empty() {
            return Ok(true);
        }
        if client.is_last {
            end(ring, handle)?;
        }
        Ok(!ring.conn(handle)?.is_finished())
    }
}

/// Ends this side's stream, and drops what still comes. RFC 9112, 9.6: a server that closes at once risks a reset, which may destroy replies
/// that the client has not read.
fn end(ring: &mut Ring, handle: Handle) -> Result<(), Error> {
    let read = ring.conn(handle)?.read()?;
    let n = read.len();
    read.consume(n);
    ring.conn(handle)?.finish()
}

/// Serves all whole requests at the beginning of `bytes`; returns how many bytes they take.
fn run(bytes: &[u8], folder: &Path, client: &mut Client, replies: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while at < bytes.len() && replies.len() < REPLIES_MOST && !client.is_last {
        match parse(&bytes[at..]) {
            Parsed::Whole(request, n) => {
                at += n;
                client.is_last = request.closes;
                answer(&request, folder, replies);
            }
            Parsed::Part => break,
            Parsed::Wrong(status) => {
                client.is_last = true;
                reply(replies, status, status.as_bytes(), false, true);
                // What follows cannot be told apart from requests.
                at = bytes.len();
            }
        }
    }
    at
}

struct Request<'a> {
    target: &'a str,
    is_head: bool,
    closes: bool,
}

/// What lies at the beginning of the bytes.
enum Parsed<'a> {
    /// A request, and how many bytes it takes.
    Whole(Request<'a>, usize),
    /// The beginning of one.
    Part,
    /// No request that is served: the status.
    Wrong(&'static str),
}

fn parse(bytes: &[u8]) -> Parsed<'_> {
    let Some(len) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return match bytes.len() {
            HEAD_MOST.. => Parsed::Wrong("431 Request Header Fields Too Large"),
            _ => Parsed::Part,
        };
    };
    if len >= HEAD_MOST {
        return Parsed::Wrong("431 Request Header Fields Too Large");
    }
    let Ok(head) = std::str::from_utf8(&bytes[..len]) else { return Parsed::Wrong("400 Bad Request") };
    match parse_head(head) {
        Err(status) => Parsed::Wrong(status),
        Ok((_, body)) if body > BODY_MOST => Parsed::Wrong("413 Content Too Large"),
        // The body comes with the head: it is skipped.
        Ok((_, body)) if bytes.len() < len + 4 + body => Parsed::Part,
        Ok((request, body)) => Parsed::Whole(request, len + 4 + body),
    }
}

/// The request of a head, and the length of its body.
fn parse_head(head: &str) -> Result<(Request<'_>, usize), &'static str> {
    const BAD: &str = "400 Bad Request";
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(BAD);
    };
    let is_old = match version {
        "HTTP/1.1" => false,
        "HTTP/1.0" => true,
        version if version.starts_with("HTTP/") => return Err("505 HTTP Version Not Supported"),
        _ => return Err(BAD),
    };
    let (mut hosts, mut length, mut closes) = (0, None, is_old);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(BAD)?;
        let value = value.trim_matches([' ', '\t']);
        if name.is_empty() || name.contains([' ', '\t']) {
            // RFC 9112, 5.1: "A server MUST reject ... any received request message that contains whitespace between a header field name and
            // colon".
            return Err(BAD);
        }
        match name.to_ascii_lowercase().as_str() {
            "host" => hosts += 1,
            "content-length" => {
                let digits = value.bytes().all(|digit| digit.is_ascii_digit());
                let new = value.parse().ok().filter(|_| digits);
                // A number beyond every limit is no number here.
                let new: usize =
                    new.ok_or(if digits && !value.is_empty() { "413 Content Too Large" } else { BAD })?;
                if length.replace(new).is_some_and(|before| before != new) {
                    return Err(BAD);
                }
            }
            "transfer-encoding" => return Err("501 Not Implemented"),
            "connection" => {
                closes |= value.eq_ignore_ascii_case("close");
                closes &= !value.eq_ignore_ascii_case("keep-alive");
            }
            _ => {}
        }
    }
    if hosts > 1 || hosts == 0 && !is_old || !target.starts_with('/') {
        return Err(BAD);
    }
    let is_head = method == "HEAD";
    if !(is_head || method == "GET") {
        return Err("501 Not Implemented");
    }
    Ok((Request { target, is_head, closes }, length.unwrap_or(0)))
}

fn answer(request: &Request<'_>, folder: &Path, replies: &mut Vec<u8>) {
    let Request { target, is_head, closes } = *request;
    let path = target.split('?').next().unwrap_or_default();
    let body = if path == "/ok" { Some(b"ok".to_vec()) } else { file(folder, path) };
    match body {
        Some(body) => reply(replies, "200 OK", &body, is_head, closes),
        None => reply(replies, "404 Not Found", b"404 Not Found", is_head, closes),
    }
}

/// A file below the folder.
fn file(folder: &Path, path: &str) -> Option<Vec<u8>> {
    let below = Path::new(path.trim_start_matches('/'));
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    let path = Some(folder.join(below)).filter(|path| is_plain && path.is_file())?;
    std::fs::read(path).ok()
}

fn reply(replies: &mut Vec<u8>, status: &str, body: &[u8], is_head: bool, closes: bool) {
    let connection = if closes { "Connection: close\r\n" } else { "" };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{connection}\r\n", body.len());
    replies.extend_from_slice(head.as_bytes());
    if !is_head {
        replies.extend_from_slice(body);
    }
}
