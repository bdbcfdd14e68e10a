//! Builds one segment in a port buffer: headers, options, payload copied from the application's ring.

use crate::counters::Cause;
use crate::payload::{checked, data_len, lent, read};
use crate::setup::{State, Work};
use base::SeqNumber;
use flow::{FlowMut, class, state};
use port::{Checksum, Gso, GsoKind, PacketBuf, Port};
use queue::Ring;
use queue::stream::{Readable, readable};
use shm::Side;
use wire::{
    CommonHeaders, Ecn, IpParameters, MacAddr, TcpFlags, TcpHeader, TcpOptions, Timestamps, TxChecksum,
};

/// Offset of the TCP header in a frame, after Ethernet's and IPv4's or IPv6's (without options).
const TCP_V4: u16 = 14 + 20;
const TCP_V6: u16 = 14 + 40;

/// A segment to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) seq: SeqNumber,
    /// The ring in which the payload begins; `None` without payload.
    pub(crate) ring: Option<Ring>,
    /// Most payload bytes that lie in `ring`; the rest lies in the application's next ring.
    pub(crate) in_ring: u32,
    /// Stream position of the payload.
    pub(crate) position: u64,
    pub(crate) len: u32,
    pub(crate) flags: TcpFlags,
    /// The segment is a retransmission.
    pub(crate) is_again: bool,
    /// Bytes that the application has written behind its payload.
    pub(crate) rest: u32,
}

/// Copies the end of a payload that spans two rings: `rest`, from `position` on. False when the application has broken the rules
/// in the meantime.
#[cold]
fn read_next(w: &Work<'_>, position: u64, rest: &mut [u8]) -> bool {
    let found = readable(w.peer, position, data_len(w)).and_then(|found| checked(w, found, position, 0));
    let Ok(Some(Readable { ring, len, .. })) = found else { return false };
    if len < rest.len() {
        return false;
    }
    read(w, ring, position, rest);
    true
}

/// Copies the payload behind `start` bytes of headers. False when the buffer is too small, or the application has broken the
/// rules in the meantime.
#[inline]
fn place_payload(w: &Work<'_>, out: &Out, start: usize, buf: &mut PacketBuf) -> bool {
    let Some(ring) = out.ring else { return true };
    let Some(payload) = buf.storage_mut().get_mut(start..start + out.len as usize) else { return false };
    let (payload, rest) = payload.split_at_mut(payload.len().min(out.in_ring as usize));
    read(w, ring, out.position, payload);
    rest.is_empty() || read_next(w, out.position + u64::from(out.in_ring), rest)
}

/// The ECN field of a segment of a flow that uses ECN. "ECT MUST NOT be set in retransmissions, window probes or pure ACKs" (RFC 3168
/// section 6.1.5).
fn codepoint(f: &FlowMut<'_>, out: &Out) -> Ecn {
    let is_forbidden = f.cold.accurate.is_agreed() && !f.cold.accurate.may_mark();
    if out.len > 0 && !out.is_again && !is_forbidden { Ecn::Ect0 } else { Ecn::NotEct }
}

/// The congestion flags of an acknowledgement while `state::ECHO_CE` is set.
#[inline(never)]
fn echo(f: &mut FlowMut<'_>, out: &Out) -> TcpFlags {
    if !f.cold.accurate.is_agreed() {
        return TcpFlags::ECE;
    }
    let has_blocks = f.rx.has_ahead > 0 || f.rx.has(state::REPORT_DUPLICATE);
    let is_pure = out.len == 0 && !out.flags.contains(TcpFlags::FIN) && !has_blocks;
    TcpFlags::NONE.with_ace(f.cold.accurate.tell(is_pure))
}

impl Out {
    /// A segment without payload.
    pub(crate) const fn bare(seq: SeqNumber, flags: TcpFlags) -> Self {
        Self { seq, ring: None, in_ring: 0, position: 0, len: 0, flags, is_again: false, rest: 0 }
    }
}

impl State {
    /// Sends `out` with the current acknowledgement and window. False, and nothing changed, when the port is full.
    #[must_use]
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
            match out.ring.filter(|_| self.lends(&w.f, out)) {
                Some(ring) => {
                    port.commit_with(lent(w, Side::One, ring, out.position, out.len as usize));
                }
                None => port.commit(),
            }
            self.count_segment(out.len);
        }
        self.note_acknowledged(w);
        if out.len == 0 {
            w.f.rx.clear(state::REPORT_DUPLICATE);
        }
        true
    }

    /// True for a super-frame that the port copies from the ring itself: it is not copied here, and the port computes its checksum.
    #[inline(always)]
    fn lends(&self, f: &FlowMut<'_>, out: &Out) -> bool {
        out.len > u32::from(f.tx.mss) && self.capabilities.gathers && out.len <= out.in_ring
    }

    #[inline]
    pub(crate) fn count_segment(&mut self, len: u32) {
        self.sent += 1;
        self.counters.segments_out += 1;
        self.counters.bytes_out += u64::from(len);
        self.counters.pure_acks_out += u64::from(len == 0);
    }

    /// The segment that was built acknowledges all data received so far: no acknowledgement is due any more.
    #[inline]
    pub(crate) fn note_acknowledged(&mut self, w: &mut Work<'_>) {
        w.f.rx.last_ack = w.f.rx.rcv_nxt;
        if w.f.rx.has(state::ACK_DUE) {
            self.lists.acks.remove(w.id.0);
        }
        w.f.rx.clear(state::ACK_NOW | state::ACK_DUE);
    }

    /// Writes the frame. False when it does not fit: the slow path gave the flow an MSS longer than the port's frames.
    #[inline]
    fn build(&mut self, w: &mut Work<'_>, out: &Out, buf: &mut PacketBuf) -> bool {
        let f = &mut w.f;
        let header = TcpHeader {
            src_port: f.tx.local_port,
            dst_port: f.tx.peer_port,
            seq: out.seq,
            ack: f.rx.rcv_nxt,
            flags: self.flags(f, out),
            window: Self::window_field(f),
            urgent: self.urgent_pointer,
        };
        let ecn = if f.rx.has(state::ECN) { codepoint(f, out) } else { Ecn::NotEct };
        let few = state::TIMESTAMPS | state::V6 | state::REPORT_DUPLICATE;
        let is_common = f.rx.flags & few == state::TIMESTAMPS && f.rx.has_ahead == 0;
        if !is_common || out.len > u32::from(f.tx.mss) {
            return self.build_other(w, out, &header, ecn, buf);
        }
        place_payload(w, out, CommonHeaders::LEN, buf)
            && self.write_common(&mut w.f, header, ecn, out.len, buf)
    }

    /// Writes the headers of a common segment in front of its `len` bytes of payload. False when the buffer is too small.
    #[inline(always)]
    pub(crate) fn write_common(
        &mut self,
        f: &mut FlowMut<'_>,
        tcp: TcpHeader,
        ecn: Ecn,
        len: u32,
        buf: &mut PacketBuf,
    ) -> bool {
        let headers = CommonHeaders {
            src_mac: self.mac.0,
            dst_mac: f.tx.peer_mac,
            src: f.tx.local_v4,
            dst: f.tx.peer_v4,
            dscp: f.tx.traffic & class::DSCP,
            ecn,
            hop_limit: self.config.hop_limit,
            identification: self.identification,
            dont_fragment: !f.tx.may_fragment,
            tcp,
            timestamps: self.timestamps(f),
        };
        let Some(place) = buf.storage_mut().first_chunk_mut() else { return false };
        headers.emit(len as usize, place);
        buf.set_len(CommonHeaders::LEN + len as usize);
        self.count_out(f, len, 1);
        if self.capabilities.tx_checksum {
            buf.meta.checksum =
                Checksum::Partial { start: TCP_V4, offset: TcpHeader::CHECKSUM_OFFSET as u16 };
        } else {
            CommonHeaders::complete(buf.frame_mut());
        }
        true
    }

    /// Writes a super-frame, or a segment with headers that are not of the common kind.
    #[inline(never)]
    fn build_other(
        &mut self,
        w: &mut Work<'_>,
        out: &Out,
        header: &TcpHeader,
        ecn: Ecn,
        buf: &mut PacketBuf,
    ) -> bool {
        let f = &mut w.f;
        let options = self.options(f, out);
        let tuple = f.addresses.tuple(f.rx, f.tx);
        let mut ip = IpParameters::new(self.mac, MacAddr(f.tx.peer_mac));
        (ip.identification, ip.hop_limit, ip.dscp) =
            (self.identification, self.config.hop_limit, f.tx.traffic & class::DSCP);
        (ip.dont_fragment, ip.ecn) = (!f.tx.may_fragment, ecn);
        let start = wire::tcp_headers_len(&ip, &tuple, &options);
        let len = out.len as usize;
        let is_lent = self.lends(&w.f, out);
        if !(is_lent || place_payload(w, out, start, buf)) {
            return false;
        }
        let mss = w.f.tx.mss;
        let segments = len.div_ceil(usize::from(mss)).max(1);
        self.count_out(&mut w.f, out.len, segments as u32);
        let is_partial = self.capabilities.tx_checksum || segments > 1;
        let tx = if is_partial { TxChecksum::Partial } else { TxChecksum::Full };
        let written = wire::emit_tcp(&ip, &tuple, header, &options, len, tx, buf.storage_mut());
        let is_v4 = tuple.src.addr.is_ipv4();
        buf.set_len(if is_lent { start } else { start + len });
        if is_partial {
            let tcp = if is_v4 { TCP_V4 } else { TCP_V6 };
            buf.meta.checksum = Checksum::Partial { start: tcp, offset: TcpHeader::CHECKSUM_OFFSET as u16 };
        }
        if segments > 1 {
            let kind = if is_v4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
            // With accurate ECN a super-frame has no CWR bit: see `fits_super_frame`.
            let ecn = header.flags.contains(TcpFlags::CWR);
            buf.meta.gso = Some(Gso { kind, segment_size: mss, header_len: start as u16, ecn });
        }
        written.is_ok()
    }

    /// Counts `segments` segments that carry `len` bytes together.
    #[inline]
    fn count_out(&mut self, f: &mut FlowMut<'_>, len: u32, segments: u32) {
        self.identification = self.identification.wrapping_add(segments as u16);
        let counters = &mut f.cold.counters;
        counters.segments_out = counters.segments_out.wrapping_add(segments);
        counters.data_out = counters.data_out.wrapping_add(if len > 0 { segments } else { 0 });
    }

    #[inline]
    fn flags(&self, f: &mut FlowMut<'_>, out: &Out) -> TcpFlags {
        let mut flags = out.flags;
        if f.rx.has(state::ECHO_CE) {
            flags = flags.with(echo(f, out));
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
    fn timestamps(&self, f: &FlowMut<'_>) -> Timestamps {
        Timestamps { value: f.cold.timestamp(self.now), echo: f.rx.ts_recent }
    }

    fn options(&self, f: &FlowMut<'_>, out: &Out) -> TcpOptions {
        let mut options = TcpOptions::NONE;
        if f.rx.has(state::TIMESTAMPS) {
            options.timestamps = Some(self.timestamps(f));
        }
        // Blocks on data segments would push full ones over the MTU; gaps are acknowledged at once, by segments without data.
        let has_blocks = f.rx.has_ahead > 0 || f.rx.has(state::REPORT_DUPLICATE);
        if has_blocks && out.len == 0 && f.rx.has(state::SACK) {
            options.sack = self.sack_blocks(f);
        }
        options
    }
}
