//! How flows go from one core to another while their packets come: one core hands each over whole, the other parks what comes for them
//! meanwhile. The slow path leads (its file `moves.rs` has the order of steps); nothing here decides which flow moves.

use crate::classify::{Frame, Seen};
use crate::core::Core;
use crate::counters::Cause;
use crate::others::Message;
use crate::setup::{COMMANDS_MAX, Home, NO_FLOW, State, Work};
use crate::task::Task;
use flow::{FlowId, Flows, GroupSet, IN_TRANSIT, state};
use port::{Gso, Port};
use queue::{Wake, stream};
use wire::{Body, Packet, RxChecksum};

impl State {
    /// From now on frames of these groups are parked while another core serves their flow.
    pub(crate) fn expect(&mut self, groups: GroupSet, number: u32) {
        self.others.expected = groups;
        self.answers.expecting = Some(number);
        self.has_arrivals = true;
    }

    /// From now on the core is to say when it has handled the frames that wait in its queue.
    #[cold]
    pub(crate) fn begin_yield<P: Port + ?Sized>(&mut self, port: &P, number: u32) {
        self.answers.yielding = Some((number, self.in_order().saturating_add(port.waiting_most() as u64)));
    }

    /// Number of frames that have come out of the queue in their order.
    fn in_order(&self) -> u64 {
        self.counters.packets - self.taken_ahead
    }

    /// True when something waits for the next round.
    pub(crate) fn is_moving(&self) -> bool {
        let owes = self.answers.are_owed();
        owes || self.stalled.is_some() || self.has_arrivals || self.others.is_late()
    }

    /// Pushes the answers that are due. Called between rounds, when all frames received so far are handled: the queue was empty if the last batch was not
    /// full.
    fn answer_slow_path(&mut self) {
        let is_empty = !self.is_crowded && !self.is_short;
        let in_order = self.in_order();
        let quiet = self.answers.yielding.take_if(|(_, last)| is_empty || *last <= in_order);
        if let Some((number, _)) = quiet {
            self.answers.quiet = Some(number);
        }
        self.answers.push(&mut self.exceptions);
    }

    /// A frame of a flow that core `core` serves, or will serve: hands it on, or parks it until its flow has come.
    #[cold]
    pub(crate) fn hand_on(&mut self, core: u8, group: u8, frame: Frame<'_>) {
        let message = Message::Frame { merged: *frame.merged };
        let is_parked = core == self.index | IN_TRANSIT || self.others.expected.contains(group);
        let is_taken = if is_parked {
            self.others.park(message, frame.bytes)
        } else {
            self.others.send(core & !IN_TRANSIT, message, frame.bytes).is_ok()
        };
        if !is_taken {
            self.counters.count(Cause::CoreFull);
        }
    }

    /// A doorbell rang here for a flow that core `core` serves: an application rang before it saw that the flow has moved. Rings for that
    /// core. A flow that is on its way to this core needs no bell: it is looked at when it comes.
    #[cold]
    pub(crate) fn pass_bell_on(&mut self, homes: &[Option<Home>], region: u16, slot: u32, core: u8) {
        let core = core & !IN_TRANSIT;
        let Some(Some(home)) = homes.get(usize::from(region)) else { return };
        if core == self.index {
            return;
        }
        if home.doorbell(u32::from(core)).is_some_and(|bell| bell.ring(slot) == Wake::Needed) {
            self.wakes_cores |= 1 << core;
        }
    }

    /// Hands the flow over to core `to`, with all that this core has of it. If the record is busy, or the ring full, this and all later
    /// commands wait.
    #[cold]
    pub(crate) fn hand_over(&mut self, flows: &Flows, id: FlowId, to: u8) {
        let stalled = Some(Task::Move(id, to));
        let Some(mut guard) = flows.lock_briefly(id) else {
            self.stalled = stalled;
            return;
        };
        let f = guard.parts();
        if !f.rx.has(state::LIVE) || f.rx.core != self.index || to == self.index {
            return;
        }
        if !self.others.has_room(to) {
            self.stalled = stalled;
            return;
        }
        let message = Message::Flow {
            flow: id,
            listed: self.lists.take_out(id),
            record: self.records.take_out(f.cold),
            gaps: self.gaps.take_out(&mut f.cold.ahead),
        };
        if self.urgent_of == id.0 {
            self.urgent_of = NO_FLOW;
        }
        f.rx.core = to | IN_TRANSIT;
        self.counters.moved_out += 1;
        // The flow is in the ring before its lock is released: what this core hands on afterwards comes behind it.
        let is_sent = self.others.send(to, message, &[]).is_ok();
        debug_assert!(is_sent, "there was room");
    }

    /// Tells core `to` that all flows of the move have gone.
    #[cold]
    pub(crate) fn end_move(&mut self, to: u8) {
        if self.others.send(to, Message::Moved, &[]).is_err() {
            self.stalled = Some(Task::Moved(to));
        }
    }
}

impl Core {
    /// True when this core lists the flow: for its timers, its turn, its events or its news. For checks of the invariant that a flow is in
    /// the lists of the core that serves it only.
    #[must_use]
    pub fn lists(&self, flow: FlowId) -> bool {
        self.state.lists.contains(flow)
    }

    /// Number of frames that are parked until their flows come.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.inboxes.get(self.index as usize).map_or(0, flow::Consumer::len)
    }

    /// One bit for each other core that sleeps and has news or messages now.
    #[cold]
    pub(crate) fn wakes_cores(&mut self) -> u32 {
        std::mem::take(&mut self.state.wakes_cores) | self.state.others.must_wake()
    }

    /// Takes in what other cores have handed on, then what was parked, if flows have come; then carries out the slow path's commands. Returns
    /// the number of messages and commands.
    #[cold]
    pub(crate) fn hear_others<P: Port + ?Sized>(&mut self, port: &mut P) -> u32 {
        self.state.answer_slow_path();
        self.state.others.flush();
        if let Some(task) = self.state.stalled.take() {
            self.perform(task, port);
        }
        let mut count = 0;
        for _ in 0..self.arriving.len() {
            let flow = self.arriving.pop_front();
            flow.into_iter().for_each(|flow| self.on_message(flow, port));
        }
        for i in 0..self.inboxes.len() {
            if i != self.index as usize {
                count += self.hear(i, COMMANDS_MAX, port);
            }
        }
        if std::mem::take(&mut self.state.has_arrivals) {
            self.state.others.is_sorting = true;
            let parked = self.inboxes[self.index as usize].len();
            count += self.hear(self.index as usize, parked, port);
            self.state.others.is_sorting = false;
        }
        if self.state.stalled.is_none() { count + self.obey(port) } else { count }
    }

    /// Takes up to `most` messages out of one ring. Returns their number.
    fn hear<P: Port + ?Sized>(&mut self, from: usize, most: usize, port: &mut P) -> u32 {
        for count in 0..most {
            let Self { flows, homes, inboxes, state, .. } = self;
            let message = inboxes[from].pop(|message, frame| match message {
                Message::Frame { merged } => {
                    state.handed_on(flows, homes, frame, merged, port);
                    None
                }
                message => Some(message),
            });
            match message {
                None => return count as u32,
                Some(None) => {}
                Some(Some(message)) => self.on_message(message, port),
            }
        }
        most as u32
    }

    fn on_message<P: Port + ?Sized>(&mut self, message: Message, port: &mut P) {
        match message {
            Message::Frame { .. } => {}
            Message::Task(task) => self.perform(task, port),
            message @ Message::Flow { .. } => self.take_in(message, port),
            Message::Moved => {
                self.state.others.expected = GroupSet::default();
                self.state.answers.has_taken = true;
                self.state.has_arrivals = true;
            }
        }
    }

    /// Takes in a flow that another core has handed over. If its record is busy, or this core does not know its region yet, it waits.
    fn take_in<P: Port + ?Sized>(&mut self, message: Message, port: &mut P) {
        let Self { flows, homes, state, .. } = self;
        let Message::Flow { flow: id, listed, record, gaps } = message else { return };
        let mut again = Some((record, gaps));
        if let Some(mut guard) = flows.lock_briefly(id)
            && let Some(mut w) = Work::new(id, guard.parts(), homes)
            && let Some((record, gaps)) = again.take()
        {
            debug_assert_eq!(w.f.rx.core, state.index | IN_TRANSIT, "it was handed to this core");
            w.f.rx.core = state.index;
            state.records.put_in(w.f.cold, record);
            state.gaps.put_in(w.f.cold, gaps);
            state.lists.put_in(id, w.f.rx.region, w.f.rx.slot, &listed);
            state.counters.moved_in += 1;
            // From now on the application rings here. What it has written until then is seen now, or a bell is passed on.
            stream::watch(w.own, Some(u32::from(state.index)));
            stream::barrier();
            state.rung(&mut w, port);
        }
        state.has_arrivals = true;
        self.arriving.extend(again.map(|(record, gaps)| Message::Flow { flow: id, listed, record, gaps }));
    }
}

impl State {
    /// A frame that another core has handed on, or that was parked here.
    fn handed_on<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        frame: &[u8],
        merged: Option<Gso>,
        port: &mut P,
    ) {
        let Ok(Packet { body: Body::Tcp(packet), .. }) = Packet::parse(frame, RxChecksum::Verified) else {
            return;
        };
        let mut seen = Seen::handed_over(flows, packet);
        seen.look_up(flows);
        self.packet(flows, homes, &mut seen, Frame { bytes: frame, merged: &merged }, port);
    }
}
