//! One slow path without a core, spoken to in packets and times.
#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    reason = "the bench uses a part of it; a failed test may panic"
)]

use base::{Duration, Instant, SeqNumber};
use flow::{
    AppRegion, Command, CommandReceiver, Exception, FlowId, FlowMut, Flows, FrameReason, GroupSet,
    ResetVerdict, commands,
};
use shm::{Kind, Params, Region, half_flags};
use slowpath::{Config, Connect, Event, FlowOptions, OwnAddress, Owner, PendingId, SlowPath};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::{
    ArpPacket, Body, Ecn, Endpoint, EtherType, EthernetHeader, FourTuple, IpParameters, MacAddr, Packet,
    RxChecksum, TcpFlags, TcpHeader, TcpOptions, TcpPacket, TxChecksum, emit_tcp,
};

pub const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub const SYN: TcpFlags = TcpFlags::SYN;
pub const ACK: TcpFlags = TcpFlags::ACK;
pub const RST: TcpFlags = TcpFlags::RST;
pub const FIN: TcpFlags = TcpFlags::FIN;
pub const SYN_ACK: TcpFlags = TcpFlags::SYN.with(TcpFlags::ACK);
pub const FIN_ACK: TcpFlags = TcpFlags::FIN.with(TcpFlags::ACK);

pub fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

pub fn us(port: u16) -> Endpoint {
    Endpoint::new(ip(2), port)
}

pub fn peer(port: u16) -> Endpoint {
    Endpoint::new(ip(1), port)
}

pub fn options() -> TcpOptions {
    TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        ..TcpOptions::with_timestamps(1000, 0)
    }
}

/// A command other than to send a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Order {
    Transmit(FlowId),
    Probe(FlowId),
    ProbePath(FlowId, u16),
    Ack(FlowId),
    Drop(FlowId),
    Receive(Vec<u8>),
    AddRegion(u16),
    RemoveRegion(u16),
    Expect(GroupSet, u32),
    Yield(u32),
    Move(FlowId, u8),
    Moved(u8),
}

pub struct World {
    pub slow: SlowPath,
    pub flows: Arc<Flows>,
    pub app: Arc<AppRegion>,
    pub now: Instant,
    commands: CommandReceiver,
    pub sent: VecDeque<Vec<u8>>,
    pub orders: VecDeque<Order>,
    /// ECN field of the peer's segments.
    pub ecn: Ecn,
    next_slot: u32,
}

impl World {
    pub fn new() -> Self {
        Self::with(|_, _| {})
    }

    /// A world whose peer is already a known neighbour.
    pub fn with(change: impl FnOnce(&mut Config, &mut flow::Config)) -> Self {
        let mut world = Self::stranger(change);
        world.peer_is_there();
        world
    }

    /// The peer asks for us, so that we know it.
    pub fn peer_is_there(&mut self) {
        let before = std::mem::take(&mut self.sent);
        self.arp(&ArpPacket::request(PEER_MAC, [10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
        self.sent = before;
    }

    pub fn stranger(change: impl FnOnce(&mut Config, &mut flow::Config)) -> Self {
        let own = OwnAddress { addr: ip(2), prefix_len: 24 };
        let six = OwnAddress { addr: "fd00::2".parse().unwrap(), prefix_len: 64 };
        let mut config = Config {
            mac: OUR_MAC,
            addresses: vec![own, six],
            gateway_v4: Some([10, 0, 0, 254].into()),
            secret: [9; 16],
            ..Config::default()
        };
        let mut shared = flow::Config { flows: 1024, regions: 4, ..flow::Config::default() };
        change(&mut config, &mut shared);
        let flows = Arc::new(Flows::new(shared, [1, 2]));
        let (sender, receiver) = commands(1024);
        let now = Instant::from_ns(1_000_000_000);
        let params = Params { kind: Kind::Application, id: 1, slots: 1024, data_len: 1 << 20 };
        let (region, _fd) = Region::create(params).unwrap();
        let app = Arc::new(AppRegion::new(region));
        let mut slow = SlowPath::new(config, flows.clone(), vec![sender], now);
        assert!(slow.add_region(0, &app));
        let mut world = Self {
            slow,
            flows,
            app,
            now,
            commands: receiver,
            sent: VecDeque::new(),
            orders: VecDeque::new(),
            ecn: Ecn::NotEct,
            next_slot: 1,
        };
        world.settle();
        world.orders.clear();
        world
    }

    /// Sorts what came out into frames and orders.
    pub fn settle(&mut self) {
        let Self { commands, sent, orders, .. } = self;
        while commands
            .pop(|command, frame| match command {
                Command::Frame => sent.push_back(frame.to_vec()),
                Command::Receive => orders.push_back(Order::Receive(frame.to_vec())),
                Command::Transmit { flow } => orders.push_back(Order::Transmit(flow)),
                Command::ProbePath { flow, len } => orders.push_back(Order::ProbePath(flow, len)),
                Command::Probe { flow } => orders.push_back(Order::Probe(flow)),
                Command::Ack { flow } => orders.push_back(Order::Ack(flow)),
                Command::Drop { flow } => orders.push_back(Order::Drop(flow)),
                Command::AddRegion { index, .. } => orders.push_back(Order::AddRegion(index)),
                Command::RemoveRegion { index } => orders.push_back(Order::RemoveRegion(index)),
                Command::Expect { groups, number } => orders.push_back(Order::Expect(groups, number)),
                Command::Yield { number } => orders.push_back(Order::Yield(number)),
                Command::Move { flow, to } => orders.push_back(Order::Move(flow, to)),
                Command::Moved { to } => orders.push_back(Order::Moved(to)),
            })
            .is_some()
        {}
    }

    pub fn exception(&mut self, exception: Exception) {
        self.slow.handle_exception(self.now, 0, exception, &[]);
        self.settle();
    }

    pub fn raw(&mut self, frame: &[u8]) {
        let frame_of = Exception::Frame { reason: FrameReason::UnknownFlow };
        self.slow.handle_exception(self.now, 0, frame_of, frame);
        self.settle();
    }

    /// A segment as it comes from the wire, and what a core would make of it.
    pub fn segment(
        &mut self,
        tuple: FourTuple,
        flags: TcpFlags,
        seq: u32,
        ack: u32,
        options: TcpOptions,
        payload: &[u8],
    ) {
        let mut frame = frame(tuple, flags, seq, ack, options, payload);
        // IPv4's checksum takes the change of the lower byte of its first word as it is.
        if tuple.src.addr.is_ipv4() && self.ecn != Ecn::NotEct {
            frame[15] |= self.ecn.bits();
            let sum = !u16::from_be_bytes([frame[24], frame[25]]);
            let sum = !(sum.checked_add(u16::from(self.ecn.bits())).expect("no carry"));
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        let hash = self.flows.table().hash(&tuple);
        let is_it = |id: FlowId| {
            self.flows.try_lock(id).is_some_and(|mut guard| {
                let parts = guard.parts();
                parts.addresses.matches(parts.rx, parts.tx, &tuple)
            })
        };
        let exception = match self.flows.table().find(hash, is_it) {
            Some(flow) => self.of_flow(flow, flags, SeqNumber(seq)),
            None if flags.contains(SYN) && !flags.contains(TcpFlags::ACK) => {
                Some(Exception::Frame { reason: FrameReason::Syn })
            }
            None => Some(Exception::Frame { reason: FrameReason::UnknownFlow }),
        };
        let beginning = &frame[..frame.len().min(flow::FRAME_COPY_MAX)];
        if let Some(exception) = exception {
            self.slow.handle_exception(self.now, 0, exception, beginning);
        }
        self.settle();
    }

    /// What a core notes of a segment that is not its business.
    fn of_flow(&self, flow: FlowId, flags: TcpFlags, seq: SeqNumber) -> Option<Exception> {
        if !flags.intersects(RST.with(SYN)) {
            return Some(Exception::LateData { flow });
        }
        self.edit(flow, |parts| match parts.rx.judge_reset(seq) {
            ResetVerdict::Exact if flags.contains(RST) => Some(Exception::PeerReset { flow }),
            ResetVerdict::Stray if flags.contains(RST) => None,
            _ => parts.cold.challenged.take(self.now).then_some(Exception::Challenge { flow }),
        })
    }

    /// A segment from the peer's port `from` to our port `to`, without options.
    pub fn peer_sends(&mut self, from: u16, to: u16, flags: TcpFlags, seq: u32, ack: u32) {
        self.segment(FourTuple::new(peer(from), us(to)), flags, seq, ack, TcpOptions::NONE, &[]);
    }

    pub fn arp(&mut self, packet: &ArpPacket) {
        let mut frame = [0; 42];
        let dst = MacAddr::BROADCAST;
        let header = EthernetHeader { dst, src: packet.sender_mac, ethertype: EtherType::ARP, vlan: None };
        header.emit(&mut frame).unwrap();
        packet.emit(&mut frame[14..]).unwrap();
        let reason = FrameReason::NotTcp;
        self.slow.handle_exception(self.now, 0, Exception::Frame { reason }, &frame);
        self.settle();
    }

    /// The next TCP segment sent.
    pub fn next(&mut self) -> TcpPacket {
        let frame = self.sent.pop_front().expect("a frame was sent");
        match Packet::parse(&frame, RxChecksum::Verify).expect("what we send parses").body {
            Body::Tcp(packet) => packet,
            other => panic!("not TCP: {other:?}"),
        }
    }

    pub fn next_body(&mut self) -> Body {
        let frame = self.sent.pop_front().expect("a frame was sent");
        Packet::parse(&frame, RxChecksum::Verify).expect("what we send parses").body
    }

    pub fn quiet(&mut self) {
        assert!(self.sent.is_empty(), "nothing more is sent: {:?}", self.next_body());
    }

    pub fn event(&mut self) -> Event {
        self.slow.poll_event().expect("an event")
    }

    pub fn count(&self, count: slowpath::Count) -> u64 {
        self.slow.counters().of(count)
    }

    /// Lets time pass, every deadline served on its time.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now.plus(time);
        while self.slow.next_deadline() <= end {
            self.now = self.now.max(self.slow.next_deadline());
            self.slow.handle_timers(self.now);
            self.settle();
        }
        self.now = end;
        self.slow.handle_timers(self.now);
        self.settle();
    }

    pub fn owner(&mut self) -> Owner {
        self.next_slot += 1;
        Owner { region: 0, slot: self.next_slot, core: 0 }
    }

    pub fn connect(&mut self, port: u16) -> (Endpoint, Owner) {
        let owner = self.owner();
        let what =
            Connect { token: 7, local: None, remote: peer(port), owner, options: FlowOptions::default() };
        let local = self.slow.connect(self.now, &what).expect("connect begins");
        self.settle();
        (local, owner)
    }

    /// The application's half of the slot given out last.
    pub fn app_half(&self) -> &shm::Half {
        self.app.halves(self.next_slot).unwrap().1
    }

    /// Flags of the service's half of a slot.
    pub fn flags(&self, owner: Owner) -> u32 {
        self.app.halves(owner.slot).unwrap().0.flags.load(Ordering::Acquire)
    }

    pub fn errno(&self, owner: Owner) -> u32 {
        let flags = self.flags(owner);
        if flags & half_flags::FAILED == 0 { 0 } else { flags >> half_flags::ERRNO_SHIFT }
    }

    pub fn edit<R>(&self, flow: FlowId, work: impl FnOnce(&mut FlowMut<'_>) -> R) -> R {
        work(&mut self.flows.try_lock(flow).expect("free").parts())
    }

    /// An accepted connection from the peer's port `from` to our port 80, and our next sequence number.
    pub fn accepted(&mut self, from: u16) -> (FlowId, Owner, u32) {
        let pending = self.offered(from);
        let owner = self.owner();
        let flow = self.slow.accept(self.now, pending, owner).expect("accepted");
        self.settle();
        self.orders.clear();
        (flow, owner, self.edit(flow, |parts| parts.tx.snd_nxt.0))
    }

    /// A passive open up to its offer; the listener on port 80 is made at need.
    pub fn offered(&mut self, from: u16) -> PendingId {
        let _ = self.slow.listen(us(80), 1, 1000);
        self.peer_sends(from, 80, SYN, 100, 0);
        let answer = self.next();
        assert_eq!(answer.header.flags, SYN_ACK);
        self.peer_sends(from, 80, ACK, 101, answer.header.seq.0 + 1);
        match self.event() {
            Event::Incoming { pending, .. } => pending,
            other => panic!("{other:?}"),
        }
    }
}

pub fn frame(
    tuple: FourTuple,
    flags: TcpFlags,
    seq: u32,
    ack: u32,
    options: TcpOptions,
    payload: &[u8],
) -> Vec<u8> {
    let (seq, ack) = (SeqNumber(seq), SeqNumber(ack));
    let header = TcpHeader { src_port: 0, dst_port: 0, seq, ack, flags, window: 5000, urgent: 0 };
    let parameters = IpParameters::new(PEER_MAC, OUR_MAC);
    let start = wire::tcp_headers_len(&parameters, &tuple, &options);
    let mut bytes = vec![0; start + payload.len()];
    bytes[start..].copy_from_slice(payload);
    let checksum = TxChecksum::Full;
    emit_tcp(&parameters, &tuple, &header, &options, payload.len(), checksum, &mut bytes).unwrap();
    bytes
}

pub fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_ms(ms)
}
