//! Address conflict detection before the service is ready. Two stations with one address would take each other's connections.

use crate::ServiceError;
use crate::config::Link;
use crate::config::values::Mac;
use crate::daemon::clock::Clock;
use crate::daemon::net_port::Opened;
use base::Instant;
use port::{Batch, Port};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use slowpath::{Claim, Taken};
use wire::MacAddr;

/// Probes the link for the service's addresses, for less than a tenth of a second. No core runs yet.
pub fn claim(opened: &mut Opened, link: &Link, clock: Clock) -> Result<(), ServiceError> {
    let addresses = link.own.iter().map(|own| own.address).collect();
    let mut claim = Claim::new(MacAddr(opened.mac), addresses, clock.now());
    let mut batch = Batch::new();
    loop {
        let now = clock.now();
        if let Some(first) = opened.queues.first_mut() {
            send(first.as_mut(), &claim.poll_frames(now));
        }
        for queue in &mut opened.queues {
            queue.set_now(now);
            queue.receive(&mut batch);
            batch.packets().iter().try_for_each(|p| claim.handle_frame(p.frame())).map_err(refusal)?;
        }
        if claim.is_over(now) {
            return Ok(());
        }
        sleep(&opened.queues, now, claim.next_deadline())?;
    }
}

fn send(port: &mut dyn Port, frames: &[Vec<u8>]) {
    for frame in frames {
        // A probe for which the port has no room is lost; two more probes follow.
        if port.reserve().is_some_and(|buf| buf.fill(frame)) {
            port.commit();
        }
    }
    port.flush();
}

fn refusal(Taken { addr, by }: Taken) -> ServiceError {
    ServiceError::Port(format!(
        "address {addr} is in use on the link, by {}: take it from that station, or give the service another one with --address",
        Mac(by.0)
    ))
}

/// Sleeps until a queue of the port is readable or `until` has come.
fn sleep(queues: &[Box<dyn Port>], now: Instant, until: Instant) -> Result<(), ServiceError> {
    let ports = queues.iter().filter(|queue| queue.failure().is_none()).filter_map(|queue| queue.wait_fd());
    let mut fds: Vec<_> = ports.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let until = queues.iter().fold(until, |until, queue| until.min(queue.next_deadline()));
    let left = until.since(now).as_ns();
    let timeout = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(ServiceError::Os { doing: "wait for the port", error }),
    }
}
