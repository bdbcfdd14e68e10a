//! What is predicted means the same as what is asked: two hosts get the same segments, one of them with the timestamps where no prediction
//! looks for them, and never differ.

use crate::harness::{Host, MAC_A, MAC_B, Sock, endpoints, install};
use crate::scene::MSS;
use base::{Duration, Instant, Seed, SeqNumber};
use flow::{Config, FlowId};
use port::{Batch, Capabilities, Port};
use port_memory::{LinkOptions, MemoryPort, link};
use wire::{FourTuple, IpParameters, MacAddr, TcpFlags, TcpHeader, TcpOptions, TxChecksum};

/// Where TCP's options begin.
const OPTIONS: usize = 14 + 20 + 20;

/// A host, its socket, and the other end of its wire.
struct Side {
    host: Host,
    id: FlowId,
    sock: Sock,
    port: MemoryPort,
    far: MemoryPort,
    batch: Batch,
}

/// A segment of the peer.
#[derive(Clone, Copy)]
struct Segment {
    seq: u32,
    ack: u32,
    len: usize,
    window: u16,
    clock: u32,
}

impl Side {
    fn new() -> Self {
        let capabilities = Capabilities::plain(1500, MAC_A).with_checksum();
        let (port, far) = link(&LinkOptions { capabilities, ..LinkOptions::default() }).unwrap();
        let config = Config { flows: 64, regions: 4, ..Config::default() };
        let mut host = Host::with_slots(config, capabilities, 16, 64);
        let (local, peer) = endpoints(false);
        let (id, sock) = host.open(Instant::ZERO, &install(local, peer, 5, MAC_B, 0, 0));
        Self { host, id, sock, port, far, batch: Batch::new() }
    }

    /// `is_odd`: the timestamps come before their padding.
    fn hear(&mut self, segment: Segment, is_odd: bool) {
        let (local, peer) = endpoints(false);
        let parameters = IpParameters::new(MacAddr(MAC_B), MacAddr(MAC_A));
        let header = TcpHeader {
            src_port: 0,
            dst_port: 0,
            seq: SeqNumber(segment.seq),
            ack: SeqNumber(segment.ack),
            flags: TcpFlags::ACK.with(TcpFlags::PSH),
            window: segment.window,
            urgent: 0,
        };
        let options = TcpOptions::with_timestamps(segment.clock, 0);
        let tuple = FourTuple::new(peer, local);
        let buf = self.far.reserve().unwrap();
        let start = wire::tcp_headers_len(&parameters, &tuple, &options);
        let (len, sum) = (segment.len, TxChecksum::Partial);
        let frame = buf.storage_mut();
        frame[start..start + len].fill(segment.seq as u8);
        wire::emit_tcp(&parameters, &tuple, &header, &options, len, sum, frame).unwrap();
        if is_odd {
            frame[OPTIONS..OPTIONS + 12].rotate_left(2);
        }
        buf.set_len(start + len);
        buf.meta.checksum = port::Checksum::Partial { start: 34, offset: 16 };
        self.far.commit();
        self.far.flush();
    }

    /// A round, and what has gone out.
    fn poll(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.host.poll(now, &mut self.port);
        let mut frames = Vec::new();
        while self.far.receive(&mut self.batch) > 0 {
            frames.extend(self.batch.packets().iter().map(|packet| packet.frame().to_vec()));
        }
        frames
    }

    /// All that is known of the flow.
    fn record(&self) -> String {
        let mut guard = self.host.keeper.lock(self.id);
        let parts = guard.parts();
        format!("{:?} {:?} {:?}", parts.rx, parts.tx, parts.cold)
    }

    fn positions(&self) -> (u32, u32, u32, u32) {
        let mut guard = self.host.keeper.lock(self.id);
        let parts = guard.parts();
        (parts.tx.snd_una.0, parts.tx.snd_max.0, parts.rx.rcv_nxt.0, parts.rx.promised())
    }
}

#[test]
fn a_predicted_segment_leaves_the_flow_as_one_of_which_everything_is_asked() {
    for seed in 0..40 {
        run(seed);
    }
}

fn run(seed: u64) {
    let mut rng = Seed::new(seed);
    let mut sides = [Side::new(), Side::new()];
    let mut now = Instant::ZERO;
    if rng.below(2) == 0 {
        sides.iter().for_each(|side| side.host.nodelay(&side.sock));
    }
    for step in 0..400 {
        now = now.plus(Duration::from_us([20, 700, 3_000, 50_000, 300_000][rng.below(5) as usize]));
        let (una, max, mut next, mut room) = sides[0].positions();
        let mut ack = una;
        for _ in 0..rng.below(4) {
            ack = if rng.below(3) == 0 { ack } else { ack + rng.below(u64::from(max - ack) + 1) as u32 };
            let len = match rng.below(4) {
                0 => 0,
                1 => MSS.min(room),
                _ => (rng.below(200) as u32).min(room),
            };
            let window = [512, 512, 511, 600][rng.below(4) as usize];
            // Now and then it comes again, or out of order.
            let seq = if rng.below(16) == 0 { next.wrapping_sub(len) } else { next };
            let segment = Segment { seq, ack, len: len as usize, window, clock: now.as_ms() as u32 };
            (0..2).for_each(|i| sides[i].hear(segment, i == 1));
            (next, room) = (next + len, room - len);
        }
        let (written, read) = (rng.below(3) * rng.below(3000), rng.below(3) as usize * 700);
        let [a, b] = sides.each_mut().map(|side| {
            let before = side.poll(now);
            let bytes = side.host.recv(&mut side.sock, read);
            side.host.send(&mut side.sock, &vec![step as u8; written as usize], 16 << 10);
            (before, bytes, side.poll(now), side.record(), side.host.news())
        });
        assert_eq!(a, b, "seed {seed}, step {step}");
    }
}
