//! The poll loop of one core, on one screen.

use crate::classify::{self, Express, Seen};
use crate::counters::Counters;
use crate::flow_lists::FlowLists;
use crate::meter::{Meter, Part};
use crate::others::{Message, Others};
use crate::setup::{Home, NEWS_MAX, ROUND, State, homes};
use base::Instant;
use base::limits::BATCH;
use flow::{CommandReceiver, Consumer, ExceptionSender, FlowId, Flows, News};
use port::{Batch, Capabilities, Look, Port};
use std::collections::VecDeque;
use std::sync::Arc;

/// Receive-ring space is prefetched this many packets ahead: the packets' slots have arrived in the cache by then.
const AHEAD: usize = 4;

/// Most segments of no flow that a round takes before others, SYNs and SYN-ACKs, and all else: a flood of either takes no place from the other, and both
/// leave a quarter of the batch to established flows. The next round is one for all packets.
const SYNS_MAX: usize = BATCH / 2;
const STRAYS_MAX: usize = BATCH / 4;

/// What one round did, and when the next one is due at the latest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Number of packets received.
    pub packets: u32,
    /// Number of application slots with a set doorbell bit.
    pub doorbells: u32,
    /// Number of commands of the slow path, and of messages of other cores, carried out.
    pub commands: u32,
    /// Number of segments sent.
    pub sent: u32,
    /// Poll again by then even if nothing happens; [`Instant::NEVER`] if no timer runs.
    pub deadline: Instant,
    /// The slow path sleeps and has exceptions now: the caller writes its eventfd.
    pub wake_slow_path: bool,
    /// One bit for each other core of the service that sleeps and has work now: the caller writes its eventfd.
    pub wake_cores: u32,
}

impl Progress {
    /// True when the round found something to do.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.packets | self.doorbells | self.commands | self.sent != 0
    }
}

/// One core of the fast path. Its thread calls [`poll`](Self::poll) in a loop; after each call it writes the eventfds of
/// [`wakes`](Self::wakes) and handles [`strangers`](Self::strangers).
///
/// To sleep: [`prepare_sleep`](Self::prepare_sleep), then `Port::arm`, then block on the core's eventfd and the port's
/// descriptor until `Progress::deadline`; then `Port::disarm` and [`awake`](Self::awake).
#[derive(Debug)]
pub struct Core {
    pub(crate) index: u32,
    pub(crate) flows: Arc<Flows>,
    pub(crate) commands: CommandReceiver,
    /// The ring from each core, in their order; that from this core holds what is parked. Empty for a core that is alone.
    pub(crate) inboxes: Box<[Consumer<Message>]>,
    /// Flows that were handed to this core and could not be taken in yet.
    pub(crate) arriving: VecDeque<Message>,
    pub(crate) homes: Box<[Option<Home>]>,
    /// Indices of the regions with doorbells that this core looks at in each round. Those of the other applications rest.
    pub(crate) awake: Vec<u16>,
    pub(crate) batch: Batch,
    pub(crate) seen: Box<[Seen]>,
    /// Slots with a doorbell bit set in this round: (region, slot, its flow if it has one).
    pub(crate) rung: Vec<(u16, u32, Option<FlowId>)>,
    pub(crate) strangers: Vec<(u16, u32)>,
    pub(crate) state: State,
}

impl Core {
    /// Makes core `index`, which is also the context of side 0 on which applications ring for it. `exceptions` and `commands` are
    /// its ends of the rings to the slow path; `capabilities` are those of its port; `others` joins it with the other cores of its service.
    // SETUP: all memory of a core is made here.
    #[must_use]
    pub fn new(
        index: u8,
        flows: Arc<Flows>,
        exceptions: ExceptionSender,
        commands: CommandReceiver,
        capabilities: Capabilities,
        others: Others,
    ) -> Self {
        let config = flows.config();
        let Others { senders, inboxes, records, gaps } = others;
        Self {
            index: u32::from(index),
            commands,
            inboxes,
            arriving: VecDeque::new(),
            homes: homes(config),
            awake: Vec::with_capacity(usize::from(config.regions)),
            batch: Batch::new(),
            seen: vec![Seen::NOTHING; BATCH].into_boxed_slice(),
            rung: Vec::with_capacity(NEWS_MAX),
            strangers: Vec::with_capacity(NEWS_MAX),
            state: State {
                others: senders,
                ..State::new(
                    index,
                    config,
                    flows.receivers().clone(),
                    exceptions,
                    capabilities,
                    records,
                    gaps,
                )
            },
            flows,
        }
    }

    /// One round at `now`: commands, packets, applications, timers.
    #[inline(never)]
    pub fn poll<P: Port + ?Sized>(&mut self, now: Instant, port: &mut P) -> Progress {
        self.round(now, port, &mut ())
    }

    /// As [`poll`](Self::poll), and tells `meter` each part of the round as it begins.
    #[inline]
    pub fn round<P: Port + ?Sized, M: Meter>(
        &mut self,
        now: Instant,
        port: &mut P,
        meter: &mut M,
    ) -> Progress {
        // Time never goes back between rounds.
        let now = now.max(self.state.now);
        (self.state.now, self.state.now_us) = (now, now.as_us() as u32);
        (self.state.sent, self.state.is_port_full, self.state.left) = (0, false, ROUND);
        port.set_now(now);
        if !self.state.late.is_empty() {
            // Before what flows have to send.
            self.state.sent += self.state.late.send_waiting(port);
        }
        // Commands first, because packets of a new flow may come in the same round as the command that adds its region.
        let commands = if self.inboxes.is_empty() { self.obey(port) } else { self.hear_others(port) };
        let ahead = if self.state.is_crowded { self.packets_ahead(port, meter) } else { 0 };
        meter.enter(Part::Doorbells);
        let doorbells = self.applications(port, meter);
        let mut packets = ahead;
        // The caller wakes the applications after the round: a round with express packets ends here, but not two in a row.
        self.state.is_short = ahead > 0 && !self.state.is_short;
        if !self.state.is_short {
            packets += self.packets(port, meter);
            meter.enter(Part::Timers);
            self.timers(port);
        }
        self.pay_debts();
        meter.enter(Part::PortSend);
        port.flush();
        Progress {
            packets,
            doorbells,
            commands,
            sent: self.state.sent,
            deadline: self.deadline(port),
            wake_slow_path: self.state.exceptions.must_wake(),
            wake_cores: if self.inboxes.is_empty() { 0 } else { self.wakes_cores() },
        }
    }

    /// Receives a batch. Returns the number of packets.
    fn packets<P: Port + ?Sized>(&mut self, port: &mut P, meter: &mut impl Meter) -> u32 {
        meter.enter(Part::PortReceive);
        port.receive_heads(&mut self.batch);
        self.state.is_crowded = self.batch.is_full();
        self.handle(port, meter)
    }

    /// Receives packets of express flows, and a few of no flow, that wait behind other packets. Returns their number.
    #[cold]
    fn packets_ahead<P: Port + ?Sized>(&mut self, port: &mut P, meter: &mut impl Meter) -> u32 {
        meter.enter(Part::PortReceive);
        let Self { flows, batch, state, .. } = self;
        let (mut taken, mut syns, mut strays) = (None, 0, 0);
        let up_to = |count: &mut usize, most| {
            *count += 1;
            if *count <= most { Look::Take } else { Look::Later }
        };
        port.receive_ahead(batch, &mut |frame| match state.express(flows, frame, taken) {
            Some(Express::Flow(id, next)) => {
                taken = Some((id, next));
                Look::Take
            }
            Some(Express::Syn) => up_to(&mut syns, SYNS_MAX),
            Some(Express::Stray) => up_to(&mut strays, STRAYS_MAX),
            None => Look::Leave,
        });
        self.state.taken_ahead += self.batch.len() as u64;
        if self.batch.is_empty() { 0 } else { self.handle(port, meter) }
    }

    /// Takes the packets of the batch through the three stages. Returns their number.
    fn handle<P: Port + ?Sized>(&mut self, port: &mut P, meter: &mut impl Meter) -> u32 {
        let Self { flows, batch, seen, homes, state, .. } = self;
        let count = batch.len();
        meter.enter(Part::Receive);
        state.counters.packets += count as u64;
        batch.packets().iter().for_each(|packet| flow::prefetch_frame(packet.frame()));
        // Parse, hash, prefetch buckets.
        for (seen, packet) in seen.iter_mut().zip(batch.packets()) {
            seen.parse(flows, packet, &mut state.counters);
        }
        // Look up, prefetch records.
        for seen in &mut seen[..count] {
            seen.look_up(flows);
        }
        // Mark, prefetch slots.
        classify::mark_last(&mut seen[..count]);
        for seen in &mut seen[..count] {
            seen.prefetch_slot(flows, homes, state);
        }
        // Stage three: header prediction, then the flow or the slow path.
        for (i, first) in seen[..count].iter().take(AHEAD).enumerate() {
            first.prefetch_room(homes, state, i);
        }
        for (i, packet) in batch.packets_mut().iter_mut().enumerate() {
            if let Some(later) = seen[..count].get(i + AHEAD) {
                later.prefetch_room(homes, state, AHEAD);
            }
            let seen = &mut seen[i];
            if packet.ticket().is_some() && !state.head(flows, homes, seen, packet, port) {
                continue;
            }
            let frame = classify::Frame { bytes: packet.frame(), merged: &packet.meta.gso };
            state.packet(flows, homes, seen, frame, port);
        }
        meter.enter(Part::Events);
        // Tell the applications before timers run: they work while the core does the rest of the round.
        state.announce(flows, homes);
        count as u32
    }

    /// Runs everything that depends on time: retries, paced flows, delayed acknowledgements, loss timers, lingering rings.
    fn timers<P: Port + ?Sized>(&mut self, port: &mut P) {
        let Self { flows, homes, state, .. } = self;
        let FlowLists { pacer, backlog, .. } = &mut state.lists;
        pacer.expire(state.now, |flow| backlog.push(flow, flows.slot_of(FlowId(flow)).0));
        backlog.resume(state.now);
        state.take_turns(flows, homes, port);
        state.acknowledge_due(flows, homes, port);
        state.look_after(flows, homes, port);
        state.tick_programs(flows, homes, port);
        state.release_held(flows, homes, port);
        state.sweep_lent(flows, homes);
        state.sweep_grown(flows, homes);
        if state.lists.is_asking {
            state.ask_peers(flows, homes, port);
        }
        state.announce(flows, homes);
    }

    fn deadline<P: Port + ?Sized>(&self, port: &P) -> Instant {
        let lists = self.state.lists.next_deadline();
        lists.min(port.next_deadline()).min(self.state.debt_deadline())
    }

    /// Threads of applications that sleep and have news: the caller wakes them, in this round.
    pub fn wakes(&mut self) -> impl Iterator<Item = News> + '_ {
        self.state.wakes.drain(..)
    }

    /// Slots without a flow (relays, listeners) with a set doorbell bit: (region, slot).
    pub fn strangers(&mut self) -> impl Iterator<Item = (u16, u32)> + '_ {
        self.strangers.drain(..)
    }

    /// The core's counters since its start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.state.counters
    }
}
