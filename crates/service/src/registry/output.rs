//! What the registry wants done that is not an answer: the control loop does it, in this order. The registry itself sends nothing.

use crate::cores::Command;
use control::Push;
use rustix::fd::OwnedFd;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What is to be done, in order. A method that only reads the registry may add to it.
#[derive(Debug, Default)]
pub struct Outputs(RefCell<VecDeque<Output>>);

impl Outputs {
    /// Adds something. One wake-up right after another of the same sleeper is left out.
    pub fn add(&self, output: Output) {
        let mut all = self.0.borrow_mut();
        let is_again = match (&output, all.back()) {
            (Output::Wake(new), Some(Output::Wake(last))) => Arc::ptr_eq(new, last),
            _ => false,
        };
        if !is_again {
            all.push_back(output);
        }
    }

    /// Takes what is to be done first.
    pub fn take(&self) -> Option<Output> {
        self.0.borrow_mut().pop_front()
    }

    /// True when nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

/// Something that the control loop is to do.
#[derive(Debug)]
pub enum Output {
    /// Send an application a message without a request, now or when it has read what was sent before. When it is sent the application is to be
    /// woken (`Registry::tell_pushed`).
    Push(Pushed),
    /// Watch the slow-path waker of this application region.
    Watch(u32, Arc<OwnedFd>),
    /// Stop watching this slow-path waker.
    Unwatch(Arc<OwnedFd>),
    /// Wake the process, or the core, that sleeps at this eventfd.
    Wake(Arc<OwnedFd>),
    /// Give the core of that index a command.
    Command(usize, Command),
    /// Have a helper seal a pair region.
    Seal {
        /// Id of the application that has asked.
        application: u32,
        /// Id of the region.
        region: u32,
        /// The region's memfd, which the helper seals.
        memfd: Arc<OwnedFd>,
    },
    /// The registry has worked for that user outside its turn, for about so long: its lines wait until others have had as much.
    Spent(u32, Duration),
    /// Detach that application, for this reason: it misbehaved.
    Detach(u32, String),
}

/// A message to an application.
#[derive(Debug)]
pub struct Pushed {
    /// Id of the application.
    pub application: u32,
    /// The message that the application reads.
    pub push: Push,
    /// The descriptor that comes with it, if there is one already. That of `Push::Waker` can be had later, too (`Registry::waker_of`).
    pub fd: Option<Arc<OwnedFd>>,
}
