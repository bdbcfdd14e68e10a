//! Frames of which the port gives the beginning: their payload goes from the port to where it belongs, and nowhere else.

use crate::peer::Got;
use crate::scene::{MSS, Scene, scene};
use base::Duration;
use port::{Batch, Capabilities, Checksum, Gso, GsoKind, Lent, PacketBuf, Port, Stats, Ticket};
use port_memory::MemoryPort;

/// Ethernet, IPv4, TCP with timestamps.
const HEADERS: usize = 14 + 20 + 32;

/// Gives the beginning of every frame with data.
struct Heads<'a> {
    inner: &'a mut MemoryPort,
    /// By ticket; each once.
    rests: Vec<Option<Vec<u8>>>,
    /// The rest of this one is not to be had.
    lost: Option<u32>,
    taken: u32,
    completed: u32,
}

impl Heads<'_> {
    fn rest(&mut self, Ticket(ticket): Ticket) -> Option<Vec<u8>> {
        self.rests[..ticket as usize].fill(None);
        self.rests[ticket as usize].take().filter(|_| self.lost != Some(ticket))
    }
}

impl Port for Heads<'_> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn receive(&mut self, _batch: &mut Batch) -> usize {
        unreachable!("the fast path wants beginnings")
    }
    fn receive_heads(&mut self, batch: &mut Batch) -> usize {
        self.rests.clear();
        let count = self.inner.receive(batch);
        for packet in batch.packets_mut() {
            packet.meta.checksum = Checksum::Valid;
            if packet.len() > HEADERS {
                let header_len = HEADERS as u16;
                packet.meta.gso =
                    Some(Gso { kind: GsoKind::TcpV4, segment_size: MSS as u16, header_len, ecn: false });
                packet.set_ticket(Some(Ticket(self.rests.len() as u32)));
                self.rests.push(Some(packet.frame().to_vec()));
                packet.frame_mut()[HEADERS..].fill(0xDB);
            }
        }
        count
    }
    fn take(&mut self, frame: &[u8], ticket: Ticket, skip: usize, into: Lent<'_>) -> bool {
        let Some(whole) = self.rest(ticket) else { return false };
        assert_eq!(frame[..skip], whole[..skip]);
        into.fill(&whole[skip..]);
        self.taken += 1;
        true
    }
    fn complete(&mut self, packet: &mut PacketBuf) -> bool {
        let Some(ticket) = packet.ticket() else { return true };
        packet.set_ticket(None);
        let Some(whole) = self.rest(ticket) else { return false };
        packet.frame_mut().copy_from_slice(&whole);
        self.completed += 1;
        true
    }
    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        self.inner.reserve()
    }
    fn commit_with(&mut self, payload: Lent<'_>) {
        self.inner.commit_with(payload);
    }
    fn flush(&mut self) {
        self.inner.flush();
    }
    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

/// A round a moment later; what came of it, how many were taken, and how many completed.
fn poll(s: &mut Scene, lost: Option<u32>) -> (Vec<Got>, u32, u32) {
    s.now = s.now.plus(Duration::from_us(10));
    let mut port = Heads { inner: &mut s.port, rests: Vec::new(), lost, taken: 0, completed: 0 };
    s.host.poll(s.now, &mut port);
    let (taken, completed) = (port.taken, port.completed);
    (s.peer.take(), taken, completed)
}

fn bytes(from: u32, len: u32) -> Vec<u8> {
    (from..from + len).map(|at| (at / 7) as u8).collect()
}

fn data(s: &mut Scene, at: u32, len: u32) {
    s.peer.data(at, 0, &bytes(at, len));
}

/// A flow that has seen segments of its size.
fn begun() -> Scene {
    let mut s = scene();
    data(&mut s, 0, MSS);
    let (_, taken, completed) = poll(&mut s, None);
    assert_eq!((taken, completed), (0, 1), "a new size is looked at");
    assert_eq!(s.recv(), bytes(0, MSS));
    s
}

#[test]
fn what_comes_in_order_is_put_where_the_application_reads_it() {
    let mut s = begun();
    let mut at = MSS;
    // Around the ring's end, too.
    for _ in 0..40 {
        let before = at;
        for len in [MSS, 700, 1, MSS] {
            data(&mut s, at, len);
            at += len;
        }
        let (got, taken, completed) = poll(&mut s, None);
        assert_eq!((taken, completed), (4, 0));
        assert_eq!(got.last().map(|g| g.ack), Some(at), "two segments and more are acknowledged at once");
        assert_eq!(s.recv(), bytes(before, at - before));
    }
    assert_eq!(poll(&mut s, None).1, 0);
}

#[test]
fn what_is_not_expected_is_completed_first() {
    let mut s = begun();
    data(&mut s, 2 * MSS, MSS);
    let (got, taken, completed) = poll(&mut s, None);
    assert_eq!((taken, completed, got.len()), (0, 1, 1), "ahead, and answered");
    assert_eq!(s.recv(), []);
    data(&mut s, MSS, MSS);
    let (got, taken, completed) = poll(&mut s, None);
    assert_eq!((taken, completed), (0, 1), "a gap is closed");
    assert_eq!(got.last().map(|g| g.ack), Some(3 * MSS));
    assert_eq!(s.recv(), bytes(MSS, 2 * MSS));
    // Half of it is old.
    data(&mut s, 3 * MSS - 500, MSS);
    assert_eq!(poll(&mut s, None).2, 1);
    assert_eq!(s.recv(), bytes(3 * MSS, MSS - 500));
}

#[test]
fn a_rest_that_is_not_to_be_had_is_a_lost_segment_and_what_came_before_it_counts() {
    let mut s = begun();
    (1..4).for_each(|n| data(&mut s, n * MSS, MSS));
    let (got, taken, completed) = poll(&mut s, Some(2));
    assert_eq!((taken, completed), (2, 0));
    assert_eq!(got.last().map(|g| g.ack), Some(3 * MSS));
    assert_eq!(s.recv(), bytes(MSS, 2 * MSS));
    data(&mut s, 3 * MSS, MSS);
    let (_, taken, completed) = poll(&mut s, None);
    assert_eq!(taken + completed, 1, "by the usual way, if the ring has just become another");
    assert_eq!(s.recv(), bytes(3 * MSS, MSS));
}
