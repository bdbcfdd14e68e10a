//! The processors of a host in virtual time: what a packet costs, how long cores are busy, what other programs take. With them runs the service's
//! own state machine (crate `elastic`), which has cores come and go with the load.

use crate::host::Host;
use base::{Duration, Instant};
use elastic::load::{LoadMeter, Loads};
use elastic::scaler::Why;
use elastic::{Elastic, Machine, Past, Room};
use fastpath::{Core, Counters};
use flow::FlowMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use wire::FourTuple;

/// Time between two looks at idle times, and between two at affinity and pressure: as often as the service looks.
const IDLE_LOOK: Duration = Duration::from_ms(100);
const SLOW_LOOK: Duration = Duration::from_secs(1);
/// Least time between two changes of the number of cores, unless processors are taken away.
const PAUSE: Duration = Duration::from_ms(100);
/// Time until a core that brought nothing is tried again: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Time after which no core serves without a processor: a look at the affinity, and the moves.
const LEAVES_WITHIN: Duration = Duration::from_ms(1_500);
/// The same where a core was stopped: its moves are given up, and tried again after a second.
const LEAVES_LATE: Duration = Duration::from_secs(6);

/// What a host's processors are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessorSetting {
    /// Time that a core needs for a packet received and for a segment sent, each.
    pub cost: Duration,
    /// Number of processors that the cores may use at first.
    pub allowed: u8,
    /// So many cores do useful work: with more, each is slower by as much, as where memory or the port is the limit.
    pub useful: u8,
}

/// What other programs leave of the machine: thousandths of processors that they use, percent of time in which one waits, processors allowed.
#[derive(Debug)]
struct Given {
    others: AtomicU32,
    pressure: AtomicU32,
    allowed: AtomicU32,
}

/// The machine that the state machine looks at.
#[derive(Debug)]
struct Virtual {
    given: Arc<Given>,
    loads: Arc<Loads>,
    /// Time and busy time of all cores at the last look at idle times.
    idle: Option<(Instant, Duration)>,
    slow_at: Option<Instant>,
    room: Room,
}

impl Machine for Virtual {
    fn look(&mut self, now: Instant) -> Room {
        if self.slow_at.is_none_or(|at| SLOW_LOOK <= now.since(at)) {
            self.slow_at = Some(now);
            self.room.pressure = self.given.pressure.load(Relaxed);
            self.room.allowed = self.given.allowed.load(Relaxed) as u8;
        }
        if self.idle.is_none_or(|(at, _)| IDLE_LOOK <= now.since(at)) {
            let busy = self.loads.busy().into_iter().fold(Duration::ZERO, Duration::plus);
            let last = self.idle.replace((now, busy));
            // A reading that is old tells of another time.
            let last = last.filter(|(at, _)| now.since(*at) <= SLOW_LOOK.times(2));
            let own = last.map(|(at, before)| {
                let took = busy.as_ns().saturating_sub(before.as_ns());
                (took * 1_000 / now.since(at).as_ns().max(1)) as u32
            });
            let all = self.given.allowed.load(Relaxed) * 1_000;
            let others = self.given.others.load(Relaxed);
            self.room.spare = own.map_or(0, |own| all.saturating_sub(own).saturating_sub(others));
        }
        self.room
    }

    fn allowed(&self) -> u8 {
        self.room.allowed
    }
}

/// The processors of a host, and the state machine over them.
#[derive(Debug)]
pub(crate) struct Processors {
    setting: ProcessorSetting,
    pub(crate) elastic: Elastic,
    loads: Arc<Loads>,
    given: Arc<Given>,
    /// For each core: its account, and its count of packets and segments when its round began.
    meters: Vec<(LoadMeter, u64)>,
    /// When processors were taken away last.
    taken_at: Instant,
    /// A core was stopped.
    was_stopped: bool,
    /// A core of the next move is to be stopped: the old one, or the new one, and for how long.
    stop_mover: Option<(bool, Duration)>,
    /// All changes since the beginning.
    changes: Vec<Past>,
    /// What must not have happened.
    fault: Option<String>,
    /// What the old core of the move under way had in its queue when the port was steered.
    yielding: Option<Yielding>,
    /// Longest time from the end of that until the new core handled what it had parked.
    held_most: Duration,
}

/// The queue of a core that is to yield groups, and what the other core has parked.
#[derive(Clone, Copy, Debug)]
struct Yielding {
    core: usize,
    to: usize,
    /// The core's count of packets when it has handled all of them.
    packets: u64,
    /// When it has handled them; `None`: not yet.
    done_at: Option<Instant>,
    /// The other core has parked a frame.
    has_parked: bool,
}

fn work(counters: &Counters) -> u64 {
    counters.packets + counters.segments_out
}

impl Processors {
    pub(crate) fn new(cores: u8, setting: ProcessorSetting) -> Self {
        let loads = Arc::new(Loads::new(usize::from(cores)));
        let given = Arc::new(Given {
            others: AtomicU32::new(0),
            pressure: AtomicU32::new(0),
            allowed: AtomicU32::new(u32::from(setting.allowed)),
        });
        let machine = Virtual {
            given: given.clone(),
            loads: loads.clone(),
            idle: None,
            slow_at: None,
            room: Room { spare: 0, pressure: 0, allowed: setting.allowed },
        };
        Self {
            setting,
            elastic: Elastic::new(cores, 1, true, loads.clone(), Box::new(machine)),
            loads,
            given,
            meters: (0..cores).map(|core| (LoadMeter::new(core), 0)).collect(),
            taken_at: Instant::ZERO,
            was_stopped: false,
            stop_mover: None,
            changes: Vec::new(),
            fault: None,
            yielding: None,
            held_most: Duration::ZERO,
        }
    }

    /// A core begins a round.
    pub(crate) fn begin(&mut self, core: usize, now: Instant, counters: &Counters) {
        let (meter, before) = &mut self.meters[core];
        *before = work(counters);
        // The control thread runs in this very round: nothing needs to wake it.
        let _ = meter.begin(now, *before, &self.loads);
    }

    /// A core has done what it found, and has so many frames parked now. Returns until when it is busy with that.
    pub(crate) fn end(&mut self, index: usize, now: Instant, core: &Core, is_busy: bool) -> Instant {
        let counters = core.counters();
        let (meter, before) = &mut self.meters[index];
        let done = work(counters) - *before;
        if done == 0 && !is_busy {
            meter.idle();
        }
        // Cores that have no processor of their own, or that bring nothing, slow all down.
        let serving = u64::from(self.elastic.serving());
        let real = u64::from(self.setting.useful).min(u64::from(self.given.allowed.load(Relaxed))).max(1);
        let time = self.setting.cost.as_ns() * done * serving.max(real) / real;
        let until = now.plus(Duration::from_ns(time));
        if let Some(yielding) = &mut self.yielding {
            if yielding.core == index && yielding.packets <= counters.packets {
                yielding.done_at.get_or_insert(until);
            }
            let parked = core.parked() > 0;
            if yielding.to == index && std::mem::replace(&mut yielding.has_parked, parked) && !parked {
                // The round that ends here has handled them.
                let held = yielding.done_at.map_or(Duration::ZERO, |at| now.since(at));
                self.held_most = self.held_most.max(held);
            }
        }
        until
    }

    fn note_change(&mut self) {
        if self.elastic.take_news().is_some() {
            self.changes.extend(self.elastic.past().next().copied());
        }
        if let Some(refusal) = self.elastic.take_refusal() {
            self.fault = Some(format!("a move that was planned is refused: {refusal}"));
        }
    }

    /// The port is steered for the move under way, by which the old core yields groups. It is busy until then, and so many frames wait for it.
    pub(crate) fn begin_yield(
        &mut self,
        core: usize,
        counters: &Counters,
        busy_until: Instant,
        frames: usize,
    ) {
        let done_at = (frames == 0).then_some(busy_until);
        let to = self.elastic.moving().map_or(core, |step| usize::from(step.to));
        let packets = counters.packets + frames as u64;
        self.yielding = Some(Yielding { core, to, packets, done_at, has_parked: false });
    }

    /// Number of processors allowed, and whether the cores had time to follow.
    fn check_bounds(&self, now: Instant) -> Result<(), String> {
        let (serving, most) = (self.elastic.serving(), self.meters.len());
        if !(1..=most).contains(&usize::from(serving)) {
            return Err(format!("{serving} cores of {most} serve"));
        }
        let allowed = self.given.allowed.load(Relaxed) as u8;
        let time = if self.was_stopped { LEAVES_LATE } else { LEAVES_WITHIN };
        if allowed < serving && time < now.since(self.taken_at) {
            return Err(format!("{serving} cores serve on {allowed} processors"));
        }
        Ok(())
    }

    /// Changes are steps of one core, apart, and what brought nothing is tried again ever later.
    fn check_changes(&self) -> Result<(), String> {
        let (mut cores, mut retry) = (1u8, RETRY.0);
        let mut last: Option<Past> = None;
        for past in &self.changes {
            let (Past { at, change }, before) = (*past, last);
            let say = |what: &str| Err(format!("{what}: {:?}", self.changes));
            if change.why == Why::Asked {
                (cores, last) = (change.cores, None);
                continue;
            }
            if cores.abs_diff(change.cores) != 1 && change.why != Why::FewerProcessors {
                return say("several cores at once");
            }
            let Some(before) = before else {
                (cores, last) = (change.cores, Some(*past));
                continue;
            };
            let time = at.since(before.at);
            if time < PAUSE && change.why != Why::FewerProcessors {
                return say("two changes too soon");
            }
            match (before.change.why, change.why) {
                (Why::BroughtNothing, Why::Busy) if time < retry => return say("tried again too soon"),
                (Why::BroughtNothing, Why::Busy) => retry = retry.times(2).min(RETRY.1),
                (Why::Busy, Why::BroughtNothing) => {}
                _ => retry = RETRY.0,
            }
            (cores, last) = (change.cores, Some(*past));
        }
        Ok(())
    }
}

impl Host {
    /// Lets the state machine look at the load, and begin moves, when it is due. True when it did.
    pub(crate) fn scale(&mut self, now: Instant) -> bool {
        let Some(processors) = &mut self.processors else { return false };
        processors.elastic.hear_load(now, &mut self.slow);
        let is_due = processors.elastic.due().is_some_and(|at| at <= now);
        if is_due {
            processors.elastic.handle_timers(now, &mut self.slow);
        }
        processors.note_change();
        self.stop_if_wanted(false);
        is_due
    }

    /// Stops the old core of a move that is about to yield, or the new one that is about to expect groups, if that was asked for.
    pub(crate) fn stop_if_wanted(&mut self, yields: bool) {
        let Some(processors) = &mut self.processors else { return };
        let Some(step) = processors.elastic.moving().copied() else { return };
        if let Some((_, time)) = processors.stop_mover.take_if(|(which, _)| *which == yields) {
            self.stop_core(usize::from(if yields { step.from } else { step.to }), time);
        }
    }

    /// Has a core of the next move be stopped for `time`: the old one before it yields, or the new one before it expects the groups.
    pub fn stop_mover(&mut self, yields: bool, time: Duration) {
        self.processors.iter_mut().for_each(|processors| processors.stop_mover = Some((yields, time)));
    }

    /// Has so many cores serve from now on; `None`: as the load says.
    pub fn set_cores(&mut self, cores: Option<u8>) {
        let now = self.now;
        let Some(processors) = &mut self.processors else { return };
        processors.elastic.set_cores(now, &mut self.slow, cores);
        processors.note_change();
        self.touch();
    }

    /// A move of groups is over; 0: it was given up.
    pub(crate) fn on_move_over(&mut self, groups: usize) {
        let now = self.now;
        self.steering.iter_mut().for_each(|steering| steering.count(groups));
        let Some(processors) = &mut self.processors else { return };
        processors.yielding = None;
        processors.elastic.move_over(now, &mut self.slow, groups);
        processors.note_change();
        self.stop_if_wanted(false);
    }

    /// From now on the cores may use so many processors, as after a change of affinity.
    pub fn allow_processors(&mut self, count: u8) {
        let Some(processors) = &mut self.processors else { return };
        let before = processors.given.allowed.swap(u32::from(count), Relaxed);
        if u32::from(count) < before {
            processors.taken_at = self.now;
        }
        self.touch();
    }

    /// From now on other programs use so many thousandths of processors, and one waits for so many percent of the time.
    pub fn let_others(&mut self, thousandths: u32, pressure: u32) {
        let Some(processors) = &self.processors else { return };
        processors.given.others.store(thousandths, Relaxed);
        processors.given.pressure.store(pressure, Relaxed);
        self.touch();
    }

    pub(crate) fn note_stop(&mut self) {
        self.processors.iter_mut().for_each(|processors| processors.was_stopped = true);
    }

    /// The changes of the number of cores so far, oldest first; empty without [`ProcessorSetting`].
    #[must_use]
    pub fn changes(&self) -> &[Past] {
        self.processors.as_deref().map_or(&[], |processors| &processors.changes)
    }

    /// Number of cores that are to serve.
    #[must_use]
    pub fn serving(&self) -> u8 {
        self.processors.as_deref().map_or(self.lanes.len() as u8, |processors| processors.elastic.serving())
    }

    /// True while groups move, or are to be moved.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.processors.as_deref().is_some_and(|processors| processors.elastic.moves_left() > 0)
    }

    /// Longest time for which a move held frames of its groups back, beyond what the old core still had to do.
    #[must_use]
    pub fn held_most(&self) -> Duration {
        self.processors.as_deref().map_or(Duration::ZERO, |processors| processors.held_most)
    }

    /// The number of cores is within its bounds and did not flap; when no group is to move, cores that serve have all groups and all flows.
    pub(crate) fn check_processors(&self) -> Result<(), String> {
        let Some(processors) = &self.processors else { return Ok(()) };
        processors.fault.clone().map_or(Ok(()), Err)?;
        processors.check_bounds(self.now)?;
        processors.check_changes()?;
        if processors.elastic.moves_left() > 0 {
            return Ok(());
        }
        let (table, serving) = (self.slow.group_cores(), processors.elastic.serving());
        if let Some(group) = table.iter().position(|core| serving <= *core) {
            return Err(format!("group {group} is at core {}, but {serving} serve", table[group]));
        }
        let mut found = Ok(());
        self.slow.for_each_socket(|socket| {
            let (Some(flow), Some(remote)) = (socket.flow, socket.remote) else { return };
            let Some(mut guard) = self.slow.flows().lock_briefly(flow) else { return };
            let FlowMut { rx, .. } = guard.parts();
            let core = table[usize::from(FourTuple { src: socket.local, dst: remote }.group())];
            if rx.core != core {
                found = Err(format!("a flow is at core {}, its group at {core}", rx.core));
            }
        });
        found
    }
}
