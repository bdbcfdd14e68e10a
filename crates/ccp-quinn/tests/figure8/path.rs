//! A client of quinn that sends as much as it may to a server, over the bottleneck of `towpath cc try`, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use ccp_quinn::ProgramFactory;
use ccp_try::Path;
use link::{LinkConfig, Model, View};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, ServerConfig,
    StreamId, TransportConfig, ValidationTokenConfig,
};

use crate::agent::Served;
use crate::plain::Plain;

/// Bytes of a datagram that fills an Ethernet frame, and of the headers in front of it: Ethernet, IPv4, UDP.
pub const DATAGRAM: u16 = 1472;
const HEADERS: usize = 14 + 20 + 8;
/// Time between two looks at the window: that of `towpath cc try`, about.
const LOOK_MS: u64 = 20;

/// One end.
struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    address: SocketAddr,
    /// The direction of the link that leads away from here.
    model: Model,
}

/// Seen from outside, at each look.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub seconds: f64,
    /// The window, bytes.
    pub window: f64,
    /// Payload that the server's program has read, bytes.
    pub received: u64,
    /// How long a packet would wait at the bottleneck, milliseconds.
    pub wait_ms: f64,
}

/// A packet on the way: when it arrives, its number (so that the order is total), to which end, and its bytes.
type OnTheWay = Reverse<(u64, u64, usize, Vec<u8>)>;

struct Network {
    ends: [End; 2],
    begin: Instant,
    now_ns: u64,
    on_the_way: BinaryHeap<OnTheWay>,
    count: u64,
    stream: Option<StreamId>,
    received: u64,
}

/// Runs one connection under the algorithm for so many virtual seconds.
pub fn run(algorithm: &str, link: &str, seconds: u64) -> Vec<Seen> {
    let path: Path = link.parse().expect("a path");
    let (program, first, served) = Served::open(algorithm, u32::from(DATAGRAM));
    let served = Arc::new(served);
    let factory = ProgramFactory::new(program, 1 << 30).expect("it needs nothing that quinn has not");
    let factory = factory.with_first(first).with_handler(Arc::<Served>::clone(&served));
    let mut run = Network::new(&path, factory);
    let mut seen = Vec::new();
    for look in 1..=seconds * 1000 / LOOK_MS {
        let until_ns = look * LOOK_MS * 1_000_000;
        while let Some(next_ns) = run.next_ns().filter(|next| *next <= until_ns) {
            run.now_ns = next_ns.max(run.now_ns);
            served.set_now(run.now_ns / 1000);
            run.turn();
        }
        run.now_ns = until_ns;
        seen.push(run.seen());
    }
    seen
}

impl Network {
    fn new(path: &Path, factory: ProgramFactory) -> Self {
        let begin = Instant::now();
        let mut transport = TransportConfig::default();
        transport.initial_mtu(DATAGRAM).mtu_discovery_config(None);
        transport.enable_segmentation_offload(false);
        let mut sending = TransportConfig::default();
        sending.initial_mtu(DATAGRAM).mtu_discovery_config(None).enable_segmentation_offload(false);
        sending.congestion_controller_factory(Arc::new(factory));
        let endpoint = |server: Option<ServerConfig>, seed| {
            let mut config = EndpointConfig::new(Arc::new(Plain));
            config.rng_seed(Some([seed; 32]));
            Endpoint::new(Arc::new(config), server.map(Arc::new), false, None)
        };
        let mut server = ServerConfig::new(Arc::new(Plain), Arc::new(Plain));
        let mut tokens = ValidationTokenConfig::default();
        tokens.sent(0);
        server.transport_config(Arc::new(transport)).validation_token_config(tokens);
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let end = |endpoint, port, link: LinkConfig| End {
            endpoint,
            connection: None,
            address: address(port),
            model: Model::new(link, u64::from(port)),
        };
        let back = LinkConfig::delayed(path.link.delay);
        let mut client = end(endpoint(None, 1), 1, path.link.clone());
        let mut config = ClientConfig::new(Arc::new(Plain));
        config.transport_config(Arc::new(sending));
        let connected = client.endpoint.connect(begin, config, address(2), "server");
        client.connection = Some(connected.expect("all is configured"));
        Self {
            ends: [client, end(endpoint(Some(server), 2), 2, back)],
            begin,
            now_ns: 0,
            on_the_way: BinaryHeap::new(),
            count: 0,
            stream: None,
            received: 0,
        }
        .started()
    }

    fn started(mut self) -> Self {
        self.turn();
        self
    }

    fn now(&self) -> Instant {
        self.begin + Duration::from_nanos(self.now_ns)
    }

    /// When something happens next.
    fn next_ns(&mut self) -> Option<u64> {
        let begin = self.begin;
        let timers = self.ends.iter_mut().filter_map(|end| end.connection.as_mut()?.1.poll_timeout());
        let timers = timers.map(|at| at.saturating_duration_since(begin).as_nanos() as u64);
        let arrival = self.on_the_way.peek().map(|Reverse((at, ..))| *at);
        timers.chain(arrival).min()
    }

    /// Delivers what has arrived, runs timers, and sends what may be sent.
    fn turn(&mut self) {
        while self.on_the_way.peek().is_some_and(|Reverse((at, ..))| *at <= self.now_ns) {
            let Some(Reverse((_, _, to, bytes))) = self.on_the_way.pop() else { break };
            self.deliver(to, &bytes);
        }
        let now = self.now();
        for end in &mut self.ends {
            if let Some((_, connection)) = &mut end.connection
                && connection.poll_timeout().is_some_and(|at| at <= now)
            {
                connection.handle_timeout(now);
            }
        }
        self.write();
        self.read();
        for at in [0, 1] {
            self.settle(at);
            self.send(at);
        }
    }

    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let (now, from) = (self.now(), self.ends[1 - to].address);
        let end = &mut self.ends[to];
        let mut buffer = Vec::new();
        match end.endpoint.handle(now, from, None, None, BytesMut::from(bytes), &mut buffer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                let (_, connection) = end.connection.as_mut().expect("it has begun");
                connection.handle_event(event);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = end.endpoint.accept(incoming, now, &mut buffer, None);
                end.connection = Some(accepted.map_err(|why| why.cause).expect("it is the only one"));
            }
            Some(DatagramEvent::Response(_)) => panic!("the ends understand each other"),
            None => {}
        }
    }

    /// The endpoint's part in what connections want.
    fn settle(&mut self, at: usize) {
        let End { endpoint, connection: Some((handle, connection)), .. } = &mut self.ends[at] else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            assert!(!matches!(event, quinn_proto::Event::ConnectionLost { .. }), "{event:?}");
        }
    }

    /// The client's program writes as much as there is room for.
    fn write(&mut self) {
        let Some((_, connection)) = &mut self.ends[0].connection else { return };
        if connection.is_handshaking() {
            return;
        }
        if self.stream.is_none() {
            self.stream = connection.streams().open(Dir::Uni);
        }
        let Some(stream) = self.stream else { return };
        while connection.send_stream(stream).write(&[0; 1 << 16]).is_ok() {}
    }

    /// The server's program reads all that is there.
    fn read(&mut self) {
        let Some((_, connection)) = &mut self.ends[1].connection else { return };
        let Some(stream) = self.stream else { return };
        let mut receiving = connection.recv_stream(stream);
        let Ok(mut chunks) = receiving.read(true) else { return };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            self.received += chunk.bytes.len() as u64;
        }
        let _ = chunks.finalize();
    }

    fn send(&mut self, at: usize) {
        let now = self.now();
        let end = &mut self.ends[at];
        let Some((_, connection)) = &mut end.connection else { return };
        let mut buffer = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, 1, &mut buffer) {
            let bytes = buffer[..transmit.size].to_vec();
            buffer.clear();
            let view = View {
                len: bytes.len() + HEADERS,
                header_len: 14,
                is_ect: transmit.ecn.is_some(),
                is_arp: false,
            };
            let fate = end.model.judge(base::Instant::from_ns(self.now_ns), &view);
            for passage in fate.first.into_iter().chain(fate.second) {
                self.count += 1;
                self.on_the_way.push(Reverse((passage.at.as_ns(), self.count, 1 - at, bytes.clone())));
            }
        }
    }

    fn seen(&self) -> Seen {
        let client = &self.ends[0];
        let window = client.connection.as_ref().map_or(0, |(_, connection)| connection.stats().path.cwnd);
        let wait = client.model.wait(base::Instant::from_ns(self.now_ns));
        Seen {
            seconds: self.now_ns as f64 / 1e9,
            window: window as f64,
            received: self.received,
            wait_ms: wait.as_ns() as f64 / 1e6,
        }
    }
}
