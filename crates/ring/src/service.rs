//! The registration of this process, which its rings share.

use crate::error::Error;
use crate::options::Options;
use crate::raw;
use crate::ring::Ring;
use session::fork_locks::Held;
use session::{Client, host, reserved, sys};
use std::cell::RefCell;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// The control line's descriptor, for a forked child to close; -1: none.
static LINE: AtomicI32 = AtomicI32::new(-1);
/// Fork generation of the process that made the present registration.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// One thread at a time registers.
static OPENING: Mutex<()> = Mutex::new(());

thread_local! {
    /// The registration's locks during a fork: in the child no other thread's hold on them may be left.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// In the parent, before a fork: takes the registration's locks.
extern "C" fn before_fork() {
    let mut held = Held::new();
    session::hold_attempts(&mut held);
    if let Some(client) = session::present() {
        client.hold(&mut held);
    }
    session::hold_current(&mut held);
    HELD.set(Some(held));
}

/// In the parent, after a fork.
extern "C" fn in_parent() {
    drop(HELD.take());
}

/// In a forked child: the parent's rings are not its own. Closes the child's copy of the control line, so that the service notices the
/// parent's death.
extern "C" fn in_child() {
    drop(HELD.take());
    host::HOST.forks.fetch_add(1, Ordering::AcqRel);
    endpoint::lock::forget_thread_number();
    let line = LINE.swap(-1, Ordering::AcqRel);
    if line >= 0 {
        reserved::unclaim(line);
        // The number is known nowhere else; an error of close changes nothing.
        let _ = sys::close(line);
    }
}

/// The registration of this process with the service.
#[derive(Clone, Debug)]
pub struct Service {
    pub(crate) client: Arc<Client>,
    pub(crate) options: Options,
    pub(crate) generation: u32,
}

impl Service {
    /// Registers this process. A second call is cheap: it finds the same registration, unless the service has ended or the process was forked
    /// since.
    ///
    /// # Errors
    /// [`Error::NoService`] with the cause.
    pub fn open(options: Options) -> Result<Self, Error> {
        if let Some(path) = &options.control {
            session::config::use_control_path(path);
        }
        let _opening = session::lock(&OPENING);
        raw::watch_forks(before_fork, in_parent, in_child);
        let client = match session::present().filter(is_usable) {
            Some(client) => client,
            None => Self::register()?,
        };
        Ok(Self { client, options, generation: host::generation() })
    }

    fn register() -> Result<Arc<Client>, Error> {
        if GENERATION.load(Ordering::Acquire) != host::generation() {
            // The parent's: what it would close on its end is the parent's still.
            session::present().into_iter().for_each(std::mem::forget);
        }
        let client = session::register().map_err(|e| Error::NoService(e.to_string()))?;
        LINE.store(client.control(), Ordering::Release);
        GENERATION.store(host::generation(), Ordering::Release);
        Ok(client)
    }

    /// Whether this process may use the registration, and the service lives.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.generation != host::generation() {
            return Err(Error::NotYours);
        }
        if self.client.dead.load(Ordering::Relaxed) {
            return Err(Error::ServiceGone);
        }
        Ok(())
    }

    /// A new ring, for one thread.
    ///
    /// # Errors
    /// [`Error::ServiceGone`], [`Error::NotYours`] in a forked child that has not opened the service for itself, [`Error::Full`] when the
    /// process has no context left (256 for all threads, epoll sets and rings) or no descriptor.
    pub fn ring(&self) -> Result<Ring, Error> {
        Ring::new(self.clone())
    }
}

fn is_usable(client: &Arc<Client>) -> bool {
    !client.dead.load(Ordering::Relaxed) && GENERATION.load(Ordering::Acquire) == host::generation()
}
