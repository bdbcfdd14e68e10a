//! TCP over the port, as the control thread sees it: the slow path and the state around it.

mod connections;
pub(crate) mod options;

use crate::ServiceError;
use crate::config::Config;
use crate::config::values::PortKind;
use crate::daemon::clock;
use crate::registry::channels::ends::At;
use crate::registry::channels::rules::Why;
use crate::registry::choice::Choice;
use crate::registry::memory::Memory;
use crate::sys;
use control::{CongestionName, SocketOptions};
use flow::{CommandSender, ExceptionReceiver, Flows};
use slowpath::{FlowName, OwnAddress, SlowPath};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Endpoint, MacAddr};

/// Most exceptions handled before the control lines are served.
const EXCEPTIONS_MAX: usize = 2048;

/// A connection over the port, as the use of a slot.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Id of the application that it belongs to.
    pub application: u32,
    /// The application has closed it; the slot is free after `Event::Released`.
    pub closed: bool,
    /// Addresses of the application and of the peer.
    pub ends: [SocketAddr; 2],
    /// What carries its bytes.
    pub carrier: Carrier,
    /// Why it goes by channel or by plain TCP; `None`: the peer has opened it, or the service has no channels.
    pub why: Option<Why>,
    /// The congestion control that its socket has chosen.
    pub asked: Option<CongestionName>,
    /// What decides about its window and rate.
    pub choice: Choice,
    /// Its name for agents, once it is established and there may be agents.
    pub name: Option<FlowName>,
}

/// What carries the bytes of a connection to another host.
#[derive(Clone, Copy, Debug)]
pub enum Carrier {
    /// A TCP connection of its own.
    Tcp,
    /// Channels, with other sockets.
    Channel {
        /// The socket at the engine, while it waits to be accepted.
        pending: Option<At>,
        /// The engine no longer uses the slot, which is free when the application has closed it.
        is_gone: bool,
        /// The options for plain TCP, should channels fail before the connection is made.
        options: SocketOptions,
    },
}

/// An address at which the slow path listens, for one or more listeners.
#[derive(Debug)]
struct Place {
    token: u64,
    listeners: Vec<u32>,
}

/// The slow path, and the control thread's state around it.
#[derive(Debug)]
pub struct Tcp {
    /// The slow path's state machine.
    pub slow: SlowPath,
    exceptions: Vec<ExceptionReceiver>,
    /// The time at which the slow path's time is 0.
    began: Instant,
    places: HashMap<Endpoint, Place>,
    next_token: u64,
    /// Memory of regions without an application, while their last flows still send.
    departing: HashMap<u16, Arc<Memory>>,
}

/// Makes the flow records for `config`.
pub fn flows(config: &Config) -> Result<Arc<Flows>, ServiceError> {
    let none = config.port == PortKind::None;
    let [sack, timestamps, window_scaling, ecn, accurate_ecn] = config.link.switches;
    let (low, high) = (sys::random()?, sys::random()?);
    let flow_config = flow::Config {
        flows: if none { 64 } else { config.link.flows },
        regions: config.max_applications as u16,
        ring_slots: if none { 64 } else { flow::Config::default().ring_slots },
        addresses: config.link.own.iter().map(|n| n.address).collect(),
        sack,
        timestamps,
        window_scaling,
        ecn,
        accurate_ecn,
        hop_limit: config.link.hop_limit,
        receive_buffer_initial: config.link.buffer_initial,
        receive_buffer_max: config.receive_max,
        send_buffer_initial: config.link.send_buffer,
        send_buffer_max: config.ring_max,
        runs_each_ack: config.agents.as_ref().is_some_and(|agents| agents.every_ack),
        ..flow::Config::default()
    };
    Ok(Arc::new(Flows::new(flow_config, [u64::from_ne_bytes(low), u64::from_ne_bytes(high)])))
}

impl Tcp {
    /// A slow path with its rings to and from all cores.
    pub fn new(
        config: &Config,
        flows: Arc<Flows>,
        mac: [u8; 6],
        mtu: u16,
        rings: Vec<(ExceptionReceiver, CommandSender)>,
        began: Instant,
    ) -> Result<Self, ServiceError> {
        let link = &config.link;
        let gateway_v4 =
            link.gateways.iter().find_map(|g| if let IpAddr::V4(a) = g { Some(*a) } else { None });
        let gateway_v6 =
            link.gateways.iter().find_map(|g| if let IpAddr::V6(a) = g { Some(*a) } else { None });
        let addresses =
            link.own.iter().map(|n| OwnAddress { addr: n.address, prefix_len: n.prefix }).collect();
        let slow_config = slowpath::Config {
            mac: MacAddr(mac),
            mtu,
            addresses,
            gateway_v4,
            gateway_v6,
            secret: sys::random()?,
            algorithm: config.choices.algorithm(config.choices.default()),
            express_ports: link.express_ports.iter().map(|port| port.get()).collect(),
            is_steered: config.cores.most > 1,
            serving: config.cores.serving_first(),
            ..slowpath::Config::default()
        };
        let (exceptions, commands): (Vec<_>, Vec<_>) = rings.into_iter().unzip();
        let mut slow = SlowPath::new(slow_config, flows, commands, base::Instant::ZERO);
        slow.set_give_way(std::thread::yield_now);
        slow.announce(0);
        Ok(Self { slow, exceptions, began, places: HashMap::new(), next_token: 1, departing: HashMap::new() })
    }

    /// A time of the system as the slow path counts it.
    pub fn slow_time(&self, at: Instant) -> base::Instant {
        clock::count(self.began, at)
    }

    /// True for the service's own addresses.
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.slow.routes().owns(ip)
    }

    /// The addresses at which the slow path must listen for a listener at `local`; none if the port does not serve it.
    fn places_of(&self, local: SocketAddr, v6_only: bool) -> Vec<Endpoint> {
        let of = |ip: IpAddr| Endpoint::new(ip, local.port());
        let any_v4 = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        match local.ip() {
            _ if self.slow.routes().own().is_empty() => Vec::new(),
            ip if ip.is_unspecified() && ip.is_ipv6() && !v6_only => vec![of(ip), of(any_v4)],
            ip if ip.is_unspecified() || self.owns(ip) => vec![of(ip)],
            _ => Vec::new(),
        }
    }

    /// Handles the cores' exceptions. True: more wait.
    #[must_use]
    pub fn hear(&mut self, now: base::Instant) -> bool {
        let mut more = false;
        for core in 0..self.exceptions.len() {
            let Self { slow, exceptions, .. } = self;
            let receiver = &mut exceptions[core];
            receiver.awake();
            let mut left = EXCEPTIONS_MAX;
            let mut take = |exception, frame: &[u8]| slow.handle_exception(now, core as u8, exception, frame);
            while left > 0 && receiver.pop(&mut take).is_some() {
                left -= 1;
            }
            more |= !receiver.prepare_sleep();
        }
        more
    }

    /// Runs the slow path's timers that are due.
    pub fn handle_timers(&mut self, now: base::Instant) {
        if self.slow.next_deadline() <= now {
            self.slow.handle_timers(now);
        }
    }

    /// A time of the slow path as the system counts it.
    pub fn system_time(&self, at: base::Instant) -> Instant {
        self.began + Duration::from_nanos(at.as_ns())
    }

    /// When the slow path's next timer is due.
    pub fn due(&self) -> Option<Instant> {
        let next = self.slow.next_deadline();
        (next != base::Instant::NEVER).then(|| self.system_time(next))
    }
}

/// The unspecified address of the same family.
pub fn any_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}
