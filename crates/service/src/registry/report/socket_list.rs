//! The lists of `towpath ss` and `towpath explain`, made in pieces.

use crate::registry::Registry;
use crate::registry::listen::direct::InUse;
use crate::registry::listen::table::Listener;
use crate::registry::memory::connection::Stage;
use crate::registry::memory::region::Use;
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::report::bottleneck::Limit;
use crate::registry::report::explain::{self, Detail, Explained, Explanation};
use crate::registry::report::job::{Making, Refused};
use crate::registry::report::{Socket, Viewer, name_of};
use crate::registry::scaling::report::Totals;
use crate::registry::tcp::{Carrier, Flow};
use shm::Slot;
use slowpath::Listed;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Socket blocks looked at together.
const BLOCKS: u32 = 512;
/// Entries that a look at further socket blocks counts as: the kernel is asked which of their pages are present.
const ASKING: usize = 16;

/// The tables that are gone through, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Table {
    Applications,
    Listeners,
    /// The socket blocks of regions: which lent slots are in use.
    Blocks,
    Pairs,
    Relays,
    Flows,
    Channels,
}

impl Table {
    fn next(self) -> Option<Self> {
        Some(match self {
            Self::Applications => Self::Listeners,
            Self::Listeners => Self::Blocks,
            Self::Blocks => Self::Pairs,
            Self::Pairs => Self::Relays,
            Self::Relays => Self::Flows,
            Self::Flows => Self::Channels,
            Self::Channels => return None,
        })
    }
}

/// A list of all sockets that is being made.
#[derive(Debug)]
pub struct SocketList {
    is_detailed: bool,
    viewer: Viewer,
    table: Table,
    /// The entries of the table that are still to be looked at, by id.
    ids: Vec<u32>,
    /// The slots of the last of them below this number have been looked at.
    slot: u32,
    /// Lent slots with a socket in them.
    in_use: InUse,
    /// How far the list of connections over the port has come.
    flows: Listed,
    applications: Vec<Explained>,
    sockets: Vec<Socket>,
    cores: Option<Totals>,
}

impl SocketList {
    /// Begins the list for `towpath ss`, or with `is_detailed` for `towpath explain`.
    pub fn new(registry: &Registry, is_detailed: bool, viewer: Viewer) -> Self {
        let mut list = Self {
            is_detailed,
            viewer,
            table: Table::Applications,
            ids: Vec::new(),
            slot: 0,
            in_use: InUse::new(),
            flows: Listed::default(),
            applications: Vec::new(),
            sockets: Vec::new(),
            cores: registry.scaling.totals_of_several(registry.cores.len()),
        };
        list.open(registry, Table::Applications);
        list
    }

    /// Lines found so far.
    #[cfg(test)]
    pub fn found(&self) -> usize {
        self.sockets.len()
    }

    /// Turns to a table.
    fn open(&mut self, registry: &Registry, table: Table) {
        (self.table, self.slot) = (table, 0);
        let is_lent = || registry.pairs.values().any(|pair| pair.lent() > 0);
        self.ids = match table {
            Table::Applications if self.is_detailed => registry.applications.keys().copied().collect(),
            Table::Blocks if is_lent() => registry.regions.keys().copied().collect(),
            Table::Applications | Table::Blocks | Table::Flows => Vec::new(),
            Table::Listeners => registry.listeners.all.keys().copied().collect(),
            Table::Pairs => registry.pairs.ids(),
            Table::Relays => registry.relays.keys().copied().collect(),
            Table::Channels if registry.channels.is_some() => registry.regions.keys().copied().collect(),
            Table::Channels => Vec::new(),
        };
    }

    /// Looks at a part of the last entry, or at all of it. Returns the number of entries that it counts as.
    fn look(&mut self, registry: &Registry, id: u32, most: usize) -> usize {
        match self.table {
            Table::Applications => {
                self.ids.pop();
                let a = registry.applications.get(&id).filter(|a| self.viewer.sees(a.uid));
                let explained = a.map(Explained::of);
                let size = explained.as_ref().map_or(0, Explained::len);
                self.applications.extend(explained);
                size + 1
            }
            Table::Listeners => {
                self.ids.pop();
                let line = registry.listeners.all.get(&id).map(|listener| of_listener(registry, listener));
                self.add(line);
                1
            }
            Table::Blocks => self.look_at_blocks(registry, id),
            Table::Pairs => {
                let slots = registry.pairs.get(id).map_or(0..0, |pair| self.slot..pair.slots_end());
                let slots = self.take_slots(slots, most);
                slots.clone().for_each(|slot| self.add_pair_slot(registry, id, slot));
                slots.len() + 1
            }
            Table::Relays => {
                self.ids.pop();
                self.add_relay(registry, id);
                2
            }
            Table::Channels => {
                let slots = registry.regions.get(&id).map_or(0..0, |r| self.slot..r.slots.end_used());
                let slots = self.take_slots(slots, most);
                for slot in slots.clone() {
                    self.add(registry.channel_line(id, slot));
                }
                slots.len() + 1
            }
            Table::Flows => 0,
        }
    }

    /// The next slots of an entry, at most `most`. Behind the last of them the entry is done.
    fn take_slots(&mut self, slots: Range<u32>, most: usize) -> Range<u32> {
        let end = slots.end.min(slots.start.saturating_add(u32::try_from(most).unwrap_or(u32::MAX)));
        self.slot = end;
        if end >= slots.end {
            self.ids.pop();
            self.slot = 0;
        }
        slots.start..end.max(slots.start)
    }

    fn look_at_blocks(&mut self, registry: &Registry, id: u32) -> usize {
        let Some(r) = registry.regions.get(&id) else {
            self.take_slots(0..0, 0);
            return 1;
        };
        let all = self.slot..r.memory.region().layout().params.slots;
        let blocks = self.take_slots(all, BLOCKS as usize);
        let mut count = ASKING;
        for block in r.sock_blocks_in(blocks) {
            count += 1;
            self.in_use.extend(registry.lent_slot_of(block));
        }
        count
    }

    fn add_pair_slot(&mut self, registry: &Registry, id: u32, slot: u32) {
        let Some(pair) = registry.pairs.get(id) else { return };
        let (Some(connection), Some(Slot { half })) = (pair.connection(slot), pair.region.slot(slot)) else {
            return;
        };
        let is_unused =
            connection.stage == Stage::Lent && !self.in_use.contains(&SlotKey { region: id, slot });
        for side in (0..2).filter(|_| !is_unused) {
            self.add(registry.end_line("pair", connection, side, &half[side], &half[side ^ 1]));
        }
    }

    fn add_relay(&mut self, registry: &Registry, id: u32) {
        let Some(relay) = registry.relays.get(&id) else { return };
        for (side, SlotKey { region, slot }) in relay.places() {
            let halves = registry.regions.get(&region).and_then(|r| r.memory.halves(slot));
            let Some((service, application)) = halves else { continue };
            self.add(registry.end_line("relay", &relay.connection, side, application, service));
        }
    }

    /// Adds a line as the viewer may see it.
    fn add(&mut self, line: Option<Socket>) {
        let Some(mut line) = line.filter(|line| !self.is_detailed || self.viewer.sees(line.uid)) else {
            return;
        };
        line.hide_from(self.viewer);
        if !self.is_detailed {
            line.detail = None;
        }
        self.sockets.push(line);
    }
}

impl Making for SocketList {
    fn go_on(&mut self, registry: &Registry, most: usize) -> bool {
        let mut left = most;
        while left > 0 {
            if self.table == Table::Flows {
                let mut lines = Vec::new();
                let mut flows = std::mem::take(&mut self.flows);
                let is_over =
                    registry.tcp.slow.list(&mut flows, left, |s| lines.extend(of_flow(registry, s)));
                self.flows = flows;
                lines.into_iter().for_each(|line| self.add(Some(line)));
                left = 0;
                if is_over {
                    self.open(registry, Table::Channels);
                }
                continue;
            }
            if let Some(id) = self.ids.last().copied() {
                left = left.saturating_sub(self.look(registry, id, left));
                continue;
            }
            match self.table.next() {
                Some(table) => self.open(registry, table),
                None => return true,
            }
        }
        false
    }

    fn write(self: Box<Self>) -> Result<Vec<u8>, Refused> {
        let Self { is_detailed, mut applications, mut sockets, cores, .. } = *self;
        let order = |s: &Socket| (s.kind, s.number, s.local, s.remote);
        sockets.sort_unstable_by_key(order);
        if !is_detailed {
            return Ok(serde_json::to_vec(&sockets)?);
        }
        applications.sort_by_key(|a| a.number);
        Ok(serde_json::to_vec(&Explanation { applications, sockets, cores })?)
    }
}

fn of_listener(registry: &Registry, listener: &Listener) -> Socket {
    let listening = if listener.grants.free() == 0 { Limit::Accept } else { Limit::Connections };
    let present = listener.holders.present().filter(|id| registry.applications.contains_key(id)).min();
    let holder = present.or_else(|| registry.acceptors(listener).map(|a| a.id).min());
    Socket {
        state: "LISTEN",
        local: listener.local,
        kind: "listener",
        recv_queue: listener.grants.waiting() as u64,
        send_queue: u64::from(listener.grants.backlog()),
        detail: Some(Box::new(Detail::of(listening))),
        ..registry.blank(holder.unwrap_or(listener.home.application))
    }
}

/// The line of a connection over the port; `None` for a listener.
fn of_flow(registry: &Registry, s: &slowpath::Socket) -> Option<Socket> {
    let remote = s.remote?;
    let slot = s.owner.and_then(|owner| {
        let region = registry.regions.get(registry.indices.get(u32::from(owner.region))?)?;
        let (service, app) = region.memory.halves(owner.slot)?;
        let key = SlotKey { region: region.memory.id, slot: owner.slot };
        Some((region.owner, service, app, key))
    });
    let info = s.flow.and_then(|flow| registry.tcp.slow.info(registry.tcp_now(), flow));
    let load = |word: &AtomicU64| word.load(Relaxed);
    let owner = s.owner.filter(|_| registry.cores.len() > 1);
    let group = owner.map(|_| wire::FourTuple::new(s.local, remote).group());
    let mut line = registry.blank(slot.map_or(0, |(owner, ..)| owner));
    let halves = slot.as_ref().map(|(_, service, app, _)| (*service, *app));
    let mut detail = explain::of_flow(s.state, halves, info.clone());
    detail.channel = s.owner.and_then(|owner| registry.why_plain(owner.region, owner.slot));
    detail.class = s.flow.and_then(|flow| registry.tcp.slow.asked_class(flow)).map(|class| class.to_string());
    line.detail = Some(Box::new(detail));
    if let Some((_, service, app, key)) = slot {
        line.congestion = registry.governed(key, info.as_ref());
        line.recv_queue = load(&service.tx_head).saturating_sub(load(&app.rx_tail));
        line.send_queue = load(&app.tx_head).saturating_sub(load(&service.rx_tail));
        (line.bytes_in, line.bytes_out) = (load(&app.rx_tail), load(&app.tx_head));
    }
    Some(Socket {
        state: name_of(s.state),
        local: s.local.into(),
        remote: Some(SocketAddr::from(remote)),
        kind: "flow",
        retransmits: info.as_ref().map_or(0, |i| u64::from(i.total_retrans)),
        rtt_us: info.as_ref().map_or(0, |i| i.rtt),
        cwnd: info.as_ref().map_or(0, |i| i.snd_cwnd),
        mss: info.as_ref().map_or(0, |i| i.snd_mss),
        pacing_rate: info.as_ref().map_or(0, |i| i.pacing_rate),
        idle_ms: info.as_ref().map(|i| i.last_data_sent.min(i.last_data_recv)),
        core: owner.map(|owner| owner.core),
        group,
        ..line
    })
}

/// The channel flow in a slot; `None`: there is none.
pub fn channel_flow(used: Option<&Use>) -> Option<(&Flow, bool)> {
    match used? {
        Use::Flow(flow @ Flow { carrier: Carrier::Channel { pending, .. }, .. }) => {
            Some((flow, pending.is_some()))
        }
        _ => None,
    }
}
