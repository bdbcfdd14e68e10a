//! The user-space half: between the kernel's flows and agents. Drives `ccp::Endpoint` as the service does, with events of the kernel in place of
//! those of cores. It parses no messages and runs no programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use base::{Duration, Instant};
use ccp::{Command, Config, Endpoint, FlowId, NewFlow, Notice, Sender, Standing};
use ccp_vm::Program;
use ccp_wire::{Create, shown_address};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::agents::Agents;
use crate::kernel::{Kernel, KernelError};
use crate::layout::{Event, Opened, PROGRAMS_MAX, Reported, SLOTS_MAX, Settings, Slot};
use crate::rule::Rule;
use crate::status::{FlowStatus, Status};

/// Flows that begin later are moved here, and flows are told that this process lives, after so long.
pub const BEAT: Duration = Duration::from_ms(250);
/// A flow that has not been told for so long that this process lives goes back to its former algorithm.
pub const PATIENCE: Duration = Duration::from_ms(1500);
/// Every so many beats, flows with a lost end are looked for.
const SWEEP_BEATS: u64 = 8;

/// What a bridge is set up with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The name of the algorithm in the kernel: 1 to 15 letters, digits, `_` and `.`.
    pub name: String,
    /// Which flows of the host are moved; none: only those that choose the name by `TCP_CONGESTION`.
    pub rules: Vec<Rule>,
    /// The path of the socket that agents answer to.
    pub socket: PathBuf,
    /// The paths of agents, each with the names of the algorithms that it serves; none: all.
    pub agents: Vec<(PathBuf, Vec<String>)>,
    /// The endpoint's own configuration.
    pub endpoint: Config,
}

/// Why a bridge does not start, or stops.
#[derive(Debug)]
pub enum BridgeError {
    /// What the kernel refused.
    Kernel(KernelError),
    /// What went wrong at the agents' socket.
    Socket(io::Error),
}

impl fmt::Display for BridgeError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(why) => why.fmt(to),
            Self::Socket(why) => write!(to, "the agents' socket: {why}"),
        }
    }
}

impl std::error::Error for BridgeError {}

impl From<KernelError> for BridgeError {
    fn from(why: KernelError) -> Self {
        Self::Kernel(why)
    }
}

impl From<io::Error> for BridgeError {
    fn from(why: io::Error) -> Self {
        Self::Socket(why)
    }
}

/// A live flow of the kernel.
#[derive(Debug)]
struct Live {
    place: u32,
    slot: Slot,
    /// Reports that came from the kernel.
    reports: u64,
    opened: Opened,
}

/// The user-space half, up and working.
#[derive(Debug)]
pub struct Bridge {
    kernel: Kernel,
    agents: Agents,
    endpoint: Endpoint,
    addresses: Vec<Vec<u8>>,
    settings: Settings,
    live: BTreeMap<u64, Live>,
    /// Programs in the kernel by their number, from 1 on.
    programs: BTreeMap<u32, Arc<Program>>,
    next_beat: Instant,
    beats: u64,
    notices: Vec<String>,
}

impl Bridge {
    /// Loads the programs, binds the socket, and moves the flows that the rules name. Flows that a killed process has left are returned first.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn up(setup: &Setup) -> Result<Self, BridgeError> {
        let now = now();
        let by_default =
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
        let settings = Settings {
            alive_until_us: now.plus(PATIENCE).as_us(),
            start_us: now.as_us(),
            is_returning: true,
            own_name: setup.name.clone(),
            default_name: by_default.trim().to_owned(),
            rules: setup.rules.clone(),
        };
        let kernel = Kernel::load(&settings)?;
        kernel.move_flows()?;
        let mut endpoint = Endpoint::new(setup.endpoint.clone());
        let mut addresses = Vec::new();
        for (path, names) in &setup.agents {
            let address = path.as_os_str().as_encoded_bytes().to_vec();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            endpoint.add_agent(now, &address, &names);
            addresses.push(address);
        }
        let mut bridge = Self {
            kernel,
            agents: Agents::bind(&setup.socket)?,
            endpoint,
            addresses,
            settings: Settings { is_returning: false, ..settings },
            live: BTreeMap::new(),
            programs: BTreeMap::new(),
            next_beat: now,
            beats: 0,
            notices: Vec::new(),
        };
        bridge.beat(now)?;
        Ok(bridge)
    }

    /// Waits until there is something to do, does it, and returns. Returns at once when `others` (descriptors that the caller waits for) has
    /// one that is readable.
    ///
    /// # Errors
    /// What the kernel refuses; the bridge should go down then.
    pub fn turn(&mut self, others: &[BorrowedFd<'_>]) -> Result<(), BridgeError> {
        let dead = self.wait(others)?;
        let now = now();
        for address in dead {
            self.agents.watch(&address, None);
            self.endpoint.agent_died(now, &address);
        }
        while let Some(datagram) = self.agents.receive()? {
            let sender = Sender { address: &datagram.address, pid: datagram.pid, uid: datagram.uid };
            self.endpoint.receive(now, sender, &datagram.bytes);
        }
        for event in self.kernel.events()? {
            self.hear(event)?;
        }
        if self.next_beat <= now {
            self.beat(now)?;
        }
        self.drive(now)
    }

    /// Gives all flows of this namespace back, and takes the algorithm away. Flows of other namespaces leave at their next acknowledgement.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn down(mut self) -> Result<(), BridgeError> {
        self.settings.is_returning = true;
        self.settings.alive_until_us = 0;
        self.kernel.set(&self.settings)?;
        Ok(self.kernel.move_flows()?)
    }

    /// What people should hear of, since the last call.
    pub fn notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// The flows and what decides about each.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn status(&self) -> Result<Status, BridgeError> {
        let mut flows = Vec::new();
        for (id, live) in &self.live {
            let Some(progress) = self.kernel.progress(live.place)?.filter(|progress| progress.flow == *id)
            else {
                continue;
            };
            let standing = self.endpoint.standing(FlowId(*id));
            flows.push(FlowStatus {
                local: live.opened.own,
                peer: live.opened.peer,
                standing: standing.map_or("no room for more flows".to_owned(), describe),
                cwnd: progress.cwnd,
                rate: progress.rate,
                rtt_us: progress.rtt_us,
                runs: progress.runs,
                faults: progress.faults,
                clamps: progress.clamps,
                reports: live.reports,
                commands: live.slot.seq(),
                commands_applied: progress.applied,
            });
        }
        Ok(Status::new(&self.settings.own_name, &self.endpoint, &self.addresses, flows))
    }

    /// Waits for anything; the addresses of agents with processes that have ended.
    fn wait(&self, others: &[BorrowedFd<'_>]) -> io::Result<Vec<Vec<u8>>> {
        let until = self.next_beat.min(self.endpoint.next_deadline()).since(now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: until.as_ns().min(BEAT.as_ns()) as i64 };
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let (addresses, ends): (Vec<&[u8]>, Vec<BorrowedFd<'_>>) = self.agents.ends().unzip();
        let mut fds: Vec<PollFd<'_>> = ends.into_iter().map(readable).collect();
        fds.extend(
            [self.kernel.events_fd(), self.agents.as_fd()]
                .into_iter()
                .chain(others.iter().copied())
                .map(readable),
        );
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
        let ended = addresses.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ended.map(|(address, _)| address.to_vec()).collect())
    }

    /// Flows live on, new ones are moved here, and lost ones are looked for now and then.
    fn beat(&mut self, now: Instant) -> Result<(), BridgeError> {
        self.next_beat = now.plus(BEAT);
        self.settings.alive_until_us = now.plus(PATIENCE).as_us();
        self.kernel.set(&self.settings)?;
        if !self.settings.rules.is_empty() {
            self.kernel.move_flows()?;
        }
        self.beats += 1;
        if self.beats.is_multiple_of(SWEEP_BEATS) {
            let mut lost = Vec::new();
            for (id, live) in &self.live {
                if self.kernel.progress(live.place)?.is_none_or(|progress| progress.flow != *id) {
                    lost.push(*id);
                }
            }
            lost.into_iter().for_each(|id| self.close(id));
        }
        Ok(())
    }

    /// Takes one event of the kernel.
    fn hear(&mut self, event: Event) -> Result<(), BridgeError> {
        match event {
            Event::Open(opened) => self.open(opened)?,
            Event::Close { flow } => self.close(flow),
            Event::Report(report) => self.report(&report)?,
        }
        Ok(())
    }

    fn open(&mut self, opened: Opened) -> Result<(), BridgeError> {
        let (source, destination) = (shown_address(opened.own), shown_address(opened.peer));
        let new = NewFlow {
            id: FlowId(opened.flow),
            uid: opened.uid,
            rtt: Duration::from_us(u64::from(opened.rtt_us)),
            rate_max: opened.rate_max,
            create: Create::new(opened.cwnd, opened.mss, source, destination),
        };
        let live = Live { place: opened.slot, slot: Slot::of(opened.flow), reports: 0, opened };
        if live.place >= SLOTS_MAX || self.live.contains_key(&live.opened.flow) {
            return Ok(());
        }
        self.kernel.set_slot(live.place, &live.slot)?;
        self.live.insert(live.opened.flow, live);
        // A flow beyond the limit stays on the default algorithm.
        if self.endpoint.open(new).is_err() {
            self.notices
                .push("there are more flows than configured; one stays on the default algorithm".to_owned());
        }
        Ok(())
    }

    fn close(&mut self, flow: u64) {
        if self.live.remove(&flow).is_some() {
            self.endpoint.close(FlowId(flow));
        }
    }

    fn report(&mut self, report: &Reported) -> Result<(), BridgeError> {
        let Some(live) = self.live.get_mut(&report.flow) else { return Ok(()) };
        live.reports += 1;
        let rtt = Duration::from_us(u64::from(report.rtt_us));
        let id = FlowId(report.flow);
        self.endpoint.clamped(id, u64::from(report.clamps));
        if self.endpoint.report(id, report.number, rtt, &report.values).is_err() {
            // No agent waits for it: the flow may go on to the next.
            live.slot.accept(live.reports);
            self.kernel.set_slot(live.place, &live.slot)?;
        }
        Ok(())
    }

    /// Sends what may go to agents, and carries out what the endpoint says.
    fn drive(&mut self, now: Instant) -> Result<(), BridgeError> {
        let socket = self.agents.as_fd();
        self.endpoint.drive(now, &mut |address, datagram| Agents::send(socket, address, datagram));
        while let Some(command) = self.endpoint.poll_command() {
            self.carry_out(command)?;
        }
        while let Some(notice) = self.endpoint.poll_notice() {
            if !matches!(notice, Notice::Clamped { .. }) {
                self.notices.push(notice.to_string());
            }
        }
        for address in &self.addresses {
            self.agents.watch(address, self.endpoint.process_of(address));
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command) -> Result<(), BridgeError> {
        let (Command::Program { flow, .. }
        | Command::Change { flow, .. }
        | Command::Accept { flow }
        | Command::Default { flow, .. }) = command;
        let number = match &command {
            Command::Program { program, .. } => self.number_of(program)?,
            _ => None,
        };
        let Some(live) = self.live.get_mut(&flow.0) else { return Ok(()) };
        match command {
            Command::Program { number: theirs, changes, bounds, .. } => match number {
                Some(number) => live.slot.begin(number, theirs, &bounds, &changes),
                None => self.notices.push("the kernel has no room for one more program in use".to_owned()),
            },
            Command::Change { changes, .. } => live.slot.change(&changes),
            Command::Accept { .. } => live.slot.accept(live.reports),
            Command::Default { .. } => {
                live.slot.end_program();
                live.slot.accept(live.reports);
            }
        }
        Ok(self.kernel.set_slot(live.place, &live.slot)?)
    }

    /// The number of a program in the kernel, which is given to it now if it has none; `None`: all numbers are in use.
    fn number_of(&mut self, program: &Arc<Program>) -> Result<Option<u32>, BridgeError> {
        let known = self.programs.iter().find(|(_, known)| Arc::ptr_eq(known, program));
        if let Some((number, _)) = known {
            return Ok(Some(*number));
        }
        if self.programs.len() + 1 >= PROGRAMS_MAX as usize {
            self.forget_unused()?;
        }
        let Some(number) = (1..PROGRAMS_MAX).find(|number| !self.programs.contains_key(number)) else {
            return Ok(None);
        };
        self.kernel.set_program(number, program)?;
        self.programs.insert(number, Arc::clone(program));
        Ok(Some(number))
    }

    /// Frees the numbers of programs that no flow runs or should run.
    fn forget_unused(&mut self) -> Result<(), BridgeError> {
        let mut used = BTreeSet::new();
        for live in self.live.values() {
            used.insert(live.slot.program());
            used.extend(self.kernel.progress(live.place)?.map(|progress| progress.program as u32));
        }
        self.programs.retain(|number, _| used.contains(number));
        Ok(())
    }
}

/// Where a flow stands, in words.
fn describe(standing: Standing) -> String {
    match standing {
        Standing::NoAgent => "default: no agent is there".to_owned(),
        Standing::OtherUser => "default: the agent serves other users".to_owned(),
        Standing::NoProgram => "default: the agent has chosen no program".to_owned(),
        Standing::Running(program) => format!("program {program}"),
        Standing::FellBack(reason) => format!("default: fell back ({reason:?})"),
    }
}

/// The kernel's monotonic clock, which its flows see, too.
fn now() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_ns(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
