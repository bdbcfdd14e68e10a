//! Commands of the slow path to a core.

use crate::classify::{Frame, Seen};
use crate::core::Core;
use crate::segment::Out;
use crate::setup::{COMMANDS_MAX, Home, Miss, State, Work};
use crate::task::Task;
use flow::{Command, Exception, state};
use port::Port;
use shm::application_flags;
use wire::{Body, Packet, RxChecksum, TcpFlags};

impl Core {
    /// Carries out the commands that wait. Returns their number.
    pub(crate) fn obey<P: Port + ?Sized>(&mut self, port: &mut P) -> u32 {
        let mut count = 0;
        while count < COMMANDS_MAX as u32 {
            let Self { flows, commands, homes, awake, state, .. } = self;
            let task = commands.pop(|command, frame| match command {
                Command::AddRegion { index, region, pool } => {
                    let share = region.limits().share();
                    if let Some(home) = homes.get_mut(usize::from(index)).filter(|home| home.is_none()) {
                        *home = Some(Home { region, pool, heard_at: state.now, is_resting: false });
                        awake.push(index);
                        state.lists.backlog.admit(index, share);
                    }
                    Task::Done
                }
                Command::RemoveRegion { index } => {
                    awake.retain(|i| *i != index);
                    state.rouse(homes, index);
                    state.roused.retain(|i| *i != index);
                    drain(homes, index, state);
                    Task::Done
                }
                Command::Frame => {
                    match state.late.send(frame, port) {
                        Ok(()) => state.sent += 1,
                        Err(cause) => state.counters.count(cause),
                    }
                    Task::Done
                }
                Command::Receive => {
                    let Ok(Packet { body: Body::Tcp(packet), .. }) =
                        Packet::parse(frame, RxChecksum::Verified)
                    else {
                        return Task::Done;
                    };
                    let mut seen = Seen::handed_over(flows, packet);
                    seen.look_up(flows);
                    state.packet(flows, homes, &mut seen, Frame { bytes: frame, merged: &None }, port);
                    Task::Done
                }
                Command::Transmit { flow } => Task::Transmit(flow),
                Command::Probe { flow } => Task::Probe(flow),
                Command::ProbePath { flow, len } => Task::ProbePath(flow, len),
                Command::Ack { flow } => Task::Ack(flow),
                Command::Drop { flow } => Task::Drop(flow),
                Command::Expect { groups, number } => {
                    state.expect(groups, number);
                    Task::Done
                }
                Command::Yield { number } => {
                    state.begin_yield(port, number);
                    Task::Done
                }
                Command::Move { flow, to } => Task::Move(flow, to),
                Command::Moved { to } => Task::Moved(to),
            });
            let Some(task) = task else { break };
            self.perform(task, port);
            count += 1;
            if self.state.stalled.is_some() {
                break;
            }
        }
        count
    }

    /// Does what a command asks for. If another core serves its flow, that core gets it.
    pub(crate) fn perform<P: Port + ?Sized>(&mut self, task: Task, port: &mut P) {
        let Self { flows, homes, state, .. } = self;
        let done = match task {
            Task::Done => Ok(()),
            Task::Move(id, to) => return state.hand_over(flows, id, to),
            Task::Moved(to) => return state.end_move(to),
            Task::Transmit(id) => state.with(flows, homes, id, |s, w| s.rung(w, port)),
            Task::Probe(id) => state.with(flows, homes, id, |s, w| s.probe(w, port)),
            Task::ProbePath(id, len) => state.with(flows, homes, id, |s, w| s.probe_path(w, len, port)),
            Task::Ack(id) => state.with(flows, homes, id, |s, w| {
                w.f.rx.set(state::ACK_NOW);
                s.finish(w, port);
            }),
            Task::Drop(id) => state.with(flows, homes, id, State::drop_flow),
        };
        match (done, task) {
            (Err(Miss::Elsewhere(core)), _) => state.others.pass_on(core, task),
            // Handle the flow as if its application had rung; if the record is busy, look again in the next round.
            (Err(Miss::Busy), Task::Transmit(id)) => {
                state.lists.backlog.push(id.0, flows.slot_of(id).0);
            }
            // `Keeper::remove` has set LEAVING already: the acknowledgement timer will let go of the flow.
            (Err(Miss::Busy), Task::Drop(id)) => state.lists.acks.push_front(id.0, state.now.as_ns()),
            // The flow's region was removed before the flow.
            (Err(Miss::Gone), Task::Drop(id)) => state.forget(flows, id),
            // A probe or challenge that finds the record busy is dropped: the slow path repeats it.
            _ => {}
        }
    }
}

impl State {
    /// Sends a segment below the window, which the peer must answer (RFC 9293 section 3.8.4 on keepalives; it serves as a window
    /// probe as well, because the answer carries the present window).
    ///
    /// If the window is open but too small to be worthwhile, sends as many bytes as it takes instead.
    fn probe<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        if w.f.rx.has(state::BLOCKED) && w.f.tx.snd_wnd > 0 && self.use_sliver(w, port) {
            return;
        }
        self.look_for_urgent(w, application_flags::URGENT);
        if self.urgent_of == w.id.0 {
            // As Linux: where no byte may be sent, the peer learns at least that urgent data exists.
            let _ = self.emit(w, port, &Out::bare(w.f.tx.snd_una, TcpFlags::ACK));
        }
        let out = Out::bare(w.f.tx.snd_una.minus(1), TcpFlags::ACK);
        // If the port is full, the slow path probes again when its timer fires.
        let _ = self.emit(w, port, &out);
    }
}

/// Removes a region and hands it back to the slow path, after the rings kept warm in the pool are returned to it.
fn drain(homes: &mut [Option<Home>], index: u16, state: &mut State) {
    let Some(place) = homes.get_mut(usize::from(index)) else { return };
    let Some(Home { region, mut pool, heard_at, .. }) = place.take() else { return };
    pool.flush(|word| region.page_word(word));
    let full = state.exceptions.push(Exception::Drained { index, region, pool });
    if let Err(Exception::Drained { region, pool, .. }) = full {
        // The exception ring is full: keep the region, without looking at its doorbell; the slow path asks again.
        *place = Some(Home { region, pool, heard_at, is_resting: false });
    }
}
