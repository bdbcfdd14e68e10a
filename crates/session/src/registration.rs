//! How a process registers: it says hello and maps a region of its own. Nothing of its data areas is present at first: most programs have
//! connections inside this host only, which have memory of their own ([`Client::expect`]).

use crate::client::open;
use crate::host::HOST;
use crate::log::{Level, log};
use crate::reserved::{Internal, claim, note, unclaim};
use crate::rpc::{Exchange, say_hello};
use crate::sys;
use crate::{Client, detached};
use control::{Line, LineError, PATIENCE, Push, Reply, Request, Welcome};
use endpoint::region::Mapped;
use rustix::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::{Resource, getrlimit};
use shm::{Region, Side};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// A registration that has only said hello: from then on the service notices the end of this process.
#[derive(Debug)]
pub struct Announced {
    pub(crate) exchange: Exchange,
    pub(crate) control: RawFd,
    pub(crate) name: Arc<str>,
    /// Number of the holder bit that the parent has promised.
    holder: u8,
}

impl Announced {
    /// Dials the service and says hello.
    pub fn new() -> Result<Self, LineError> {
        let name = command_name();
        let (line, number) = say_hello(name.clone(), None)?;
        let line = Line::new(claim(line.into()));
        let control = line.as_fd().as_raw_fd();
        Ok(Self { exchange: Exchange::new(line, number), control, name, holder: 0 })
    }

    /// A line on which the hello is said.
    #[cfg(test)]
    pub(crate) fn of(exchange: Exchange, control: RawFd) -> Self {
        Self { exchange, control, name: "test".into(), holder: 0 }
    }

    /// Says hello as a forked child, with the parent's registration and the holder bit that it has promised. Allocates nothing: each
    /// touched page would be copied, and most children call exec at once. The new line takes the number of our copy of the parent's.
    pub fn as_child(parent: &Client, holder: u8) -> Result<Self, LineError> {
        let Client { control, name, .. } = parent;
        let hello = || say_hello(name.clone(), Some(parent.as_parent(holder)));
        let mut has_copy = true;
        let said = hello().or_else(|e| match e {
            // No number is free but that of the copy. The service keeps what the child holds by its promise, even if the parent has ended.
            LineError::Os(Errno::MFILE) => {
                parent.hang_up();
                has_copy = false;
                hello()
            }
            e => Err(e),
        });
        let said = said.and_then(|(line, number)| {
            move_to(line, *control)?;
            Ok(number)
        });
        // Without a line of its own the child closes the copy, too.
        let number = said.inspect_err(|_| {
            if has_copy {
                parent.hang_up();
            }
        })?;
        let line = Line::new(sys::own(*control));
        Ok(Self { exchange: Exchange::new(line, number), control: *control, name: name.clone(), holder })
    }

    /// Completes the registration. A forked child without descriptors or memory for it, or whose service is silent, goes on with its
    /// `parent`'s, locked in.
    pub fn finish(mut self, parent: Option<&Client>) -> Result<Arc<Client>, LineError> {
        let mut pushes = Vec::new();
        match introduce(&mut self.exchange, |push, fds| pushes.push((push, fds))) {
            Ok((welcome, home)) => {
                let client = Client::new(self, parent, welcome, home);
                for (push, fds) in pushes {
                    client.pushed(push, fds);
                }
                Ok(client)
            }
            Err(e) => match (e, parent) {
                (LineError::Os(Errno::MFILE | Errno::NOMEM) | LineError::WouldBlock, Some(parent)) => {
                    detached::cut_off();
                    Ok(self.stand_in(parent))
                }
                (e, _) => {
                    if let LineError::Os(e) = &e {
                        let text = format_args!(
                            "no memory to share with the service ({e}): sockets stay with the kernel; raise the limits \
                             (ulimit -n, ulimit -v)"
                        );
                        log(Level::Error, text);
                    }
                    unclaim(self.control);
                    Err(e)
                }
            },
        }
    }

    /// Registers no further: this process uses what `parent` has, under its own holder bit.
    pub fn stand_in(self, parent: &Client) -> Arc<Client> {
        let regions = parent.regions.read().unwrap_or_else(PoisonError::into_inner).clone();
        let welcome = Welcome { holder: self.holder, ..parent.welcome.clone() };
        let queues = parent.all_queues();
        let client =
            Client::assemble(self, welcome, parent.home.clone(), parent.oldest.clone(), regions, queues);
        client.dead.store(parent.dead.load(Ordering::Relaxed), Ordering::Relaxed);
        Arc::new(client)
    }
}

/// Gives a line that descriptor number, in place of what has it.
fn move_to(line: Line, number: RawFd) -> Result<(), Errno> {
    let fd = OwnedFd::from(line);
    if fd.as_raw_fd() == number {
        let _ = fd.into_raw_fd();
    } else {
        sys::dup3(fd.as_raw_fd(), number, libc::O_CLOEXEC)?;
    }
    note(number);
    Ok(())
}

fn command_name() -> Arc<str> {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().chars().take(32).collect::<String>().into()
}

/// Bytes of address space that this process may still take.
pub fn room() -> u64 {
    let Some(limit) = getrlimit(Resource::As).current else { return u64::MAX };
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let taken = text.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    limit.saturating_sub(taken.unwrap_or(0) * rustix::param::page_size() as u64)
}

/// The messages after hello: the service's welcome, and a region of our own.
fn introduce(
    exchange: &mut Exchange,
    mut pushed: impl FnMut(Push, Vec<OwnedFd>),
) -> Result<(Welcome, Arc<Mapped>), LineError> {
    // A timeout of the socket: waiting for an answer costs one call, and begins anew after a signal.
    set_socket_timeout(&exchange.line, Timeout::Recv, Some(PATIENCE))?;
    // Sent before the welcome has come: the service is waited for once, not twice.
    let hello = exchange.number;
    // A refusal closes the line, so this may fail, and the refusal is read all the same.
    let asked = exchange.send(Request::OpenRegion { room: room() }, None);
    let welcome = match exchange.answer_to(hello, &mut pushed)?.0 {
        Reply::Welcome(welcome) => welcome,
        Reply::Refused { reason, .. } => {
            log(Level::Error, format_args!("the service refuses this process: {reason}"));
            return Err(LineError::Refused(reason.into()));
        }
        _ => return Err(LineError::Garbled),
    };
    asked?;
    let (Reply::Region(info), fds) = exchange.answer(&mut pushed)? else { return Err(LineError::Garbled) };
    if exchange.is_short() {
        return Err(LineError::Os(Errno::MFILE));
    }
    let mut fds = fds.into_iter();
    let memfd = fds.next().ok_or(LineError::Garbled)?;
    let region = open(&memfd, info)?;
    // From here on no process, not even this one, can take a page away: the service checks these seals.
    Region::seal(memfd.as_fd()).map_err(|e| {
        log(Level::Error, format_args!("{e}"));
        LineError::Garbled
    })?;
    let home = Mapped::new(&HOST, Side::One, Arc::new(region), 0);
    for (i, bell) in fds.enumerate() {
        // The slow path's eventfd comes first, then one per fast-path core.
        let context = if i == 0 { shm::SLOW_CONTEXT } else { i as u32 - 1 };
        home.learn_waker(context, Box::new(Internal::new(bell)));
    }
    // No answer is awaited: the next request is answered after this one is done.
    exchange.send(Request::Mapped { region: info.id }, None)?;
    Ok((welcome, Arc::new(home)))
}
