//! Hosts for tests: a core, the least slow path that keeps it going, and an application that keeps to the contract.
#![allow(dead_code)] // Each test file uses its own part.

use base::{Duration, Instant, SeqNumber};
use congestion::{Algorithm, Window};
use fastpath::{Core, Others, Progress};
use flow::{
    AppRegion, Command, CommandSender, Config, Exception, ExceptionReceiver, FlowId, Flows, Install, Keeper,
    state,
};
use port::{Capabilities, Port};
use queue::pages::{Pool, class_of};
use queue::stream::{self, Sender};
use queue::{Doorbell, Wake};
use shm::{Kind, Params, Region, Side, half_flags};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use wire::{Endpoint, FourTuple, MacAddr};

pub const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0x0A];
pub const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0x0B];

/// One socket of the application.
pub struct Sock {
    pub slot: u32,
    pub tx: Sender,
    pub rx_tail: u64,
}

pub struct Host {
    pub core: Core,
    pub keeper: Keeper,
    pub commands: CommandSender,
    pub exceptions: ExceptionReceiver,
    pub region: Arc<AppRegion>,
    pub pool: Pool,
    pub log: Vec<Exception>,
    pub frames: Vec<(flow::FrameReason, Vec<u8>)>,
    pub wakes: usize,
    timers: BTreeMap<FlowId, (SeqNumber, u32)>,
    pub timeouts: u32,
}

pub fn config() -> Config {
    Config { flows: 64, regions: 4, ring_slots: 64, ..Config::default() }
}

pub fn endpoints(v6: bool) -> (Endpoint, Endpoint) {
    let addr = |last: u8| -> IpAddr {
        if v6 {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)).into()
        } else {
            Ipv4Addr::new(10, 0, 0, last).into()
        }
    };
    (Endpoint::new(addr(1), 1000), Endpoint::new(addr(2), 2000))
}

/// A flow from `local` to `peer` with everything negotiated.
pub fn install(local: Endpoint, peer: Endpoint, slot: u32, mac: [u8; 6], snd: u32, rcv: u32) -> Install {
    Install {
        tuple: FourTuple::new(local, peer),
        peer_mac: MacAddr(mac),
        core: 0,
        region: 0,
        slot,
        snd_nxt: SeqNumber(snd),
        rcv_nxt: SeqNumber(rcv),
        // A unit of the scale is kept in reserve, as the slow path does.
        rcv_wnd: 65_535 - 127,
        snd_wnd: 65_535,
        mss: 1448,
        shifts: (7, 7),
        features: state::TIMESTAMPS | state::SACK,
        accurate: flow::AccurateEcn::default(),
        ts_recent: 0,
        ts_offset: 0,
        rtt: Some(Duration::from_us(100)),
        window: Window::new(Algorithm::Cubic, 1448, Instant::ZERO),
        pace_rate: 0,
    }
}

impl Host {
    pub fn new(config: Config, capabilities: Capabilities, mib: u64) -> Self {
        Self::with_slots(config, capabilities, mib, 64)
    }

    pub fn with_slots(config: Config, capabilities: Capabilities, mib: u64, slots: u32) -> Self {
        let ring_slots = config.ring_slots;
        let flows = Arc::new(Flows::new(config, [1, 2]));
        let (exception_tx, exceptions) = flow::exceptions(ring_slots);
        let (mut commands, command_rx) = flow::commands(ring_slots);
        let params = Params { kind: Kind::Application, id: 1, slots, data_len: mib << 20 };
        let others = Others::alone(flows.config());
        let region = Arc::new(AppRegion::new(Region::create(params).unwrap().0));
        region.set_watermark(mib << 20);
        commands.push(Command::add_region(0, region.clone())).unwrap();
        Self {
            core: Core::new(0, flows.clone(), exception_tx, command_rx, capabilities, others),
            keeper: Keeper::new(flows),
            commands,
            exceptions,
            region,
            pool: Pool::default(),
            log: Vec::new(),
            frames: Vec::new(),
            wakes: 0,
            timers: BTreeMap::new(),
            timeouts: 0,
        }
    }

    pub fn open(&mut self, now: Instant, install: &Install) -> (FlowId, Sock) {
        let id = self.keeper.install(now, install, &self.region).unwrap();
        let (_, own) = self.region.halves(install.slot).unwrap();
        stream::watch(own, Some(3));
        (id, Sock { slot: install.slot, tx: Sender::default(), rx_tail: 0 })
    }

    /// One round of the core and of the slow path.
    pub fn poll<P: Port + ?Sized>(&mut self, now: Instant, port: &mut P) -> Progress {
        let progress = self.core.poll(now, port);
        self.wakes += self.core.wakes().count();
        loop {
            let (log, frames, timers) = (&mut self.log, &mut self.frames, &mut self.timers);
            let got = self.exceptions.pop(|exception, frame| match exception {
                Exception::Frame { reason } => frames.push((reason, frame.to_vec())),
                Exception::Active { flow } => {
                    timers.insert(flow, (SeqNumber(0), 0));
                }
                other => log.push(other),
            });
            if got.is_none() {
                break;
            }
        }
        self.timers(now);
        progress
    }

    /// RFC 6298, as short as it can be said.
    fn timers(&mut self, now: Instant) {
        for (id, (una, backoff)) in std::mem::take(&mut self.timers) {
            let mut guard = self.keeper.lock(id);
            let f = guard.parts();
            let is_idle = f.tx.snd_una == f.tx.snd_max && !f.rx.has(state::BLOCKED);
            if is_idle || !f.rx.has(state::LIVE) {
                f.rx.clear(state::TIMER_ARMED);
                continue;
            }
            let mut backoff = if una == f.tx.snd_una { backoff } else { 0 };
            let una = f.tx.snd_una;
            let since = f.cold.timeout_from(f.rx.flags);
            // The core's probe goes first, as in the slow path.
            let grace = if f.cold.is_probe_due(f.rx.flags) { Duration::from_ms(10) } else { Duration::ZERO };
            if since.plus(f.cold.rto.times(1 << backoff.min(6))).plus(grace) <= now {
                self.timeouts += 1;
                backoff += 1;
                f.cold.recovery.restart_at = now;
                if f.rx.has(state::BLOCKED) {
                    self.commands.push(Command::Probe { flow: id }).unwrap();
                } else {
                    f.cold.backoff = backoff as u8;
                    f.cold.recovery.expired_at = now;
                    f.tx.rewind();
                    f.rx.clear(state::TIMING);
                    self.commands.push(Command::Transmit { flow: id }).unwrap();
                }
            }
            self.timers.insert(id, (una, backoff));
        }
    }

    pub fn ring(&self, slot: u32) {
        let region = self.region.region();
        let (own, _) = self.region.halves(slot).unwrap();
        let Some(context) = stream::watcher(own) else { return };
        let block = region.context(Side::Zero, context).unwrap();
        let _: Wake = Doorbell::new(block, region.layout().words_per_group).ring(slot);
    }

    /// The application writes as much as its ring of `ring` bytes takes.
    pub fn send(&mut self, sock: &mut Sock, bytes: &[u8], ring: usize) -> usize {
        let shared = self.region.region();
        let word = |i| shared.page_word(Side::One, i).unwrap();
        let (peer, own) = self.region.halves(sock.slot).unwrap();
        if let Some(old) = sock.tx.update(peer).unwrap() {
            self.pool.give_back(old, word);
        }
        if sock.tx.ring.is_none() {
            let new = self.pool.lend(class_of(ring), shared.page_words() * 64, word).unwrap();
            assert_eq!(sock.tx.lend(own, new), None);
        }
        let n = bytes.len().min(sock.tx.space());
        if n > 0 {
            let [(a, a_len), (b, _)] = sock.tx.ring.unwrap().spans(sock.tx.head, n);
            shared.write(Side::One, a, &bytes[..a_len]);
            shared.write(Side::One, b, &bytes[a_len..n]);
            sock.tx.publish(own, n);
            self.ring(sock.slot);
        }
        n
    }

    /// The application gives an empty ring back, as the socket library does: the next to send takes it, warm.
    pub fn give_back(&mut self, sock: &mut Sock) {
        let shared = self.region.region();
        let (peer, _) = self.region.halves(sock.slot).unwrap();
        assert_eq!(sock.tx.update(peer).unwrap(), None);
        if let Some(ring) = sock.tx.give_back() {
            self.pool.give_back(ring, |i| shared.page_word(Side::One, i).unwrap());
        }
    }

    /// The application reads at most `most` bytes.
    pub fn recv(&mut self, sock: &mut Sock, most: usize) -> Vec<u8> {
        let shared = self.region.region();
        let (peer, own) = self.region.halves(sock.slot).unwrap();
        let mut out = Vec::new();
        while let Some(got) = stream::readable(peer, sock.rx_tail, shared.layout().params.data_len).unwrap() {
            let n = got.len.min(most - out.len());
            if n == 0 {
                break;
            }
            let mut piece = vec![0; n];
            let [(a, a_len), (b, _)] = got.ring.spans(sock.rx_tail, n);
            shared.read(Side::Zero, a, &mut piece[..a_len]);
            shared.read(Side::Zero, b, &mut piece[a_len..]);
            out.extend(piece);
            sock.rx_tail += n as u64;
            if stream::consumed(own, peer, sock.rx_tail) {
                self.ring(sock.slot);
            }
        }
        out
    }

    pub fn is_eof(&self, sock: &Sock) -> bool {
        let (peer, _) = self.region.halves(sock.slot).unwrap();
        let fin = peer.flags.load(Acquire) & half_flags::FIN != 0;
        fin && peer.tx_head.load(Acquire) == sock.rx_tail
    }

    pub fn raise(&mut self, sock: &Sock, flags: u32) {
        let (_, own) = self.region.halves(sock.slot).unwrap();
        stream::raise(own, flags);
        self.ring(sock.slot);
    }

    pub fn nodelay(&self, sock: &Sock) {
        let (_, own) = self.region.halves(sock.slot).unwrap();
        own.extra.store(shm::application_flags::NODELAY, Relaxed);
    }

    /// Did the application's doorbell ring for this slot since the last call?
    pub fn news(&self) -> Vec<u32> {
        let region = self.region.region();
        let block = region.context(Side::One, 3).unwrap();
        let mut slots = Vec::new();
        Doorbell::new(block, region.layout().words_per_group).drain(64, |slot| slots.push(slot));
        slots
    }
}
