//! What C programs hold pointers to.

use crate::why;
use ring::{Handle, Ring, Service, Waker, check};
use std::sync::atomic::{AtomicBool, Ordering};

/// `towpath_service`: a registration that rings are made of.
#[derive(Debug)]
pub struct OpenService(pub(crate) Service);

/// `towpath_waker`: ends a ring's sleep from any thread.
#[derive(Debug)]
pub struct RingWaker(pub(crate) Waker);

/// `towpath_ring`: a ring, and what C cannot keep for itself.
#[derive(Debug)]
pub struct OpenRing {
    /// A call is under way: a second thread is refused.
    pub(crate) is_used: AtomicBool,
    pub(crate) inner: Inner,
}

/// What one thread at a time uses.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) ring: Ring,
    /// The connection of the last reserve, and the bytes of its room.
    pub(crate) reserved: Option<(Handle, usize)>,
    /// In the checked mode: the memory of that room, or of the last one, poisoned.
    pub(crate) checked: Option<Vec<u8>>,
    pub(crate) events: Vec<ring::Event>,
    /// How many of `events` were told.
    pub(crate) told: usize,
}

impl OpenRing {
    pub(crate) fn new(ring: Ring) -> Self {
        let checked = check::is_on().then(Vec::new);
        let inner = Inner { ring, reserved: None, checked, events: Vec::new(), told: 0 };
        Self { is_used: AtomicBool::new(false), inner }
    }
}

/// Held during a call.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    /// Begins a call with the ring of the flag `is_used`.
    ///
    /// # Errors
    /// -EBUSY when another thread is in a call.
    pub(crate) fn begin(is_used: &'a AtomicBool) -> Result<Self, i32> {
        // Acquire and Release: a thread that gets the ring from another sees what that one did.
        match is_used.swap(true, Ordering::Acquire) {
            false => Ok(Self(is_used)),
            true => Err(why::failed(libc::EBUSY, "another thread is in a call with this ring")),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
