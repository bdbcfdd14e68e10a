//! A core without a thread, for tests: it serves its flows and relays when the test says so, at the time that the test gives. Never sleeps.

use super::{Common, Core, Worker};
use crate::ServiceError;
use base::Instant;
use fastpath::Others;
use flow::{CommandSender, ExceptionReceiver};
use port::Port;
use rustix::fd::AsRawFd;

/// What the thread of a core would run.
pub struct ByHand(Worker);

impl ByHand {
    /// As [`Core::start`], without a thread.
    pub fn prepare(
        common: Common,
        others: Others,
        port: Box<dyn Port>,
    ) -> Result<(Core, Self, ExceptionReceiver, CommandSender), ServiceError> {
        let (core, worker, exceptions, commands) = Core::prepare(0, common, others, port)?;
        Ok((core, Self(worker), exceptions, commands))
    }

    /// One turn of the core. True: there was something to do.
    pub fn turn(&mut self, now: Instant) -> bool {
        let worker = &mut self.0;
        worker.hear_wakers();
        let is_busy = worker.round(now).is_busy();
        let obeyed = worker.obey(now).unwrap_or(false);
        is_busy | obeyed | worker.relay()
    }

    /// Number of descriptors that the core watches.
    pub fn watched(&self) -> usize {
        let set = self.0.epoll.as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{set}")).unwrap();
        text.lines().filter(|line| line.starts_with("tfd:")).count()
    }

    /// What is left of relays, in words; empty: nothing.
    pub fn leftovers(&self) -> String {
        let leftovers = self.0.relays.leftovers();
        if leftovers == [0; 5] {
            String::new()
        } else {
            format!("relays, slots, pools, queued, deputies: {leftovers:?}")
        }
    }
}
