//! One segment onto the port: headers, options, payload straight from the application's ring.

use crate::counters::Cause;
use crate::out_of_order::sack_blocks;
use crate::setup::{State, Work};
use crate::transmit::{checked, data_len};
use base::SeqNumber;
use flow::{FlowMut, state};
use port::{Checksum, Gso, GsoKind, PacketBuf, Port};
use queue::Ring;
use queue::stream::{Readable, readable};
use shm::Side;
use wire::{Ecn, IpParameters, MacAddr, TcpFlags, TcpHeader, TcpOptions, Timestamps, TxChecksum};

/// What to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) seq: SeqNumber,
    /// Where the payload lies; none without payload.
    pub(crate) ring: Option<Ring>,
    /// How much lies there at most; what is beyond lies in the application's next ring.
    pub(crate) in_ring: u32,
    /// Its stream position.
    pub(crate) position: u64,
    pub(crate) len: u32,
    pub(crate) flags: TcpFlags,
    /// It has been sent before.
    pub(crate) is_again: bool,
}

/// The end of a segment that lies in two rings: `rest` of it from `position` on. False when the application broke the rules
/// meanwhile.
#[cold]
fn read_next(w: &Work<'_>, position: u64, rest: &mut [u8]) -> bool {
    let Some((_, peer)) = w.home.region.halves(w.f.rx.slot) else { return false };
    let found = readable(peer, position, data_len(w)).and_then(|found| checked(w, found, position, 0));
    let Ok(Some(Readable { ring, len, .. })) = found else { return false };
    if len < rest.len() {
        return false;
    }
    let [(a, a_len), (b, _)] = ring.spans(position, rest.len());
    w.home.region.region().read(Side::One, a, &mut rest[..a_len]);
    w.home.region.region().read(Side::One, b, &mut rest[a_len..]);
    true
}

impl Out {
    /// A segment without payload.
    pub(crate) const fn bare(seq: SeqNumber, flags: TcpFlags) -> Self {
        Self { seq, ring: None, in_ring: 0, position: 0, len: 0, flags, is_again: false }
    }
}

impl State {
    /// Sends `out` with the current acknowledgement and window. False, and nothing changed, when the port is full.
    pub(crate) fn emit<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P, out: &Out) -> bool {
        if self.urgent_of == w.id.0 {
            return self.emit_urgent(w, port, out);
        }
        let Some(buf) = port.reserve() else {
            self.counters.count(Cause::PortFull);
            self.is_port_full = true;
            return false;
        };
        if self.build(w, out, buf) {
            port.commit();
            self.sent += 1;
            self.counters.segments_out += 1;
            self.counters.bytes_out += u64::from(out.len);
            self.counters.pure_acks_out += u64::from(out.len == 0);
        }
        // It carries the acknowledgement.
        w.f.rx.last_ack = w.f.rx.rcv_nxt;
        if w.f.rx.has(state::ACK_DUE) {
            self.acks.remove(w.id.0);
        }
        let reported = if out.len == 0 { state::REPORT_DUPLICATE } else { 0 };
        w.f.rx.clear(state::ACK_NOW | state::ACK_DUE | reported);
        true
    }

    /// Writes the frame. False when it cannot be: the slow path gave the flow segments longer than the port's frames.
    #[inline]
    fn build(&mut self, w: &mut Work<'_>, out: &Out, buf: &mut PacketBuf) -> bool {
        let f = &mut w.f;
        let flags = self.flags(f, out);
        let header = TcpHeader {
            src_port: f.tx.local_port,
            dst_port: f.tx.peer_port,
            seq: out.seq,
            ack: f.rx.rcv_nxt,
            flags,
            window: Self::window_field(f),
            urgent: self.urgent_pointer,
        };
        let options = self.options(f, out);
        let tuple = f.addresses.tuple(f.rx, f.tx);
        let mut ip = IpParameters::new(self.mac, MacAddr(f.tx.peer_mac));
        (ip.identification, ip.hop_limit, ip.dscp) = (self.identification, self.config.hop_limit, f.tx.dscp);
        ip.dont_fragment = !f.tx.may_fragment;
        if f.rx.has(state::ECN) && out.len > 0 && !out.is_again {
            // "ECT MUST NOT be set in retransmissions, window probes or pure ACKs" (RFC 3168 section 6.1.5).
            ip.ecn = Ecn::Ect0;
        }
        let start = wire::tcp_headers_len(&ip, &tuple, &options);
        let len = out.len as usize;
        if let Some(ring) = out.ring {
            let Some(payload) = buf.storage_mut().get_mut(start..start + len) else { return false };
            let (payload, rest) = payload.split_at_mut(len.min(out.in_ring as usize));
            let [(a, a_len), (b, b_len)] = ring.spans(out.position, payload.len());
            w.home.region.region().read(Side::One, a, &mut payload[..a_len]);
            if b_len > 0 {
                w.home.region.region().read(Side::One, b, &mut payload[a_len..]);
            }
            if !rest.is_empty() && !read_next(w, out.position + u64::from(out.in_ring), rest) {
                return false;
            }
        }
        let mss = w.f.tx.mss;
        let segments = len.div_ceil(usize::from(mss)).max(1);
        self.identification = self.identification.wrapping_add(segments as u16);
        let counters = &mut w.f.cold.counters;
        counters.segments_out = counters.segments_out.wrapping_add(segments as u32);
        counters.data_out = counters.data_out.wrapping_add(if len > 0 { segments as u32 } else { 0 });
        let is_partial = self.capabilities.tx_checksum || segments > 1;
        let tx = if is_partial { TxChecksum::Partial } else { TxChecksum::Full };
        let written = wire::emit_tcp(&ip, &tuple, &header, &options, len, tx, buf.storage_mut());
        let is_v4 = tuple.src.addr.is_ipv4();
        let tcp = 14 + if is_v4 { 20 } else { 40 };
        buf.set_len(start + len);
        if is_partial {
            buf.meta.checksum = Checksum::Partial { start: tcp, offset: TcpHeader::CHECKSUM_OFFSET as u16 };
        }
        if segments > 1 {
            let kind = if is_v4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
            let ecn = flags.contains(TcpFlags::CWR);
            buf.meta.gso = Some(Gso { kind, segment_size: mss, header_len: start as u16, ecn });
        }
        written.is_ok()
    }

    #[inline]
    fn flags(&self, f: &mut FlowMut<'_>, out: &Out) -> TcpFlags {
        let mut flags = out.flags;
        if f.rx.has(state::ECHO_CE) {
            flags = flags.with(TcpFlags::ECE);
        }
        if f.rx.has(state::SEND_CWR) && out.len > 0 && !out.is_again {
            // "... sets the CWR flag in the TCP header of the first new data packet sent after the window reduction"
            // (RFC 3168 section 6.1.2).
            f.rx.clear(state::SEND_CWR);
            flags = flags.with(TcpFlags::CWR);
        }
        flags
    }

    #[inline]
    fn options(&self, f: &FlowMut<'_>, out: &Out) -> TcpOptions {
        let mut options = TcpOptions::NONE;
        if f.rx.has(state::TIMESTAMPS) {
            options.timestamps = Some(Timestamps { value: f.cold.timestamp(self.now), echo: f.rx.ts_recent });
        }
        // Blocks on data segments would push full ones over the MTU; gaps are acknowledged at once and by themselves.
        let has_blocks = f.rx.intervals > 0 || f.rx.has(state::REPORT_DUPLICATE);
        if has_blocks && out.len == 0 && f.rx.has(state::SACK) {
            options.sack = sack_blocks(f);
        }
        options
    }
}
