//! Stages one and two of a batch (parse, look up), and the routing of each packet in stage three: to its flow, or to the slow path.

use crate::counters::{Cause, Counters};
use crate::payload::{lent, write};
use crate::predict::Predicted;
use crate::setup::{Home, Miss, State, Work};
use base::SeqNumber;
use flow::{FRAME_COPY_MAX, FlowId, Flows, FrameReason, class, state};
use port::{Checksum, Gso, PacketBuf, Port};
use shm::Side;
use std::net::IpAddr;
use wire::{Addressee, Body, CommonHeaders, CommonSegment, MacAddr, Packet, RxChecksum, TcpFlags, TcpPacket};

/// What is known of one packet of the batch; the array of them is reused for every batch.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    kind: Kind,
    /// No later packet of the batch belongs to this flow.
    is_last: bool,
    flow: Option<FlowId>,
    /// Region and slot of the flow's application, once `prefetch_slot` has looked them up.
    place: (u16, u32),
    hash: u64,
    /// The parsed packet. For a common segment filled lazily: only if header prediction fails.
    packet: TcpPacket,
}

/// What kind of packet it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Malformed: dropped and counted.
    Nothing,
    /// A well-formed frame that is not TCP.
    NotTcp,
    /// TCP: `hash` and `packet` of [`Seen`] are valid.
    Tcp,
    /// TCP, and a [`CommonSegment`]: `hash` is valid, `packet` is not yet.
    Common,
}

impl Seen {
    pub(crate) const NOTHING: Self = Self {
        kind: Kind::Nothing,
        is_last: true,
        flow: None,
        place: (0, 0),
        hash: 0,
        packet: TcpPacket::EMPTY,
    };

    /// Stage one: parses the frame, hashes its addresses and prefetches the table's bucket.
    #[inline]
    pub(crate) fn parse(&mut self, flows: &Flows, packet: &PacketBuf, counters: &mut Counters) {
        let rx = match packet.meta.checksum {
            Checksum::Unknown => RxChecksum::Verify,
            Checksum::Valid => RxChecksum::Verified,
            Checksum::Partial { .. } => RxChecksum::Partial,
        };
        let table = flows.table();
        if let Some(segment) = CommonSegment::read(packet.frame(), rx) {
            self.kind = Kind::Common;
            self.hash = table.hash_v4(segment.tuple());
            return table.prefetch(self.hash);
        }
        self.parse_other(packet.frame(), rx, counters);
        if self.kind == Kind::Tcp {
            self.hash = table.hash(&self.packet.tuple());
            table.prefetch(self.hash);
        }
    }

    /// Parses a frame that is not a common segment, layer by layer.
    #[inline(never)]
    fn parse_other(&mut self, frame: &[u8], rx: RxChecksum, counters: &mut Counters) {
        match Packet::parse(frame, rx) {
            Ok(Packet { body: Body::Tcp(packet), .. }) => (self.kind, self.packet) = (Kind::Tcp, packet),
            Ok(_) => self.kind = Kind::NotTcp,
            Err(reason) => {
                counters.drop(reason);
                self.kind = Kind::Nothing;
            }
        }
    }

    /// Stage one for a packet that the slow path hands over.
    pub(crate) fn handed_over(flows: &Flows, packet: TcpPacket) -> Self {
        let hash = flows.table().hash(&packet.tuple());
        Self { kind: Kind::Tcp, hash, packet, ..Self::NOTHING }
    }

    /// Fills `packet` from a common segment, so that it can be treated as any other TCP packet.
    fn complete(&mut self, frame: &[u8]) {
        if self.kind == Kind::Common
            && let Some(segment) = CommonSegment::again(frame)
        {
            self.packet.take_common(&segment);
            self.kind = Kind::Tcp;
        }
    }

    /// The live flow with the segment's addresses, and `ReceiveLine::core` of it.
    fn find(&self, flows: &Flows) -> Option<(FlowId, u8)> {
        let tuple = self.packet.tuple();
        let mut core = 0;
        let found = flows.table().find(self.hash, |id| {
            flows.lock_briefly(id).is_some_and(|mut guard| {
                let f = guard.parts();
                core = f.rx.core;
                let is_live = f.rx.has(state::LIVE) && !f.rx.has(state::LEAVING);
                is_live && f.addresses.matches(f.rx, f.tx, &tuple)
            })
        });
        found.map(|id| (id, core))
    }

    /// Stage two: finds the first flow with this hash. Its addresses are compared in stage three, when the record is in the cache.
    #[inline]
    pub(crate) fn look_up(&mut self, flows: &Flows) {
        self.flow = None;
        if matches!(self.kind, Kind::Tcp | Kind::Common) {
            self.flow = flows.table().find(self.hash, |_| true);
            if let Some(id) = self.flow {
                flows.prefetch(id);
            }
        }
    }

    /// At the end of stage two: prefetches the application's slot, and the flow's entries in the lists of delayed acknowledgements
    /// and of lent rings.
    #[inline]
    pub(crate) fn prefetch_slot(&mut self, flows: &Flows, homes: &[Option<Home>], state: &State) {
        let Some(id) = self.flow else { return };
        state.lists.acks.prefetch(id.0);
        state.lists.lent.prefetch(id.0);
        self.place = flows.slot_of(id);
        let (region, slot) = self.place;
        if let Some(Some(home)) = homes.get(usize::from(region)) {
            let region = home.region.region();
            region.prefetch_half(Side::Zero, slot, true);
            region.prefetch_half(Side::One, slot, false);
        }
    }

    /// In stage three, `ahead` packets before this packet's turn: prefetches the line that takes the flow's next byte, in the ring it
    /// has, or in the one that will be lent to it. Done for a flow's last packet of the batch; a request is usually one packet.
    #[inline]
    pub(crate) fn prefetch_room(&self, homes: &[Option<Home>], state: &State, ahead: usize) {
        let (region, slot) = self.place;
        let Some(id) = self.flow.filter(|_| self.is_last) else { return };
        if let Some(Some(home)) = homes.get(usize::from(region))
            && let Some((own, _)) = home.region.halves(slot)
        {
            if state.lists.lent.contains(id.0) {
                home.prefetch_end(Side::Zero, own, 0);
            } else if let Some(ring) = home.pool.ahead(ahead) {
                home.prefetch_start(ring, own);
            }
        }
    }
}

/// A waiting frame that may go before others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Express {
    /// The next segment of this flow; the one after it begins at this number.
    Flow(FlowId, SeqNumber),
    /// A SYN or SYN-ACK of no flow.
    Syn,
    /// Another TCP segment of no flow.
    Stray,
}

/// A received frame, with what the port said of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) bytes: &'a [u8],
    /// What the port says of a merged super-frame. A reference: it is read only for a segment of a new size.
    pub(crate) merged: &'a Option<Gso>,
}

/// Marks the last packet of each flow in the batch: after it the flow's turn ends, once per batch.
#[inline]
pub(crate) fn mark_last(seen: &mut [Seen]) {
    let mut filter = 0u64;
    for i in (0..seen.len()).rev() {
        let Some(id) = seen[i].flow else { continue };
        let bit = 1u64 << (id.0.wrapping_mul(0x9E37_79B9) >> 26);
        let maybe_later = filter & bit != 0;
        filter |= bit;
        let is_later = maybe_later && seen[i + 1..].iter().any(|seen| seen.flow == Some(id));
        seen[i].is_last = !is_later;
    }
}

impl State {
    /// Says whether a waiting frame may go before others: the next segment in order of an express flow, which asks to be one, or has a small receive
    /// window, so that its peer has at most the initial window of bytes under way; or a segment of no flow, which begins a connection.
    /// `taken`: the segment of a flow that was taken last and is not handled yet.
    #[inline(always)]
    pub(crate) fn express(
        &self,
        flows: &Flows,
        frame: &[u8],
        taken: Option<(FlowId, SeqNumber)>,
    ) -> Option<Express> {
        // The checksum is verified when the packet is handled.
        let (hash, seq, len) = match CommonSegment::read(frame, RxChecksum::Verified) {
            Some(s) => (flows.table().hash_v4(s.tuple()), s.seq(), s.payload.len()),
            None => match Packet::parse(frame, RxChecksum::Verified) {
                Ok(Packet { body: Body::Tcp(p), .. }) => {
                    (flows.table().hash(&p.tuple()), p.header.seq, p.payload.len())
                }
                _ => return None,
            },
        };
        let Some(id) = flows.table().find(hash, |_| true) else { return self.express_without_flow(frame) };
        let mut guard = flows.lock_briefly(id)?;
        let f = guard.parts();
        match f.tx.traffic & !class::DSCP {
            class::EXPRESS => {}
            class::BULK => return None,
            _ if self.lists.grown.contains(id.0) => return None,
            _ => {}
        }
        let expected = match taken {
            Some((flow, next)) if flow == id => next,
            _ => f.rx.rcv_nxt,
        };
        (seq == expected).then(|| Express::Flow(id, expected.plus(len as u32)))
    }

    /// The same of a segment of no flow, which begins a connection. What is for another station or address, and so will be dropped, takes no place.
    #[cold]
    #[inline(never)]
    fn express_without_flow(&self, frame: &[u8]) -> Option<Express> {
        let Ok(Packet { body: Body::Tcp(p), .. }) = Packet::parse(frame, RxChecksum::Verified) else {
            return None;
        };
        let to = MacAddr(*frame.first_chunk()?);
        self.addressee().admit_tcp(to, p.ip.dst).ok()?;
        Some(if p.header.flags.contains(TcpFlags::SYN) { Express::Syn } else { Express::Stray })
    }

    /// Stage three: gives the packet to its flow, or to the slow path.
    #[inline]
    pub(crate) fn packet<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        seen: &mut Seen,
        frame: Frame<'_>,
        port: &mut P,
    ) {
        let Some(id) = seen.flow else {
            return match seen.kind {
                Kind::Nothing => {}
                Kind::NotTcp => self.no_tcp(frame.bytes),
                Kind::Tcp | Kind::Common => self.unknown(flows, seen, frame),
            };
        };
        let Some(mut guard) = flows.lock_briefly(id) else {
            self.lists.acks.push_front(id.0, self.now.as_ns());
            return self.put_off(id, seen, frame);
        };
        let Some(mut w) = Work::new(id, guard.parts(), homes) else {
            drop(guard);
            return self.look_again(flows, homes, seen, frame, port);
        };
        let is_last = seen.is_last || self.runs_now(&w);
        if seen.kind == Kind::Common
            && let Some(segment) = CommonSegment::again(frame.bytes)
        {
            let longest = w.f.cold.rcv_mss;
            let put = |w: &Work<'_>, ring, position| write(w, ring, position, segment.payload);
            match self.arrive(&mut w, &segment, is_last, longest.into(), put) {
                Predicted::Done => return,
                Predicted::Finish => return self.finish(&mut w, port),
                Predicted::No => seen.packet.take_common(&segment),
            }
        }
        let is_ours = w.f.rx.has(state::LIVE)
            && !w.f.rx.has(state::LEAVING)
            && w.f.rx.core == self.index
            && w.f.addresses.matches(w.f.rx, w.f.tx, &seen.packet.tuple());
        if !is_ours {
            drop(guard);
            return self.look_again(flows, homes, seen, frame, port);
        }
        self.receive(&mut w, &seen.packet, frame, port);
        if is_last {
            self.finish(&mut w, port);
        }
    }

    /// Stage three of a packet of which the port has given only the headers. False: it is handled. True: it is now complete, to be
    /// handled as any other.
    #[inline(never)]
    pub(crate) fn head<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        seen: &Seen,
        packet: &mut PacketBuf,
        port: &mut P,
    ) -> bool {
        if self.head_arrives(flows, homes, seen, packet, port) {
            return false;
        }
        if port.complete(packet) {
            return true;
        }
        if let Some(id) = seen.flow.filter(|_| seen.is_last) {
            // Earlier packets of the batch may have left work for the end of the flow's turn.
            let done = self.with(flows, homes, id, |state, w| {
                if !w.f.rx.has(state::LEAVING) {
                    state.finish(w, port);
                }
            });
            if done == Err(Miss::Busy) {
                self.lists.acks.push_front(id.0, self.now.as_ns());
            }
        }
        false
    }

    /// Takes the next in-order segment of a calm flow from the port straight into the application's ring. False, and nothing
    /// done, when the segment is anything else.
    fn head_arrives<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        seen: &Seen,
        packet: &PacketBuf,
        port: &mut P,
    ) -> bool {
        let (Some(id), Some(ticket), Kind::Common) = (seen.flow, packet.ticket(), seen.kind) else {
            return false;
        };
        let Some(mut guard) = flows.lock_briefly(id) else { return false };
        let Some(mut w) = Work::new(id, guard.parts(), homes) else { return false };
        let Some(segment) = CommonSegment::again(packet.frame()) else { return false };
        // `receive` must look at a segment larger than all before it, because it updates `rcv_mss`.
        let size = packet.meta.gso.map_or(segment.payload.len(), |gso| gso.segment_size.into());
        let longest = if size <= usize::from(w.f.cold.rcv_mss) { u32::MAX } else { 0 };
        let put = |w: &Work<'_>, ring, position| {
            let into = lent(w, Side::Zero, ring, position, segment.payload.len());
            port.take(packet.frame(), ticket, CommonHeaders::LEN, into)
        };
        let is_last = seen.is_last || self.runs_now(&w);
        match self.arrive(&mut w, &segment, is_last, longest, put) {
            Predicted::No => return false,
            Predicted::Finish => self.finish(&mut w, port),
            Predicted::Done => {}
        }
        true
    }

    /// The first flow with this hash has other addresses or another core: compares the addresses of all flows with the hash. A packet
    /// that came to the wrong core's queue is handed on to its core.
    #[cold]
    fn look_again<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        seen: &mut Seen,
        frame: Frame<'_>,
        port: &mut P,
    ) {
        seen.complete(frame.bytes);
        let Some((id, core)) = seen.find(flows) else { return self.unknown(flows, seen, frame) };
        if core != self.index {
            return self.hand_on(core, seen.packet.tuple().group(), frame);
        }
        let packet = &seen.packet;
        let done = self.with(flows, homes, id, |state, w| {
            state.receive(w, packet, frame, port);
            state.finish(w, port);
        });
        if done == Err(Miss::Busy) {
            self.put_off(id, seen, frame);
        }
    }

    /// A segment of no flow: hands it to the slow path. If the ring has no room its sender repeats it; a RST is not
    /// repeated, so if its flow is only just being installed, the core acknowledges to make the peer send it again.
    #[cold]
    fn unknown(&mut self, flows: &Flows, seen: &mut Seen, frame: Frame<'_>) {
        seen.complete(frame.bytes);
        let to = frame.bytes.first_chunk().map_or(MacAddr::ZERO, |to| MacAddr(*to));
        let admitted = self.addressee().admit_tcp(to, seen.packet.ip.dst);
        if let Err(reason) = admitted {
            return self.counters.drop(reason);
        }
        let flags = seen.packet.header.flags;
        let is_syn = flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK);
        let reason = if is_syn { FrameReason::Syn } else { FrameReason::UnknownFlow };
        if self.except(reason, frame.bytes) || !flags.contains(TcpFlags::RST) {
            return;
        }
        flows.note_reset_lost(self.now);
        // A flow of another core needs no help: this segment is handed on when it comes again.
        if let Some((id, _)) = seen.find(flows).filter(|(_, core)| *core == self.index) {
            self.ask_peer(id);
        }
    }

    /// Hands a well-formed frame that is not TCP to the slow path, unless it is for another host: such a frame would take ring space.
    #[cold]
    fn no_tcp(&mut self, frame: &[u8]) {
        let parsed = Packet::parse(frame, RxChecksum::Verified);
        let admitted = parsed.and_then(|packet| self.addressee().admit(&packet, frame));
        match admitted {
            // If the ring has no room, the sender repeats the frame.
            Ok(()) => _ = self.except(FrameReason::NotTcp, frame),
            Err(reason) => self.counters.drop(reason),
        }
    }

    /// The check that frames are for us. If our addresses are not known, every address is accepted.
    fn addressee(&self) -> Addressee<impl Fn(IpAddr) -> bool> {
        let own = &self.config.addresses;
        Addressee { mac: self.mac, owns: move |addr| own.is_empty() || own.contains(&addr) }
    }

    /// Hands a segment to the slow path when that holds its flow's record; the slow path returns it later. A frame too long for the
    /// ring is dropped; the peer retransmits it.
    #[cold]
    fn put_off(&mut self, id: FlowId, seen: &mut Seen, frame: Frame<'_>) {
        seen.complete(frame.bytes);
        let is_reset = seen.packet.header.flags.contains(TcpFlags::RST);
        if frame.bytes.len() > FRAME_COPY_MAX {
            self.counters.count(Cause::Busy);
        } else if !self.except(FrameReason::Busy, frame.bytes) && is_reset {
            self.ask_peer(id);
        }
    }

    /// Locks the live flow `id` of this core and runs `work` on it.
    #[inline]
    pub(crate) fn with<R>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        id: FlowId,
        work: impl FnOnce(&mut Self, &mut Work<'_>) -> R,
    ) -> Result<R, Miss> {
        let mut guard = flows.lock_briefly(id).ok_or(Miss::Busy)?;
        let f = guard.parts();
        if !f.rx.has(state::LIVE) {
            return Err(Miss::Gone);
        }
        if f.rx.core != self.index {
            return Err(Miss::Elsewhere(f.rx.core));
        }
        let mut w = Work::new(id, f, homes).ok_or(Miss::Gone)?;
        Ok(work(self, &mut w))
    }
}
