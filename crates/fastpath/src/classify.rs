//! Stages one and two of a batch, and the way of each packet in stage three: to its flow, or out.

use crate::counters::{Cause, Counters};
use crate::setup::{Home, State, Work};
use flow::{FlowId, Flows, FrameReason, state};
use port::{Checksum, Gso, PacketBuf, Port};
use wire::{Body, Packet, RxChecksum, TcpPacket};

/// What is known of a packet of the batch.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // One array of these per core, made once.
pub(crate) enum Seen {
    /// Dropped and counted.
    Nothing,
    /// A frame that made sense but is not TCP.
    NotTcp,
    /// TCP.
    Tcp {
        packet: TcpPacket,
        hash: u64,
        flow: Option<FlowId>,
        /// No later packet of the batch is of this flow.
        is_last: bool,
    },
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) bytes: &'a [u8],
    /// Of what the port has merged it. A reference: only a segment of a new size is looked at closely.
    pub(crate) merged: &'a Option<Gso>,
}

/// Why a flow was not worked on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Miss {
    /// The slow path holds the record: look again soon.
    Busy,
    /// The record is free, or its region is gone.
    Gone,
}

/// Stage one.
#[inline]
pub(crate) fn parse(flows: &Flows, packet: &PacketBuf, counters: &mut Counters) -> Seen {
    let rx = match packet.meta.checksum {
        Checksum::Unknown => RxChecksum::Verify,
        Checksum::Valid => RxChecksum::Verified,
        Checksum::Partial { .. } => RxChecksum::Partial,
    };
    match Packet::parse(packet.frame(), rx) {
        Ok(Packet { body: Body::Tcp(packet), .. }) => {
            let hash = flows.table().hash(&packet.tuple());
            flows.table().prefetch(hash);
            Seen::Tcp { packet, hash, flow: None, is_last: true }
        }
        Ok(_) => Seen::NotTcp,
        Err(reason) => {
            counters.drop(reason);
            Seen::Nothing
        }
    }
}

/// Stage two. The addresses are compared in stage three, when the record has arrived.
#[inline]
pub(crate) fn look_up(flows: &Flows, seen: &mut Seen) {
    if let Seen::Tcp { hash, flow, .. } = seen {
        *flow = flows.table().find(*hash, |_| true);
        if let Some(id) = *flow {
            flows.prefetch(id);
        }
    }
}

/// Finds the last packet of each flow: after it the flow is finished with, once per batch.
#[inline]
pub(crate) fn mark_last(seen: &mut [Seen]) {
    let mut filter = 0u64;
    for i in (0..seen.len()).rev() {
        let Seen::Tcp { flow: Some(id), .. } = seen[i] else { continue };
        let bit = 1u64 << (id.0.wrapping_mul(0x9E37_79B9) >> 26);
        let maybe_later = filter & bit != 0;
        filter |= bit;
        let is_later = maybe_later
            && seen[i + 1..].iter().any(|s| matches!(s, Seen::Tcp { flow, .. } if *flow == Some(id)));
        if let Seen::Tcp { is_last, .. } = &mut seen[i] {
            *is_last = !is_later;
        }
    }
}

impl State {
    /// Stage three.
    #[inline]
    pub(crate) fn packet<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        seen: &Seen,
        frame: Frame<'_>,
        port: &mut P,
    ) {
        let (packet, hash, flow, is_last) = match seen {
            Seen::Nothing => return,
            Seen::NotTcp => return self.except(FrameReason::NotTcp, frame.bytes),
            Seen::Tcp { packet, hash, flow, is_last } => (packet, *hash, *flow, *is_last),
        };
        let Some(id) = flow else { return self.except(FrameReason::UnknownFlow, frame.bytes) };
        let Some(mut guard) = flows.lock_briefly(id) else {
            self.counters.count(Cause::Busy);
            return self.acks.push_front(id.0, self.now.as_ns());
        };
        let f = guard.parts();
        let is_ours = f.rx.has(state::LIVE)
            && !f.rx.has(state::LEAVING)
            && f.rx.core == self.index
            && f.addresses.matches(f.rx, f.tx, &packet.tuple());
        let home = homes.get_mut(usize::from(f.rx.region)).and_then(Option::as_mut);
        match home {
            Some(home) if is_ours => {
                let mut w = Work { id, f, home };
                if let Err(reason) = self.receive(&mut w, packet, frame, port) {
                    self.except(reason, frame.bytes);
                }
                if is_last {
                    self.finish(&mut w, port);
                }
            }
            _ => {
                drop(guard);
                self.look_again(flows, homes, packet, hash, frame, port);
            }
        }
    }

    /// The first entry with this hash was another flow's, or another core's: compares addresses of all. A packet that has come to another
    /// core's queue finds its way there by the slow path.
    #[cold]
    fn look_again<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        packet: &TcpPacket,
        hash: u64,
        frame: Frame<'_>,
        port: &mut P,
    ) {
        let (tuple, index) = (packet.tuple(), self.index);
        let found = flows.table().find(hash, |id| {
            flows.lock_briefly(id).is_some_and(|mut guard| {
                let f = guard.parts();
                let is_live = f.rx.has(state::LIVE) && !f.rx.has(state::LEAVING);
                is_live && f.rx.core == index && f.addresses.matches(f.rx, f.tx, &tuple)
            })
        });
        let Some(id) = found else { return self.except(FrameReason::UnknownFlow, frame.bytes) };
        // A record that is busy now costs this packet, which the peer sends again.
        let _ = self.with(flows, homes, id, |state, w| {
            if let Err(reason) = state.receive(w, packet, frame, port) {
                state.except(reason, frame.bytes);
            }
            state.finish(w, port);
        });
    }

    /// Runs `work` on a locked live flow.
    #[inline]
    pub(crate) fn with<R>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        id: FlowId,
        work: impl FnOnce(&mut Self, &mut Work<'_>) -> R,
    ) -> Result<R, Miss> {
        let Some(mut guard) = flows.lock_briefly(id) else {
            self.counters.count(Cause::Busy);
            return Err(Miss::Busy);
        };
        let f = guard.parts();
        let home = homes.get_mut(usize::from(f.rx.region)).and_then(Option::as_mut);
        match home {
            Some(home) if f.rx.has(state::LIVE) => Ok(work(self, &mut Work { id, f, home })),
            _ => Err(Miss::Gone),
        }
    }
}
