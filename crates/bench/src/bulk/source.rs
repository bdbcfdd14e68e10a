//! The sending end: one process, one thread, an epoll set, and the ordered number of flows. It calls libc like any program, so that the
//! preload library can be loaded below it; on the kernel it is the same program without the library.

use crate::sockets::calls;
use anyhow::{Context, bail};
use control::{Line, LineError};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The role of this process.
pub const ROLE: &str = "bulk-source";
/// Size of one write in bytes.
const CHUNK: usize = 64 * 1024;
/// The interval at which a source looks at its control socket.
const LOOK: Duration = Duration::from_millis(100);
/// The longest time until all flows are open.
const PATIENCE: Duration = Duration::from_secs(10);

/// The task of a source.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orders {
    pub to: SocketAddr,
    pub flows: u16,
    /// The congestion control that the sockets ask for; `None`: the default. (A network namespace may be forbidden to change the kernel's.)
    pub congestion: Option<String>,
}

/// Sent by the source when all its flows are open; sent to the source to start it. The number keeps the message from being empty, which
/// looks like a closed socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Open(pub u16);

struct Source {
    poll: Poll,
    events: Events,
    flows: Vec<Option<TcpStream>>,
}

/// The main function of this process. It returns when every flow has failed (the sink resets them) or the control socket is closed.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let orders = line.receive::<Orders>(true)?.message;
    let mut source = Source::connect(&orders)?;
    source.establish()?;
    line.send(&Open(orders.flows), &[], true)?;
    line.receive::<Open>(true)?;
    source.pour(line)
}

impl Source {
    fn connect(orders: &Orders) -> anyhow::Result<Self> {
        let poll = Poll::new()?;
        let mut flows = Vec::new();
        for i in 0..usize::from(orders.flows) {
            let mut stream = TcpStream::connect(orders.to).context("cannot connect")?;
            if let Some(name) = &orders.congestion {
                // By libc: the library sees no system call that goes past it.
                let set = calls::choose_congestion(&stream, name);
                set.with_context(|| format!("there is no congestion control {name}"))?;
            }
            poll.registry().register(&mut stream, Token(i), Interest::WRITABLE)?;
            flows.push(Some(stream));
        }
        Ok(Self { poll, events: Events::with_capacity(256), flows })
    }

    /// Waits until every flow is open.
    fn establish(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        let mut open = vec![false; self.flows.len()];
        while open.contains(&false) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("{} flows did not open", open.iter().filter(|open| !**open).count());
            }
            self.wait(left)?;
            for event in &self.events {
                let Token(i) = event.token();
                if let Some(error) = self.flows[i].as_ref().and_then(|s| s.take_error().transpose()) {
                    return Err(error?).context("cannot connect");
                }
                open[i] = event.is_writable();
            }
        }
        Ok(())
    }

    /// Writes a chunk to each flow with room, in turn. mio's events are edge-triggered: a flow counts as having room until a write fails.
    fn pour(&mut self, line: &Line) -> anyhow::Result<()> {
        let chunk = vec![0x5A; CHUNK];
        let mut roomy: Vec<usize> = (0..self.flows.len()).collect();
        let mut is_roomy = vec![true; self.flows.len()];
        let mut looked = Instant::now();
        while self.flows.iter().any(Option::is_some) {
            let timeout = if roomy.is_empty() { LOOK } else { Duration::ZERO };
            self.wait(timeout)?;
            for event in &self.events {
                let Token(i) = event.token();
                if !std::mem::replace(&mut is_roomy[i], true) {
                    roomy.push(i);
                }
            }
            let flows = &mut self.flows;
            roomy.retain(|&i| {
                is_roomy[i] = has_room(&mut flows[i], &chunk);
                is_roomy[i]
            });
            if LOOK < looked.elapsed() {
                looked = Instant::now();
                match line.receive::<Open>(false) {
                    Err(LineError::WouldBlock) => {}
                    _ => return Ok(()),
                }
            }
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> anyhow::Result<()> {
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Writes once. False if the flow's send buffer is full, or if the flow has failed, which drops it.
fn has_room(flow: &mut Option<TcpStream>, chunk: &[u8]) -> bool {
    let Some(stream) = flow else { return false };
    match stream.write(chunk) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::Interrupted => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(_) => {
            *flow = None;
            false
        }
    }
}
