//! What the registry wants done that is not an answer: the control loop does it, in this order. The registry itself sends nothing.

use control::Push;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// Something that the control loop is to do.
#[derive(Debug)]
pub enum Output {
    /// Send an application a message without a request. When it is sent the application is to be woken (`Registry::tell_pushed`).
    Push(Pushed),
    /// Watch the slow-path bell of this application region.
    Watch(u32, Arc<OwnedFd>),
    /// Stop watching this slow-path bell.
    Unwatch(Arc<OwnedFd>),
    /// Have a helper seal a pair region.
    Seal {
        /// Id of the application that has asked.
        application: u32,
        /// Id of the region.
        region: u32,
        /// The region's memfd, which the helper seals.
        memfd: Arc<OwnedFd>,
    },
    /// Detach that application, for this reason: it misbehaved.
    Detach(u32, String),
}

/// A message to an application.
#[derive(Debug)]
pub struct Pushed {
    /// Id of the application.
    pub application: u32,
    /// The context that is to read it; `None`: all contexts of the process.
    pub context: Option<u32>,
    /// The message that the application reads.
    pub push: Push,
    /// The descriptor that comes with it.
    pub fd: Option<Arc<OwnedFd>>,
}
