//! The rings between the cores of one service: what a core hands on to another, and what it parks for itself until it may be handled.
//!
//! ```text
//!   core 0  ──frames, flows that move, commands──►  core 1      one ring for each pair of cores and direction
//!      │ ▲
//!      └─┘ parked: frames of flows that are still at another core, in the order in which they came
//! ```
//! A frame that does not fit is lost, as at a port without room. A flow or command that does not fit waits at its sender.

use crate::board::{Record, RecordStock, Records};
use crate::flow_lists::Listed;
use crate::gaps::{GapRecord, GapStock, Gaps};
use crate::task::Task;
use flow::{Config, Consumer, FlowId, GroupSet, IN_TRANSIT, Producer, frame_ring};
use port::Gso;
use std::collections::VecDeque;

/// Messages of each ring: the frames of a port's queue of a thousand frames, as they wait while a group of flows moves.
const SLOTS: usize = 1024;
/// Bytes for frames of each ring: the kernel gives memory for what is used.
const BYTES: usize = 4 << 20;
/// The same of the ring of parked messages: frames come to it for as long as another core, which is overloaded, needs for what waits there.
const PARKED_SLOTS: usize = 4 * SLOTS;
const PARKED_BYTES: usize = 4 * BYTES;
/// Bytes of the longest frame: 64 KiB of IP packet, with Ethernet and two tags.
const LONGEST: usize = (64 << 10) + 64;
/// One part in so many of the ring of parked messages stays free, so that each that is taken out can be put back.
const SLACK: usize = 8;

/// What one core hands to another, or parks.
#[derive(Debug)]
pub(crate) enum Message {
    /// The frame that travels with the message, with verified checksums, for a flow that another core serves.
    Frame { merged: Option<Gso> },
    /// The flow is the receiver's from now on.
    Flow { flow: FlowId, listed: Listed, record: Option<Box<Record>>, gaps: Option<GapRecord> },
    /// A command about a flow that another core serves.
    Task(Task),
    /// All flows of the move have gone before.
    Moved,
}

/// A core's ends of its rings to all cores of the service, itself included.
#[derive(Debug)]
pub struct Others {
    pub(crate) senders: Senders,
    pub(crate) inboxes: Box<[Consumer<Message>]>,
    pub(crate) records: Records,
    pub(crate) gaps: Gaps,
}

/// The sending ends. A core that is alone has none.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    index: u8,
    to: Box<[Producer<Message>]>,
    /// Commands that found no room.
    late: VecDeque<(u8, Task)>,
    /// Groups with flows that are to come: frames of flows that other cores serve are parked.
    pub(crate) expected: GroupSet,
    /// What is parked is being looked at: what stays parked comes behind the rest, and may use the room that is kept for it.
    pub(crate) is_sorting: bool,
}

impl Others {
    /// The rings between `cores` cores, for a service with this configuration: the ends of each core, in their order.
    // SETUP: called once when the service starts.
    #[must_use]
    pub fn join(cores: u8, config: &Config) -> Vec<Self> {
        if cores <= 1 {
            return vec![Self::alone(config)];
        }
        let records = RecordStock::new(config, cores);
        let gaps = GapStock::new(config, cores);
        let mut inboxes: Vec<Vec<_>> = (0..cores).map(|_| Vec::new()).collect();
        let senders: Vec<Senders> = (0..cores)
            .map(|index| {
                let to = inboxes.iter_mut().enumerate().map(|(to, inbox)| {
                    let is_own = to == usize::from(index);
                    let (slots, bytes) = if is_own { (PARKED_SLOTS, PARKED_BYTES) } else { (SLOTS, BYTES) };
                    let (tx, rx) = frame_ring(slots, bytes, LONGEST);
                    inbox.push(rx);
                    tx
                });
                Senders { index, to: to.collect(), ..Senders::default() }
            })
            .collect();
        let ends = senders.into_iter().zip(inboxes);
        let join = |(senders, inboxes): (Senders, Vec<_>)| Self {
            senders,
            inboxes: inboxes.into_boxed_slice(),
            records: Records::shared(records.clone()),
            gaps: Gaps::shared(gaps.clone()),
        };
        ends.map(join).collect()
    }

    /// What the only core of a service has.
    // SETUP: made with the core.
    #[must_use]
    pub fn alone(config: &Config) -> Self {
        Self {
            senders: Senders::default(),
            inboxes: Box::new([]),
            records: Records::new(config),
            gaps: Gaps::new(config),
        }
    }
}

impl Senders {
    /// Hands a message with its frame to core `to`.
    ///
    /// # Errors
    /// The message, when the ring has no room.
    #[expect(clippy::result_large_err, reason = "a message that found no room goes back to its sender whole")]
    pub(crate) fn send(&mut self, to: u8, message: Message, frame: &[u8]) -> Result<(), Message> {
        match self.to.get_mut(usize::from(to)) {
            Some(ring) => ring.push(message, frame),
            None => Err(message),
        }
    }

    /// Parks a frame: it is looked at again when flows have come. False when there is no room.
    #[must_use]
    pub(crate) fn park(&mut self, message: Message, frame: &[u8]) -> bool {
        let is_again = self.is_sorting;
        let ring = self.to.get_mut(usize::from(self.index));
        ring.is_some_and(|ring| (is_again || !ring.is_crowded(SLACK)) && ring.push(message, frame).is_ok())
    }

    /// Hands a command on to the core that serves its flow, `to`; or parks it, when that is this core, which has not taken the flow in yet.
    /// A command is never lost: without room it waits.
    pub(crate) fn pass_on(&mut self, to: u8, task: Task) {
        let to = to & !IN_TRANSIT;
        if !self.late.is_empty() || self.send(to, Message::Task(task), &[]).is_err() {
            self.late.push_back((to, task));
        }
    }

    /// Sends the commands that found no room before.
    pub(crate) fn flush(&mut self) {
        while let Some((to, task)) = self.late.pop_front() {
            if self.send(to, Message::Task(task), &[]).is_err() {
                return self.late.push_front((to, task));
            }
        }
    }

    /// True when the service has several cores.
    pub(crate) fn is_joined(&self) -> bool {
        !self.to.is_empty()
    }

    /// True when the ring to core `to` has room for a message without a frame.
    pub(crate) fn has_room(&self, to: u8) -> bool {
        self.to.get(usize::from(to)).is_some_and(|ring| ring.room() > 0)
    }

    /// True when a command waits for room.
    pub(crate) fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// One bit for each other core that sleeps and has messages now.
    pub(crate) fn must_wake(&self) -> u32 {
        let others = self.to.iter().enumerate().filter(|(i, _)| *i != usize::from(self.index));
        others.fold(0, |bits, (i, ring)| bits | u32::from(ring.must_wake()) << i)
    }
}
