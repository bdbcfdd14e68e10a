//! The threads that move bytes. Each sleeps on one epoll: its command bell and a bell per application region.

use crate::ServiceError;
use crate::bells::Bells;
use crate::memory::Memory;
use crate::registry::write_eventfd;
use crate::relay::{End, Outcome, Relays};
use crate::requests::new_eventfd;
use queue::Doorbell;
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use shm::Side;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// From the control thread.
#[derive(Debug)]
pub enum Command {
    /// Serve this region; its application rings this bell.
    AddRegion(Arc<Memory>, Arc<OwnedFd>),
    /// Serve it no more once its relays have ended.
    RemoveRegion(u16),
    /// Relay.
    Open(u32, Box<[End; 2]>),
    /// Something about that relay has changed.
    Look(u32),
}

/// To the control thread.
#[derive(Debug)]
pub enum Report {
    /// Of a relay.
    Relay(Outcome),
    /// The region of that index is not used here any more.
    Drained(u16),
}

/// The control thread's hand on one core.
#[derive(Debug)]
pub struct Core {
    commands: Sender<Command>,
    bell: Arc<OwnedFd>,
    /// What it says.
    pub reports: Receiver<Report>,
    /// Bytes its relays have copied.
    pub relayed: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Token of the command bell; regions have their index.
const COMMANDS: u64 = u64::MAX;

impl Core {
    /// Starts core `index`. It writes `told` when it has reported something.
    pub fn start(index: u32, bells: Arc<Bells>, told: Arc<OwnedFd>) -> Result<Self, ServiceError> {
        let os = |doing| move |error: Errno| ServiceError::Os { doing, error };
        let bell = new_eventfd().map_err(os("make an eventfd"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("make an epoll instance"))?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, bell.as_fd(), epoll::EventData::new_u64(COMMANDS), flags)
            .map_err(os("watch a descriptor"))?;
        let (commands, inbox) = channel();
        let (outbox, reports) = channel();
        let relays = Relays::default();
        let relayed = relays.bytes.clone();
        let mut worker = Worker {
            index,
            bells,
            epoll,
            inbox,
            outbox,
            told,
            relays,
            regions: HashMap::new(),
            leaving: Vec::new(),
            restless: Vec::new(),
        };
        let builder = std::thread::Builder::new().name(format!("towpath-core{index}"));
        let thread = builder.spawn(move || worker.run()).map_err(|e| ServiceError::Os {
            doing: "start a thread",
            error: Errno::from_io_error(&e).unwrap_or(Errno::AGAIN),
        })?;
        Ok(Self { commands, bell, reports, relayed, thread: Some(thread) })
    }

    /// Says something to the core.
    pub fn say(&self, command: Command) {
        // A core ends only after this sender is gone.
        if self.commands.send(command).is_ok() {
            write_eventfd(self.bell.as_fd());
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let (closed, _) = channel();
        self.commands = closed;
        write_eventfd(self.bell.as_fd());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a core ended by a bug of its own");
        }
    }
}

struct Worker {
    index: u32,
    bells: Arc<Bells>,
    epoll: OwnedFd,
    inbox: Receiver<Command>,
    outbox: Sender<Report>,
    told: Arc<OwnedFd>,
    relays: Relays,
    regions: HashMap<u16, (Arc<Memory>, Arc<OwnedFd>)>,
    /// Regions to forget when their relays have ended.
    leaving: Vec<u16>,
    /// Regions whose bells never fell silent while we looked: looked at again before sleeping.
    restless: Vec<u16>,
}

impl Worker {
    fn run(&mut self) {
        let mut events = Vec::with_capacity(256);
        let mut busy = false;
        loop {
            let timeout = if busy { Some(Timespec::default()) } else { None };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return tracing::error!("core {} cannot wait: {e}", self.index),
            }
            let mut rung = std::mem::take(&mut self.restless);
            for event in events.drain(..) {
                let token = event.data.u64();
                if token != COMMANDS {
                    rung.push(token as u16);
                }
            }
            rung.into_iter().for_each(|region| self.rung(region));
            if !self.obey() {
                return;
            }
            let mut outcomes = Vec::new();
            busy = self.relays.work(&self.bells, &mut outcomes) || !self.restless.is_empty();
            self.report(outcomes);
        }
    }

    /// Takes the news of a region.
    fn rung(&mut self, region: u16) {
        let Some((memory, _)) = self.regions.get(&region) else { return };
        let Some(block) = memory.region().context(Side::Zero, self.index) else { return };
        let layout = memory.region().layout();
        let doorbell = Doorbell::new(block, layout.words_per_group);
        doorbell.drain(layout.params.slots, |slot| self.relays.news(region, slot));
        if !doorbell.prepare_sleep() {
            self.restless.push(region);
        }
    }

    /// Obeys the control thread. False when it is gone.
    fn obey(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(Command::AddRegion(memory, bell)) => self.add(memory, bell),
                Ok(Command::RemoveRegion(region)) => self.leaving.push(region),
                Ok(Command::Open(id, ends)) => self.relays.open(id, *ends),
                Ok(Command::Look(id)) => self.relays.look(id),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn add(&mut self, memory: Arc<Memory>, bell: Arc<OwnedFd>) {
        let index = memory.index;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let token = epoll::EventData::new_u64(u64::from(index));
        if let Err(e) = epoll::add(&self.epoll, bell.as_fd(), token, flags) {
            tracing::error!("core {} cannot watch a region: {e}", self.index);
        }
        self.regions.insert(index, (memory, bell));
        self.rung(index);
    }

    fn report(&mut self, outcomes: Vec<Outcome>) {
        let mut said = false;
        let leaving = std::mem::take(&mut self.leaving);
        for region in leaving {
            if self.relays.uses(region) {
                self.leaving.push(region);
                continue;
            }
            if let Some((_, bell)) = self.regions.remove(&region) {
                let _ = epoll::delete(&self.epoll, bell.as_fd());
            }
            self.relays.forget_region(region);
            said |= self.outbox.send(Report::Drained(region)).is_ok();
        }
        for outcome in outcomes {
            said |= self.outbox.send(Report::Relay(outcome)).is_ok();
        }
        if said {
            write_eventfd(self.told.as_fd());
        }
    }
}
