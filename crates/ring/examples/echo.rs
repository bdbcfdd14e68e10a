//! Echoes what it gets: the smallest server on a ring.
//!
//! ```text
//! towpath up --detach                                     the service
//! echo 127.0.0.1:7007 &                                   this program
//! towpath run -- nc 127.0.0.1 7007                        an ordinary client
//! ```

use ring::{Error, Event, Handle, Kind, ListenOptions, Options, Ring, Service};
use std::net::SocketAddr;
use std::process::ExitCode;

/// Bytes echoed at once: a client that sends without end does not keep the others waiting.
const TURN: usize = 64 << 10;

fn main() -> ExitCode {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7007".to_owned());
    match address
        .parse()
        .map_err(|_| format!("{address}: no address"))
        .and_then(|address| serve(address).map_err(|e| e.to_string()))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("echo: {why}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: SocketAddr) -> Result<(), Error> {
    let service = Service::open(Options::default())?;
    let mut ring = service.ring()?;
    let listener = ring.listen(address, ListenOptions::default(), 0)?;
    eprintln!("echo: listens at {}", ring.local_address(listener)?);
    let mut events = Vec::new();
    loop {
        // Publishes what the last round has committed, then waits.
        ring.wait(None, &mut events)?;
        for event in &events {
            // A connection that ends in the middle is no reason to stop.
            let _ = handle(&mut ring, *event);
        }
    }
}

fn handle(ring: &mut Ring, Event { handle, kind, .. }: Event) -> Result<(), Error> {
    match kind {
        // After the end bytes may be left for which there was no room.
        Kind::Readable | Kind::Writable | Kind::Finished => echo(ring, handle),
        Kind::Closed(_) => {
            ring.conn(handle)?.close();
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Copies from the peer's ring to this program's, as much as there is room for.
fn echo(ring: &mut Ring, handle: Handle) -> Result<(), Error> {
    let mut bytes = [0; 4096];
    let mut left = TURN;
    while left > 0 {
        let n = ring.conn(handle)?.read()?.copy_to(&mut bytes);
        if n == 0 {
            return end_if_finished(ring, handle);
        }
        let Some(mut write) = ring.conn(handle)?.reserve(1, n)? else { return Ok(()) };
        let n = write.put(&bytes[..n]);
        write.done();
        ring.conn(handle)?.read()?.consume(n);
        left = left.saturating_sub(n);
    }
    // More may be there, or the end: it is told again.
    ring.conn(handle)?.again()
}

/// Everything is echoed: if the peer sends no more, that is all.
fn end_if_finished(ring: &mut Ring, handle: Handle) -> Result<(), Error> {
    if ring.conn(handle)?.is_finished() {
        ring.conn(handle)?.close();
    }
    Ok(())
}
