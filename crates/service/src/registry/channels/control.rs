//! The control thread's part of channels: makes the service's own region, chooses which connections go by channel, gives sockets their
//! slots, and makes the channels' connections. Moves no bytes.

use super::OWNER;
use super::ends::At;
use super::engine::{NO_CHANNEL, Opening, Say, Start, Told};
use super::peer_log_limit::PeerLogLimit;
use super::peers::{Peers, Standing};
use super::rules::{ChannelRule, Choice, Why, choose, is_in};
use super::snapshot::Snapshot;
use crate::ServiceError;
use crate::config::channels::Settings;
use crate::config::values::Network;
use crate::cores::wakers::new_eventfd;
use crate::cores::{Command, Core};
use crate::registry::listen::origin::Origin;
use crate::registry::listen::table::canonical;
use crate::registry::memory::region::{AppRegion, Use};
use crate::registry::memory::size::Size;
use crate::registry::tcp::{Carrier, Flow};
use crate::registry::{Answer, Registry};
use channel::hub::{Over, Rejected};
use channel::lane::{Class, Lane, Sharing};
use channel::open::{KEEPALIVE, NODELAY, Open};
use channel::scheduler::Policy;
use channel::session::ECONNREFUSED;
use channel::{Hub, SessionId};
use control::{AcceptRecord, KernelReason, RegionInfo, Reply, SocketOptions};
use flow::Limits;
use queue::stream::{raise, watch};
use rustix::io::Errno;
use shm::Side;
use shm::half_flags::{ERRNO_SHIFT, FAILED, OPEN};
use slowpath::Connect;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use wire::Endpoint;

/// Index of the core with the engine.
const ENGINE_CORE: usize = 0;
/// The slow path's name for the listeners at the channel port.
pub const TOKEN: u64 = u64::MAX;
/// Connections to the channel port that wait for this thread at once.
pub const BACKLOG: u32 = 64;
/// Slots of the service's own region: a few channels for each of very many sessions.
const SLOTS: u32 = 4_096;
/// Bytes of each side of it that are present at first: rings of a few channels.
const PRESENT: u64 = 4 << 20;
/// Sockets of peers that wait at a listener beyond its backlog.
const WAITING_MAX: usize = 128;
/// Time for the engine to answer a question.
const ANSWER_TIME: Duration = Duration::from_millis(100);
/// Longest time that the end of the service waits for bytes of closed sockets, and for its peers.
pub const SHUT_TIME: Duration = Duration::from_millis(500);
/// Longest time that it then waits for the answers to the last resets.
const REST_TIME: Duration = Duration::from_millis(200);

/// The control thread's state of channels.
#[derive(Debug)]
pub struct Channels {
    rules: Vec<ChannelRule>,
    allowed: Vec<Network>,
    port: u16,
    sharing: Sharing,
    /// How bulk data is placed, if the configuration says so.
    policy: Option<Policy>,
    /// The service's own region.
    pub own: u32,
    /// The session of each channel that this host has made, by the slot of its connection.
    pub placed: HashMap<u32, SessionId>,
    /// What is known of other hosts.
    pub peers: Peers,
    /// Both ends of each virtual socket of this host.
    ends: HashSet<[SocketAddr; 2]>,
    /// Sockets opened and accepted, and those that went by plain TCP after all.
    pub counted: Counted,
    /// How much the log has said of each peer: of channels refused in their handshake, and of sessions that have ended.
    log_limit: PeerLogLimit,
}

/// Counts since the service started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Virtual sockets that programs of this host have opened.
    pub opened: u64,
    /// Virtual sockets that peers have opened, and that listeners of this host got.
    pub accepted: u64,
    /// Virtual sockets that became plain TCP connections, because their session was lost before the peer accepted them.
    pub unserved: u64,
    /// Sessions that have ended, for any reason.
    pub over: u64,
}

/// How a connection over the port goes.
enum Way {
    Plain(Why),
    Channel(ByChannel),
    Refused(Why),
}

/// A connection by channel.
struct ByChannel {
    lane: Lane,
    is_required: bool,
    why: Why,
}

impl Registry {
    /// Makes the service's own region, and starts the engine, if channels are configured.
    ///
    /// # Errors
    /// The region cannot be made, or the channel port is taken.
    pub fn begin_channels(&mut self, hub: channel::Config, settings: Settings) -> Result<(), ServiceError> {
        let failed = |error| ServiceError::Os { doing: "make the channels' region", error };
        let wakers: rustix::io::Result<Vec<_>> = (0..=self.cores.len()).map(|_| new_eventfd()).collect();
        let (id, wakers) = (self.new_region_id(), wakers.map_err(failed)?);
        let index = self.indices.take(id).map_err(|_| failed(Errno::USERS))? as u16;
        let size = Size { slots: SLOTS.min(self.config.region_slots), data_len: self.config.region_data };
        let region = AppRegion::create(id, index, OWNER, size, wakers, Limits::none(), self.now)
            .map_err(|_| failed(Errno::NOMEM))?;
        self.introduce_region(&region, OWNER, ENGINE_CORE);
        let memory = region.memory.clone();
        self.regions.insert(id, AppRegion { sealed: true, ..region });
        let Settings { rules, allowed, port, is_shared, channels, policy, .. } = settings;
        let sharing = if is_shared { Sharing::Always } else { Sharing::SameUser };
        self.channels = Some(Channels {
            rules,
            allowed,
            port,
            sharing,
            policy,
            own: id,
            placed: HashMap::new(),
            peers: Peers::default(),
            ends: HashSet::new(),
            counted: Counted::default(),
            log_limit: PeerLogLimit::default(),
        });
        self.grow_own(id, PRESENT.min(size.data_len));
        let own: Vec<IpAddr> = self.tcp.slow.routes().own().iter().map(|own| own.addr).collect();
        for addr in own {
            self.tcp
                .slow
                .listen(Endpoint::new(addr, port), TOKEN, BACKLOG)
                .map_err(|_| failed(Errno::ADDRINUSE))?;
        }
        let cores = self.cores.iter().map(Core::waker).collect();
        let start = Start { hub, memory, cores, ring_most: self.config.ring_max as usize, channels };
        self.command(ENGINE_CORE, Command::BeginChannels(Box::new(start)));
        Ok(())
    }

    /// Makes `bytes` of each side of the service's own region present.
    pub fn grow_own(&mut self, region: u32, bytes: u64) {
        let Some(r) = self.regions.get(&region) else { return };
        let memory = r.memory.clone();
        let (before, most) = (memory.area.lendable(), memory.region().layout().params.data_len);
        let bytes = bytes.min(most);
        if bytes <= before {
            return;
        }
        let more = |side| memory.region().populate(side, before as usize, (bytes - before) as usize);
        match more(Side::Zero).and_then(|()| more(Side::One)) {
            Ok(()) => memory.area.set_watermark(bytes),
            Err(e) => tracing::error!("the channels' region cannot grow: {e}"),
        }
        self.command(ENGINE_CORE, Command::Fed(region));
    }

    /// Gives the engine a command.
    pub fn say(&self, say: Say) {
        self.command(ENGINE_CORE, Command::Channels(say));
    }

    /// As [`Self::say`], for what the caller waits for: it goes before what is still to be carried out.
    fn say_at_once(&self, say: Say) {
        self.cores[ENGINE_CORE].say(Command::Channels(say));
    }

    /// Connects over the port: by channel where rules and peer allow, else by plain TCP.
    pub fn connect_out(
        &mut self,
        id: u32,
        ends: [SocketAddr; 2],
        asked: SocketAddr,
        options: SocketOptions,
    ) -> Answer {
        let way = self.way_to(id, ends[1], &options);
        let why = match way {
            Way::Channel(how) => return self.channel_connect(id, ends, asked, options, how),
            Way::Refused(why) => return Answer::refused(Errno::NETUNREACH, &format!("no channel: {why}")),
            Way::Plain(why) => why,
        };
        let answer = self.tcp_connect(id, ends, asked, options);
        if let Answer::Reply(Reply::Connecting { region, slot, .. }, _) = &answer
            && self.channels.is_some()
            && let Some(Use::Flow(flow)) =
                self.regions.get_mut(&region.id).and_then(|r| r.slots.get_mut(*slot))
        {
            flow.why = Some(why);
        }
        answer
    }

    fn way_to(&mut self, id: u32, remote: SocketAddr, options: &SocketOptions) -> Way {
        let uid = self.applications.get(&id).map_or(0, |a| a.uid);
        let rules = self.channels.as_ref().map_or(&[][..], |channels| &channels.rules);
        let (class, is_required, why) = match choose(rules, remote, options) {
            Choice::Plain(why) => return Way::Plain(why),
            Choice::Channel { class, is_required, why } => (class, is_required, why),
        };
        let no = |why| if is_required { Way::Refused(why) } else { Way::Plain(why) };
        let now = self.now;
        let is_bounded = self.own_region(id).is_some_and(|region| self.is_rate_bounded(region));
        let Some(channels) = &mut self.channels else { return no(Why::NoChannels) };
        if !channels.allows(remote) {
            return no(Why::NotAPeer);
        }
        if is_bounded {
            return no(Why::Rate);
        }
        let lane = Lane::of(remote.ip(), class, uid, channels.sharing);
        match channels.peers.standing(now, remote.ip()) {
            Standing::Speaks => Way::Channel(ByChannel { lane, is_required, why }),
            Standing::Silent(_) => no(Why::NoService),
            _ if is_required => Way::Channel(ByChannel { lane, is_required, why }),
            Standing::Asked => no(Why::NotYet),
            Standing::Unknown => {
                channels.peers.ask(now, remote.ip());
                self.say(Say::Ask(lane));
                no(Why::NotYet)
            }
        }
    }

    /// True if the policy bounds the rate at which the region's application sends.
    fn is_rate_bounded(&self, region: u32) -> bool {
        self.regions.get(&region).is_some_and(|r| r.memory.area.limits().rate().is_some())
    }

    fn channel_connect(
        &mut self,
        id: u32,
        [bound, remote]: [SocketAddr; 2],
        asked: SocketAddr,
        options: SocketOptions,
        ByChannel { lane, is_required, why }: ByChannel,
    ) -> Answer {
        let Some(region) = self.own_region(id) else { return Answer::kernel(KernelReason::NotMapped) };
        if !self.may_have_flow(id) {
            return Answer::kernel(KernelReason::TooManyFlows);
        }
        let (bound, to) = (canonical(bound), Endpoint::new(remote.ip(), remote.port()));
        let (now, ends) = (self.tcp_now(), self.channels.as_ref().map(|channels| &channels.ends));
        let is_used = |at: Endpoint| ends.is_some_and(|ends| ends.contains(&[SocketAddr::from(at), remote]));
        let local = match self.tcp.slow.choose_end(now, Endpoint::new(bound.ip(), bound.port()), to, is_used)
        {
            Ok(local) => SocketAddr::from(local),
            Err(error) => {
                let errno = Errno::from_raw_os_error(i32::from(error.errno()));
                return Answer::refused(errno, &error.to_string());
            }
        };
        let carrier = Carrier::Channel { pending: None, is_gone: false, options };
        let flow = Flow { carrier, why: Some(why), ..self.new_flow(id, [local, remote], None) };
        let Some(slot) = self.take_channel_slot(region, flow) else {
            return Answer::kernel(KernelReason::RegionFull);
        };
        let Some(memory) = self.regions.get(&region).map(|r| r.memory.clone()) else { return Answer::Silent };
        let flags = if options.keep_alive { KEEPALIVE } else { 0 } | NODELAY;
        let open = Open { from_port: local.port(), to: remote, options: flags };
        let opening = Opening { memory: memory.clone(), slot, lane, open, is_required };
        self.say(Say::Open(Box::new(opening)));
        self.accelerated(id, |p| &mut p.connected, 1);
        if let Some(channels) = &mut self.channels {
            channels.counted.opened += 1;
        }
        let info = RegionInfo::of(&memory.region().layout().params, Side::One, true);
        let local = crate::registry::local::as_asked(local, asked);
        Answer::plain(Reply::Connecting { region: info, slot, local, lent: None })
    }

    /// Takes a slot for a virtual socket. Its application rings the core with the engine.
    fn take_channel_slot(&mut self, region: u32, flow: Flow) -> Option<u32> {
        let (slot, _) = self.take_flow_slot(region, flow)?;
        if let Some((own, _)) = self.regions.get(&region).and_then(|r| r.memory.halves(slot)) {
            watch(own, Some(ENGINE_CORE as u32));
        }
        if let Some(channels) = &mut self.channels {
            channels.ends.insert(flow.ends);
        }
        Some(slot)
    }

    /// Handles a report of the engine.
    pub fn channel_told(&mut self, told: Told) {
        match told {
            Told::Connect { channel, session, peer } => self.make_channel(channel, session, peer),
            Told::Left { slot } => {
                if let Some(own) = self.channels.as_ref().map(|channels| channels.own)
                    && self.is_slot_released(own, slot)
                {
                    self.close_flow(own, slot, false);
                }
            }
            Told::Incoming { at, peer, open } => {
                if let Err(errno) = self.socket_arrives(at, peer, &open) {
                    self.say(Say::Refuse(at, errno));
                }
            }
            Told::Gone { region, slot } => self.channel_gone(region, slot),
            Told::Unserved { region, slot, why } => self.serve_plainly(region, slot, why),
            Told::Speaks(peer) => {
                let now = self.now;
                self.channels.iter_mut().for_each(|channels| channels.peers.speaks(now, peer));
            }
            Told::Over(over) => self.session_over(over),
            Told::Rejected(Rejected { peer, why }) => {
                let now = self.now;
                let what = format!("a channel did not come through its handshake: {why}");
                let line =
                    self.channels.as_mut().and_then(|channels| channels.log_limit.line(now, peer, what));
                line.into_iter().for_each(|line| tracing::info!(%peer, "{line}"));
            }
            Told::Violation(region, violation) => {
                if let Some(owner) = self.regions.get(&region).map(|r| r.owner) {
                    self.doom(owner, format!("in a connection over channels: {violation}"));
                }
            }
            Told::MemoryShort { region } => self.grow(region),
        }
    }

    fn session_over(&mut self, Over { session, peer, why }: Over) {
        let now = self.now;
        let Some(channels) = &mut self.channels else { return };
        channels.peers.over(now, peer, why);
        channels.counted.over += 1;
        let line = channels.log_limit.line(now, peer, format!("a session of channels is over: {why}"));
        line.into_iter()
            .for_each(|line| tracing::info!(%peer, session = format!("{:032x}", session.0), "{line}"));
    }

    /// A peer opens a socket. The error is the errno that the peer is told.
    fn socket_arrives(&mut self, at: At, peer: IpAddr, open: &Open) -> Result<(), u32> {
        let (local, remote) = (canonical(open.to), SocketAddr::new(peer, open.from_port));
        let is_used = self.channels.as_ref().is_none_or(|channels| channels.ends.contains(&[local, remote]));
        if is_used || !self.tcp.owns(local.ip()) {
            return Err(ECONNREFUSED);
        }
        self.hear_ended_listeners();
        let candidates = self.listeners.candidates(local, None);
        let id = self.choose(&candidates).ok_or(ECONNREFUSED)?;
        let listener = self.listeners.all.get(&id).ok_or(ECONNREFUSED)?;
        let home = listener.home;
        if listener.grants.waiting() > listener.grants.backlog() as usize + WAITING_MAX
            || !self.may_have_flow(home.application)
        {
            return Err(ECONNREFUSED);
        }
        if self.is_rate_bounded(home.region) {
            return Err(NO_CHANNEL);
        }
        let carrier =
            Carrier::Channel { pending: Some(at), is_gone: false, options: SocketOptions::default() };
        let flow = Flow { carrier, ..self.new_flow(home.application, [local, remote], None) };
        let slot = self.take_channel_slot(home.region, flow).ok_or(ECONNREFUSED)?;
        if let Some(channels) = &mut self.channels {
            channels.counted.accepted += 1;
        }
        let record = AcceptRecord { region: home.region, slot, side: 1, local, peer: remote };
        self.arrive(id, (Origin::Flow(home.region, slot), record));
        Ok(())
    }

    fn channel_flow(&mut self, region: u32, slot: u32) -> Option<&mut Flow> {
        match self.regions.get_mut(&region)?.slots.get_mut(slot)? {
            Use::Flow(flow) if matches!(flow.carrier, Carrier::Channel { .. }) => Some(flow),
            _ => None,
        }
    }

    /// As `establish`, for a virtual socket that a peer has opened: the acceptor's end, 1, first; then the peer is told.
    pub fn establish_channel(&mut self, region: u32, slot: u32, end: usize) {
        let Some(Carrier::Channel { pending, .. }) =
            self.channel_flow(region, slot).map(|flow| &mut flow.carrier)
        else {
            return;
        };
        let taken = if end == 0 { pending.take() } else { None };
        let Some(memory) = self.regions.get(&region).map(|r| r.memory.clone()) else { return };
        if let Some((own, _)) = memory.halves(slot).filter(|_| end == 1) {
            raise(own, OPEN);
            self.tell(&memory, slot);
        }
        if let Some(at) = taken {
            self.say(Say::Accept(at, memory, slot));
        }
    }

    /// The application has closed a virtual socket, and the flags of its half say how. False: the slot is no virtual socket's.
    pub fn close_channel(&mut self, region: u32, slot: u32) -> bool {
        let Some(flow) = self.channel_flow(region, slot) else { return false };
        let Carrier::Channel { pending, is_gone, .. } = &mut flow.carrier else { return false };
        let refused = pending.take();
        *is_gone |= refused.is_some();
        let is_gone = *is_gone;
        if let Some(at) = refused {
            self.say(Say::Refuse(at, ECONNREFUSED));
        }
        match self.regions.get(&region).map(|r| r.memory.index) {
            _ if is_gone => self.free_flow_slot(region, slot),
            Some(index) => self.say(Say::Look(index, slot)),
            None => {}
        }
        true
    }

    /// The engine no longer uses the slot.
    fn channel_gone(&mut self, region: u32, slot: u32) {
        let is_closed = self.is_flow_closed(region, slot);
        let Some(Carrier::Channel { is_gone, .. }) =
            self.channel_flow(region, slot).map(|flow| &mut flow.carrier)
        else {
            return;
        };
        *is_gone = true;
        if is_closed {
            self.free_flow_slot(region, slot);
        }
    }

    /// Forgets the ends of a virtual socket: another may have them.
    pub fn forget_ends(&mut self, ends: &[SocketAddr; 2]) {
        self.channels.iter_mut().for_each(|channels| _ = channels.ends.remove(ends));
    }

    /// A socket cannot go by channel after all: the same slot becomes a plain connection.
    fn serve_plainly(&mut self, region: u32, slot: u32, why: Why) {
        let Some(flow) = self.channel_flow(region, slot) else { return };
        let ends = flow.ends;
        let (Carrier::Channel { options, .. }, choice) = (flow.carrier, flow.choice) else { return };
        (flow.carrier, flow.why) = (Carrier::Tcp, Some(why));
        self.forget_ends(&ends);
        if self.is_flow_closed(region, slot) {
            return self.free_flow_slot(region, slot);
        }
        let Some(memory) = self.regions.get(&region).map(|r| r.memory.clone()) else { return };
        self.channels.iter_mut().for_each(|channels| channels.counted.unserved += 1);
        let owner = slowpath::Owner { region: memory.index, slot, core: self.scaling.core_of_slot(slot) };
        let [local, remote] = ends.map(|end| Endpoint::new(end.ip(), end.port()));
        let options = self.flow_options(&options, choice);
        let what = Connect { token: 0, local: Some(local), remote, owner, options };
        if let Err(error) = self.tcp.slow.connect(self.tcp_now(), &what)
            && let Some((own, _)) = memory.halves(slot)
        {
            raise(own, FAILED | u32::from(error.errno()) << ERRNO_SHIFT);
            self.tell(&memory, slot);
        }
    }

    /// The state of all sessions; `None`: there are no channels, or the engine does not answer within a tenth of a second.
    fn channels_seen(&self) -> Option<Snapshot> {
        self.ask_for_channels()?.recv_timeout(ANSWER_TIME).ok()
    }

    /// Asks for the state of all sessions, and does not wait for it; `None`: there are no channels.
    pub fn ask_for_channels(&self) -> Option<Receiver<Snapshot>> {
        self.channels.as_ref()?;
        let (ask, answer) = channel();
        self.say_at_once(Say::Report(ask));
        Some(answer)
    }

    /// That region ends: its index is about to be another's. What its programs have written is sent by the engine, which has its memory.
    pub fn forget_channels_of(&mut self, region: &AppRegion) {
        if self.channels.is_none() {
            return;
        }
        let virtual_ends = |used: &Use| match used {
            Use::Flow(Flow { carrier: Carrier::Channel { .. }, ends, .. }) => Some(*ends),
            _ => None,
        };
        let all: Vec<_> = region.slots.iter().filter_map(|(_, used)| virtual_ends(used)).collect();
        all.iter().for_each(|ends| self.forget_ends(ends));
        self.say(Say::RegionGone(region.memory.index));
    }

    /// Begins the end of channels: resets the virtual sockets that programs still have, and lets those that programs have closed send what is
    /// under way. `is_rest`: resets those, too. Returns how long the caller waits at most until no socket is left; `None`: there are no channels.
    pub fn shut_channels(&self, is_rest: bool) -> Option<Duration> {
        self.channels.as_ref()?;
        let (say, most) = if is_rest { (Say::ShutRest, REST_TIME) } else { (Say::Shut, SHUT_TIME) };
        self.say_at_once(say);
        Some(most)
    }

    /// True while there are virtual sockets: a core that does not answer in time may have some yet.
    pub fn has_virtual_sockets(&self) -> bool {
        self.channels_seen().is_none_or(|seen| seen.census.sockets > 0)
    }
}

impl Channels {
    /// TCP port of the channel service.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The rules of `--channel-rules`, in their order.
    pub fn rules(&self) -> &[ChannelRule] {
        &self.rules
    }

    /// Why chunks of sockets of that class are placed as they are.
    pub fn policy_why(&self, class: Class) -> &'static str {
        match (class, self.policy) {
            (Class::Latency, _) => "latency: no message waits for another channel",
            (Class::Throughput, None) => "throughput: the channels share the load",
            (Class::Throughput, Some(_)) => "--channel-policy",
        }
    }

    /// True when the configuration names the peer.
    pub fn allows(&self, peer: SocketAddr) -> bool {
        self.allowed.iter().any(|network| is_in(network, peer))
    }
}

// The engine moves to the core's thread, with its hub.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Hub>();
};
