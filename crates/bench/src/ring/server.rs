//! A server that echoes by a ring: the peer process of the measurement `ring`.

use ::ring::{Error, Handle, Kind, ListenOptions, Options, Ring, Service};
use anyhow::Context;
use control::Line;
use std::net::{Ipv4Addr, SocketAddr};

/// The role of this process.
pub const ROLE: &str = "ring";

/// Bytes read at once, as the other servers do.
const ROOM: usize = crate::sockets::echo::ROOM;

/// The main function: says where it listens, and echoes until it is killed.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let mut ring = Service::open(Options::default())?.ring()?;
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = ring.listen(any, ListenOptions::default(), 0)?;
    let SocketAddr::V4(address) = ring.local_address(listener)? else { anyhow::bail!("not IPv4") };
    line.send(&address, &[], true).context("the measurement is gone")?;
    let (mut events, mut bytes) = (Vec::new(), [0; ROOM]);
    loop {
        ring.wait(None, &mut events)?;
        for event in &events {
            let is_over = match event.kind {
                Kind::Readable => echo(&mut ring, event.handle, &mut bytes).is_err(),
                Kind::Finished | Kind::Closed(_) => true,
                _ => false,
            };
            if is_over && let Ok(conn) = ring.conn(event.handle) {
                conn.close();
            }
        }
    }
}

/// Echoes one request. The client has one under way on each connection, so there is room for the reply.
fn echo(ring: &mut Ring, handle: Handle, bytes: &mut [u8]) -> Result<(), Error> {
    let mut read = ring.conn(handle)?.read()?;
    let n = read.copy_to(bytes);
    read.consume(n);
    let sent = ring.conn(handle)?.write(&bytes[..n])?;
    if sent == n { Ok(()) } else { Err(Error::TooLong) }
}
