//! One run of a trial: hosts, a bottleneck, flows that begin within ten round trips, and what is seen of them at regular times.

use crate::contestant::{Contestant, Kind};
use crate::path::Path;
use crate::transcript::{Said, Way};
use base::limits::{RING_MAX, RING_MIN};
use base::{Duration, Instant, Seed};
use ccp_agent::Event;
use congestion::Algorithm as Law;
use link::LinkConfig;
use sim::load::{Connections, Job, Load};
use sim::topology::{Arm, Fabric, HostSetting, Member, PORT};
use sim::{AgentSetting, KeptDatagram, Mind};

/// Virtual time at which every run begins.
pub(crate) const BEGIN: Instant = Instant::from_ns(1_000_000_000);
/// Flows begin at random times within so many round trips.
const SPREAD: u64 = 10;
/// Looks at the flows of a run: one for each pixel or two of a plot.
const LOOKS: u64 = 1500;
/// Slots of the rings between a core and the slow path.
const RING_SLOTS: usize = 1024;
/// Bytes of each side's payload area of a host at least and at most: the rings of all its flows. Memory is taken as it is used.
const DATA_LEN: (u64, u64) = (512 << 20, 1 << 30);
/// Bytes of a flow's buffer at least, unless the setting names one: enough for most paths, so that their runs are as quick as they can be.
const BUFFER_LEAST: u64 = 1 << 20;

/// The flows of one contestant in a run.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What decides about them.
    pub contestant: Contestant,
    /// How many flows it has.
    pub flows: u32,
}

/// A run before it begins.
#[derive(Clone, Debug)]
pub struct RaceSetting {
    /// The bottleneck that all flows share.
    pub path: Path,
    /// What takes part, each on a host of its own.
    pub entries: Vec<Entry>,
    /// How long it lasts.
    pub time: Duration,
    /// Bytes of each flow's largest receive window, from `RING_MIN` to `RING_MAX`; `None`: [`RaceSetting::buffer`] chooses.
    pub buffer: Option<u32>,
    /// Time from a report until the agent's answer to it is in force.
    pub staleness: Duration,
    /// Seed of all random choices.
    pub seed: u64,
    /// Keep what flows and agents say to each other.
    pub keeps_datagrams: bool,
}

/// A flow at one time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// Congestion window, bytes; 0: the flow has not begun.
    pub cwnd: u32,
    /// Rate of the pacer, bytes per second; 0: it does not pace.
    pub rate: u64,
    /// Smoothed round-trip time, microseconds; 0 before the first.
    pub rtt_us: u32,
    /// Payload bytes that have arrived since the beginning.
    pub received: u64,
    /// Time during which nothing but the receiver's window held data back, since the beginning.
    pub window_bound: Duration,
}

/// A flow of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Flow {
    /// The index of its entry.
    pub entry: usize,
    /// The name in figures.
    pub name: String,
    /// When it began, from the beginning of the run.
    pub began: Duration,
    /// What was seen at each look.
    pub samples: Vec<Sample>,
    /// Payload bytes sent again.
    pub sent_again: u64,
    /// Number of retransmission timeouts.
    pub timeouts: u32,
}

/// A run that is over.
#[derive(Clone, Debug)]
pub struct Race {
    /// What was run, and how.
    pub setting: RaceSetting,
    /// Time between two looks.
    pub every: Duration,
    /// All flows, entry by entry.
    pub flows: Vec<Flow>,
    /// Packets in the bottleneck's queue at each look.
    pub queue: Vec<usize>,
    /// How long a packet that came to the bottleneck at that look would wait.
    pub waits: Vec<Duration>,
    /// Packets that the bottleneck has lost or dropped.
    pub dropped: u64,
    /// Packets that the bottleneck has marked.
    pub marked: u64,
    /// The logs of the agents, each line with the index of its entry.
    pub events: Vec<(usize, Event)>,
    /// Lines of these logs that found no room.
    pub events_lost: u64,
    /// What flows and agents said to each other, if it was to be kept.
    pub transcript: Vec<Said>,
}

impl RaceSetting {
    /// Runs it from beginning to end.
    #[must_use]
    pub fn run(&self) -> Race {
        let mut stage = Stage::new(self);
        let every = Duration::from_ns(self.time.as_ns().div_ceil(LOOKS).max(1));
        let (mut at, end) = (BEGIN, BEGIN.plus(self.time));
        while at.plus(every) <= end {
            at = at.plus(every);
            stage.run_until(at);
            stage.look(at);
        }
        stage.finish(self.clone(), every)
    }

    /// Bytes of each flow's largest receive window: a power of two, by default at least twice what a flow that fills line and queue has in
    /// flight. The rings of very many flows with long paths would not fit into memory, so theirs are shorter.
    #[must_use]
    pub fn buffer(&self) -> u32 {
        let flows = u64::from(self.flows()).max(1);
        let by_default = || {
            // A flow's receiver has one ring, and its sender one of twice the length.
            let most = (DATA_LEN.1 / 3 / flows).max(BUFFER_LEAST);
            self.path.buffer().clamp(BUFFER_LEAST, most)
        };
        let bytes = self.buffer.map_or_else(by_default, u64::from);
        let (least, most) = (u64::from(RING_MIN), u64::from(RING_MAX));
        bytes.clamp(least, most).next_power_of_two() as u32
    }

    fn flows(&self) -> u32 {
        self.entries.iter().map(|entry| entry.flows).sum()
    }

    /// A host of so many flows.
    fn host(&self, law: Law, flows: u32, agent: Option<AgentSetting>) -> HostSetting {
        let buffer = self.buffer();
        // While a ring grows, the one before it is read.
        let data_len = (4 * u64::from(buffer) * u64::from(flows)).clamp(DATA_LEN.0, DATA_LEN.1);
        let ring_slots = RING_SLOTS;
        HostSetting { flows, ring_slots, data_len, buffer: Some(buffer), agent, ..HostSetting::new(law) }
    }

    fn sender(&self, entry: &Entry) -> HostSetting {
        let law = match &entry.contestant.kind {
            Kind::BuiltIn(law) => *law,
            Kind::Agent(_) => Law::default(),
        };
        let agent = match &entry.contestant.kind {
            Kind::BuiltIn(_) => None,
            Kind::Agent(maker) => {
                let mind = Mind::Agent(maker.clone());
                let setting = AgentSetting::new(self.staleness, mind);
                Some(AgentSetting { keeps_datagrams: self.keeps_datagrams, ..setting })
            }
        };
        self.host(law, entry.flows, agent)
    }

    /// The receiver's own algorithm matters for the echo of marks only.
    fn receiver(&self) -> HostSetting {
        let laws = self.entries.iter().filter_map(|entry| match entry.contestant.kind {
            Kind::BuiltIn(law) => Some(law),
            Kind::Agent(_) => None,
        });
        let law = laws.into_iter().find(|law| law.wants_exact_echo()).unwrap_or_default();
        self.host(law, self.flows(), None)
    }
}

/// A flow that is looked at.
#[derive(Debug)]
struct Watched {
    sender: Member,
    number: u64,
    flow: Flow,
}

/// Hosts, links and flows of a run in progress.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) fabric: Fabric,
    watched: Vec<Watched>,
    queue: Vec<usize>,
    waits: Vec<Duration>,
}

impl Stage {
    pub(crate) fn new(setting: &RaceSetting) -> Self {
        let receiver =
            Arm { host: setting.receiver(), up: setting.path.back(), down: setting.path.link.clone() };
        let plain = LinkConfig::default();
        let sender =
            |entry: &Entry| Arm { host: setting.sender(entry), up: plain.clone(), down: plain.clone() };
        let arms: Vec<Arm> = std::iter::once(receiver).chain(setting.entries.iter().map(sender)).collect();
        let mut stage = Self {
            fabric: Fabric::star_of(&arms, setting.seed, BEGIN),
            watched: Vec::new(),
            queue: Vec::new(),
            waits: Vec::new(),
        };
        let members = stage.fabric.members.clone();
        stage.fabric.network.load(members[0].node, Load::new(Connections::Fresh).serving(PORT, 4096));
        let mut rng = Seed::new(setting.seed ^ 0x63_6370_2D74_7279);
        for (i, sender) in members[1..].iter().enumerate() {
            stage.begin(setting, i, *sender, &mut rng);
        }
        stage
    }

    /// Gives one sender its flows.
    fn begin(&mut self, setting: &RaceSetting, index: usize, sender: Member, rng: &mut Seed) {
        let entry = &setting.entries[index];
        let to = self.fabric.members[0].socket();
        let spread = SPREAD * setting.path.rtt.as_ns();
        let mut starts: Vec<Duration> =
            (0..entry.flows).map(|_| Duration::from_ns(rng.below(spread.max(1)))).collect();
        starts.sort();
        let mut jobs: Vec<Job> =
            starts.iter().map(|began| Job::new(BEGIN.plus(*began), to, u64::MAX)).collect();
        self.fabric.network.tally.enter(&mut jobs);
        for (i, (job, began)) in jobs.iter().zip(starts).enumerate() {
            let name = format!("{} {}", entry.contestant.name, i + 1);
            let flow = Flow { entry: index, name, began, samples: Vec::new(), sent_again: 0, timeouts: 0 };
            self.watched.push(Watched { sender, number: job.number, flow });
        }
        self.fabric.network.load(sender.node, Load::new(Connections::Fresh).sending(jobs));
    }

    fn run_until(&mut self, at: Instant) {
        self.fabric.network.run_until(at);
    }

    fn look(&mut self, at: Instant) {
        let Self { fabric, watched, queue, waits } = self;
        let receiver = fabric.members[0];
        let network = &mut fabric.network;
        let bottleneck = network.link(receiver.router, receiver.node);
        queue.push(bottleneck.map_or(0, |link| link.queued(at)));
        waits.push(bottleneck.map_or(Duration::ZERO, |link| link.wait(at)));
        for Watched { sender, number, flow } in watched {
            let received = network.tally.messages()[*number as usize].received;
            let seen = network.sight(sender.node, *number);
            let sample = Sample { cwnd: 0, rate: 0, rtt_us: 0, received, window_bound: Duration::ZERO };
            flow.samples.push(seen.map_or(sample, |seen| Sample {
                cwnd: seen.cwnd,
                rate: seen.pace_rate,
                rtt_us: seen.srtt_us,
                window_bound: seen.window_bound,
                ..sample
            }));
            if let Some(seen) = seen {
                (flow.sent_again, flow.timeouts) = (seen.retransmitted_bytes, seen.timeouts);
            }
        }
    }

    fn finish(mut self, setting: RaceSetting, every: Duration) -> Race {
        let members = self.fabric.members.clone();
        let network = &mut self.fabric.network;
        let counters = network.link(members[0].router, members[0].node).map(|link| *link.counters());
        let counters = counters.unwrap_or_default();
        let (mut events, mut events_lost, mut transcript) = (Vec::new(), 0, Vec::new());
        for (i, sender) in members[1..].iter().enumerate() {
            let host = network.machine(sender.node).and_then(|machine| machine.host());
            let Some(host) = host else { continue };
            let name = &setting.entries[i].contestant.name;
            transcript.extend(host.take_datagrams().into_iter().map(|kept| said(&kept, name)));
            let Some(agent) = host.agent() else { continue };
            events.extend(std::iter::from_fn(|| agent.poll_event()).map(|event| (i, event)));
            events_lost += agent.counters().events_lost;
        }
        Race {
            setting,
            every,
            flows: self.watched.into_iter().map(|watched| watched.flow).collect(),
            queue: self.queue,
            waits: self.waits,
            dropped: counters.dropped(),
            marked: counters.marked,
            events,
            events_lost,
            transcript,
        }
    }
}

fn said(kept: &KeptDatagram, agent: &str) -> Said {
    let way = if kept.is_to_agent { Way::ToAgent } else { Way::FromAgent };
    Said::new(kept.at.as_ns(), way, agent, &kept.bytes)
}
