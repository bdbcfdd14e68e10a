//! Connections over the port: the slow path's events, listeners, connects, and the life of a flow's slot.
//!
//! ```text
//!   connect, Incoming --> slot taken --> established --application releases it, core lets go: Released--> slot free
//!                            |              '--core lets go: Released, application says Closed--Free------^
//!                            '--application gives up, says Closed--Free------------------------------------'
//! ```

use crate::config::values::Mac;
use crate::registry::channels::control::TOKEN;
use crate::registry::listen::origin::Origin;
use crate::registry::listen::table::canonical;
use crate::registry::local::as_asked;
use crate::registry::memory::Memory;
use crate::registry::memory::region::Use;
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::tcp::{Carrier, Flow, Place, Tcp, any_like};
use crate::registry::{Answer, Registry};
use control::{AcceptRecord, KernelReason, RegionInfo, Reply, SocketOptions};
use queue::stream::close_for;
use rustix::io::Errno;
use shm::Side;
use shm::half_flags::RELEASED;
use slowpath::{Connect, Event, Owner, PendingId, Release};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::Endpoint;

impl Registry {
    /// The present time, as the slow path counts it.
    pub fn tcp_now(&self) -> base::Instant {
        self.tcp.slow_time(self.now)
    }

    /// Handles what the cores' slow-path rings bring. True: more waits.
    #[must_use]
    pub fn hear_exceptions(&mut self) -> bool {
        let now = self.tcp_now();
        self.scaling.hear_load(now, &mut self.tcp.slow);
        self.scaling.hear_steered(now, &mut self.tcp.slow);
        let more = self.tcp.hear(now);
        // At once: an event names a slot, which a process's next message may free and take.
        self.pump_tcp();
        more
    }

    /// Handles the slow path's events, rings applications, and wakes cores with new commands.
    pub fn pump_tcp(&mut self) {
        while let Some(event) = self.tcp.slow.poll_event() {
            self.tcp_event(event);
        }
        while let Some(news) = self.tcp.slow.poll_news() {
            self.wake_for_news(news);
        }
        for core in 0..self.cores.len() {
            if self.tcp.slow.must_wake(core as u8) {
                self.wake_core(core);
            }
        }
    }

    fn tcp_event(&mut self, event: Event) {
        match event {
            Event::Established { .. } | Event::ConnectFailed { .. } | Event::Closed { .. } => {}
            Event::Incoming { token: TOKEN, local, remote, pending } => {
                self.channel_arrives([local, remote], pending);
            }
            Event::Incoming { local, remote, pending, .. } => self.incoming(local, remote, pending),
            Event::Released { region, slot } => self.flow_released(region, slot),
            Event::Violation { region, slot: _, what } => {
                if let Some(owner) = self.owner_of_index(region) {
                    self.doom(owner, format!("in a connection over the port: {what}"));
                }
            }
            Event::AddressConflict { addr, by } => tracing::warn!(
                "another station on the link, {}, says that it has our address {addr}: take it from that station, or give the \
                 service another one with --address",
                Mac(by.0)
            ),
            Event::MemoryShort { region } => {
                if let Some(region) = self.indices.get(u32::from(region)).copied() {
                    self.grow(region);
                }
            }
            Event::Steer { groups, core } => {
                self.scaling.steer(self.tcp_now(), &mut self.tcp.slow, &groups, core);
            }
            Event::MoveOver { groups } => {
                self.scaling.move_over(self.tcp_now(), &mut self.tcp.slow, groups);
            }
            Event::RegionDrained { index, region: _ } => {
                self.tcp.departing.remove(&index);
                self.indices.release(u32::from(index));
            }
        }
    }

    /// Id of the application that owns the region with that index.
    pub fn owner_of_index(&self, index: u16) -> Option<u32> {
        let region = self.indices.get(u32::from(index))?;
        self.regions.get(region).map(|r| r.owner)
    }

    /// Has the slow path listen for a listener, if the port serves its address.
    pub fn tcp_listen(&mut self, id: u32, backlog: u32) -> Result<(), slowpath::ListenError> {
        let Some(listener) = self.listeners.all.get(&id) else { return Ok(()) };
        for at in self.tcp.places_of(listener.local, listener.v6_only) {
            if let Some(place) = self.tcp.places.get_mut(&at) {
                place.listeners.push(id);
                continue;
            }
            let token = self.tcp.next_token;
            self.tcp.next_token += 1;
            self.tcp.slow.listen(at, token, backlog)?;
            self.tcp.places.insert(at, Place { token, listeners: vec![id] });
        }
        self.tcp_options(id);
        Ok(())
    }

    /// Passes a listener's socket options to the slow path. Where several listeners share an address, the last options hold for all.
    pub fn tcp_options(&mut self, id: u32) {
        let Some(listener) = self.listeners.all.get(&id) else { return };
        // The algorithm of the handshake: whether it needs ECN must be known before the peer is.
        let subject = self.flow_subject(listener.home.application, listener.local, None);
        let algorithm = self.choices.algorithm(self.choices.choose(&subject, listener.asked).law);
        let options = slowpath::FlowOptions { algorithm: Some(algorithm), ..listener.options };
        let Tcp { slow, places, .. } = &mut self.tcp;
        for place in places.values().filter(|place| place.listeners.contains(&id)) {
            slow.set_listener_options(place.token, &options);
        }
    }

    /// A listener has ended: the slow path stops listening at addresses without another one.
    pub fn tcp_unlisten(&mut self, id: u32) {
        let now = self.tcp_now();
        let Tcp { slow, places, .. } = &mut self.tcp;
        places.retain(|at, place| {
            place.listeners.retain(|l| *l != id);
            if place.listeners.is_empty() {
                slow.unlisten(now, *at);
            }
            !place.listeners.is_empty()
        });
    }

    /// Tells the slow path for how many more connections a listener's accept queue has room.
    pub fn tcp_room(&mut self, id: u32) {
        let is_of_it = |place: &&Place| place.listeners.contains(&id);
        if !self.tcp.places.values().any(|place| is_of_it(&place)) {
            return;
        }
        let room = |id: &u32| {
            let listener = self.listeners.all.get(id).filter(|l| self.has_acceptors(l))?;
            let free = listener.grants.free();
            // The slow path drops SYNs while it knows of no room: the next process that accepts must say that there is some.
            Some(if free == 0 { usize::from(self.has_room(*id)) } else { free })
        };
        let rooms: Vec<(u64, usize)> = self
            .tcp
            .places
            .values()
            .filter(is_of_it)
            .map(|place| (place.token, place.listeners.iter().filter_map(room).sum()))
            .collect();
        rooms.into_iter().for_each(|(token, room)| self.tcp.slow.set_accept_room(token, room));
    }

    /// A peer has completed its handshake: gives the connection to an accept queue.
    fn incoming(&mut self, local: Endpoint, remote: Endpoint, pending: PendingId) {
        let now = self.tcp_now();
        let (local, remote) =
            (SocketAddr::new(local.addr, local.port), SocketAddr::new(remote.addr, remote.port));
        self.hear_ended_listeners();
        let candidates = self.listeners.candidates(local, None);
        // No process accepts from the socket now, or all have closed it and the service has not heard of it yet.
        let Some(id) = self.choose(&candidates) else { return self.tcp.slow.postpone(now, pending) };
        if !self.has_room(id) {
            return self.tcp.slow.postpone(now, pending);
        }
        if !self.take_in(id, [local, remote], pending) {
            // The slow path has counted the connection: one that is refused leaves its room to the next.
            self.tcp.slow.refuse(now, pending);
            self.tcp_room(id);
        }
    }

    /// Gives a connection to the accept queue of a listener. False: it is to be refused.
    fn take_in(&mut self, id: u32, [local, remote]: [SocketAddr; 2], pending: PendingId) -> bool {
        let Some((home, asked)) = self.listeners.all.get(&id).map(|l| (l.home, l.asked)) else {
            return false;
        };
        let (application, now) = (home.application, self.tcp_now());
        if self.applications.contains_key(&application) && !self.may_have_flow(application) {
            return false;
        }
        let flow = self.new_flow(application, [local, remote], asked);
        let choice = flow.choice;
        let Some((slot, owner)) = self.take_flow_slot(home.region, flow) else { return false };
        if self.tcp.slow.accept(now, pending, owner).is_err() {
            self.free_flow_slot(home.region, slot);
            return false;
        }
        // A rule about the peer's address could not be asked before.
        let algorithm = self.choices.algorithm(choice.law);
        self.tcp.slow.set_slot_algorithm(now, owner.region, slot, algorithm);
        let record = AcceptRecord { region: home.region, slot, side: 1, local, peer: remote };
        self.arrive(id, (Origin::Flow(home.region, slot), record));
        true
    }

    /// Takes a slot with cleared halves for a flow. Returns it, and the slow path's name for it.
    pub fn take_flow_slot(&mut self, region: u32, flow: Flow) -> Option<(u32, Owner)> {
        let r = self.regions.get_mut(&region)?;
        let slot = r.slots.take(Use::Flow(flow)).ok()?;
        r.memory.region().slot(slot)?.half.iter().for_each(shm::Half::clear);
        let owner = Owner { region: r.memory.index, slot, core: self.scaling.core_of_slot(slot) };
        if let Some(a) = self.applications.get_mut(&flow.application) {
            a.sockets += 1;
            a.flows += 1;
        }
        Some((slot, owner))
    }

    /// No thread uses the slot of a flow any more.
    pub fn free_flow_slot(&mut self, region: u32, slot: u32) {
        let freed = self.regions.get_mut(&region).and_then(|r| r.slots.release(slot));
        let Some(Use::Flow(flow)) = freed else { return };
        self.forget_trusts_at(SlotKey { region, slot });
        if let Some(a) = self.applications.get_mut(&flow.application) {
            a.sockets = a.sockets.saturating_sub(1);
            a.flows = a.flows.saturating_sub(1);
        }
        match flow.carrier {
            Carrier::Channel { .. } => self.forget_ends(&flow.ends),
            Carrier::Tcp => self.channel_slot_freed(region, slot),
        }
    }

    /// Connects over the port.
    pub fn tcp_connect(
        &mut self,
        id: u32,
        [local, remote]: [SocketAddr; 2],
        asked: SocketAddr,
        options: SocketOptions,
    ) -> Answer {
        let Some(region) = self.own_region(id) else {
            return Answer::kernel(KernelReason::NotMapped);
        };
        if !self.may_have_flow(id) {
            return Answer::kernel(KernelReason::TooManyFlows);
        }
        let flow = self.new_flow(id, [local, remote], options.congestion);
        let choice = flow.choice;
        let Some((slot, owner)) = self.take_flow_slot(region, flow) else {
            return Answer::kernel(KernelReason::RegionFull);
        };
        let bound = canonical(local);
        let what = Connect {
            token: 0,
            local: Some(if bound.ip().is_unspecified() {
                // A dual-stack socket that is bound to no address connects from an address of the peer's family.
                Endpoint::new(any_like(remote.ip()), bound.port())
            } else {
                Endpoint::new(bound.ip(), bound.port())
            }),
            remote: Endpoint::new(remote.ip(), remote.port()),
            owner,
            options: self.flow_options(&options, choice),
        };
        let local = match self.tcp.slow.connect(self.tcp_now(), &what) {
            Ok(end) => SocketAddr::new(end.addr, end.port),
            Err(error) => {
                self.free_flow_slot(region, slot);
                let kernel =
                    matches!(error, slowpath::ConnectError::NoRoute | slowpath::ConnectError::NotOurs);
                return if kernel {
                    Answer::kernel(KernelReason::NoRoute)
                } else {
                    Answer::refused(Errno::from_raw_os_error(i32::from(error.errno())), &error.to_string())
                };
            }
        };
        self.accelerated(id, |p| &mut p.connected, 1);
        let Some(r) = self.regions.get_mut(&region) else { return Answer::Silent };
        if let Some(Use::Flow(flow)) = r.slots.get_mut(slot) {
            flow.ends[0] = local;
        }
        let info = RegionInfo::of(&r.memory.region().layout().params, Side::One, true);
        let local = as_asked(local, asked);
        Answer::plain(Reply::Connecting { region: info, slot, local, lent: None })
    }

    /// Answers `Request::Info`: the `TCP_INFO` of a connection over the port.
    pub fn flow_info(&self, id: u32, region: u32, slot: u32) -> Answer {
        let (Some(a), Some(r)) = (self.applications.get(&id), self.regions.get(&region)) else {
            return Answer::refused(Errno::NOTCONN, "that region is gone");
        };
        if !a.descends_from(r.owner) {
            return Answer::Offence("it asked about a stranger's socket".to_owned());
        }
        let (SlotKey { region, slot }, _) = self.origin_of(SlotKey { region, slot });
        let Some(r) = self.regions.get(&region) else {
            return Answer::refused(Errno::NOTCONN, "it is no connection over the port");
        };
        let Some(Use::Flow(flow)) = r.slots.get(slot) else {
            return Answer::refused(Errno::NOTCONN, "no connection lives there");
        };
        // The numbers of a virtual socket are those of a channel.
        let of_channel = match flow.carrier {
            Carrier::Channel { .. } => self.channel_to(flow.ends[1].ip()),
            Carrier::Tcp => None,
        };
        let (index, at) = of_channel.unwrap_or((r.memory.index, slot));
        let slow = &self.tcp.slow;
        let congestion = match of_channel {
            Some(_) => slow.slot_algorithm(index, at).map(|algorithm| algorithm.to_string()),
            None => Some(flow.choice.law.to_string()),
        };
        match slow.slot_info(self.tcp_now(), index, at).zip(congestion) {
            Some((info, congestion)) => Answer::plain(Reply::Info { info: Box::new(info), congestion }),
            None => Answer::refused(Errno::NOTCONN, "no connection lives there"),
        }
    }

    /// The application has closed a flow, or is dead: raises the flags that it has not raised itself.
    pub fn close_flow(&mut self, region: u32, slot: u32, reset: bool) {
        let Some(r) = self.regions.get_mut(&region) else { return };
        let memory = r.memory.clone();
        let Some(Use::Flow(flow)) = r.slots.get_mut(slot) else { return };
        if std::mem::replace(&mut flow.closed, true) {
            return;
        }
        if let Some((own, app)) = memory.halves(slot) {
            close_for(app, own, reset);
        }
        if !self.close_channel(region, slot)
            && self.tcp.slow.release_slot(memory.index, slot) == Release::Free
        {
            self.free_flow_slot(region, slot);
        }
    }

    /// The core no longer uses the slot.
    fn flow_released(&mut self, index: u16, slot: u32) {
        if let Some(region) = self.indices.get(u32::from(index)).copied()
            && self.is_flow_closed(region, slot)
        {
            self.free_flow_slot(region, slot);
        }
        if self.tcp.departing.contains_key(&index) {
            self.remove_tcp_region(index, false);
        }
    }

    /// Whether the application has closed the flow in that slot: the service has closed it for the application, or the slot is released.
    pub fn is_flow_closed(&self, region: u32, slot: u32) -> bool {
        let what = self.regions.get(&region).and_then(|r| r.slots.get(slot));
        matches!(what, Some(Use::Flow(flow)) if flow.closed || self.is_slot_released(region, slot))
    }

    /// Whether the application has released that slot of an application region.
    pub fn is_slot_released(&self, region: u32, slot: u32) -> bool {
        let halves = self.regions.get(&region).and_then(|r| r.memory.halves(slot));
        // SeqCst: pairs with `Endpoint::must_say_closed`.
        halves.is_some_and(|(_, app)| app.flags.load(Ordering::SeqCst) & RELEASED != 0)
    }

    /// The application is gone: its flows end, after sending the bytes that it has written, unless it was an offender.
    pub fn depart_region(&mut self, memory: Arc<Memory>, offender: bool) {
        let index = memory.index;
        self.tcp.departing.insert(index, memory);
        self.remove_tcp_region(index, offender);
    }

    fn remove_tcp_region(&mut self, index: u16, at_once: bool) {
        if at_once || self.tcp.slow.region_flows(index) == 0 {
            self.tcp.slow.remove_region(self.tcp_now(), index);
        }
    }
}
