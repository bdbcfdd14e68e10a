//! The requests to a process of the measurement `stream`: which of the three it is.

use super::multiplexer::Batching;
use super::source::{self, Plan};
use super::stage;
use crate::sockets::actor::{Actor, Answer};
use serde::{Deserialize, Serialize};

/// A request to a process, for all its connections.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Send tuples and receive them back, see [`source`].
    Source(Plan),
    /// Run the first stage, see [`stage::split`].
    Split(Batching),
    /// Run the second stage, see [`stage::count`].
    Count(Batching),
}

/// In the process: executes a request.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    let streams = std::mem::take(&mut actor.streams);
    match ask {
        Ask::Source(plan) => source::run(streams, &plan),
        Ask::Split(batching) => stage::split(streams, batching),
        Ask::Count(batching) => stage::count(streams, batching),
    }
}
