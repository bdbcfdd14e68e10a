//! Live flows get another of three algorithms from their agent each 100 ms: no byte is wrong, and no flow stands still for longer than one
//! retransmission timeout.

use base::{Duration, Instant, Seed};
use ccp_agent::{Agent, Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report};
use ccp_algorithms::{cubic::Cubic, reno::Reno, vegas::Vegas};
use congestion::Algorithm as BuiltIn;
use link::LinkConfig;
use sim::apps::Profile;
use sim::load::{Connections, Job, Load};
use sim::scenario::{Run, Setting};
use sim::topology::{Fabric, HostSetting, PORT};
use sim::{AgentMaker, AgentSetting, Mind, Sight};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const SEEDS: u64 = 10;
const FLOWS: u64 = 3;
const SWAP: Duration = Duration::from_ms(100);
const BEGIN: Instant = Instant::from_ns(1_000_000_000);
const LOOK: Duration = Duration::from_ms(5);

type Swapped = Arc<Mutex<[u64; 3]>>;
/// The mean window of the flows, bytes: what an algorithm that takes one over is told of it. 0: as it was at the flow's begin.
type Window = Arc<AtomicU64>;
type Three = [Box<dyn Algorithm + Send>; 3];

fn three() -> Three {
    [Box::new(Reno), Box::new(Cubic), Box::new(Vegas)]
}

/// The algorithm: each flow has one of three, and changes to another at each turn of its timer.
struct Swaps {
    algorithms: Arc<Mutex<Three>>,
    rng: Arc<Mutex<Seed>>,
    swapped: Swapped,
    window: Window,
}

struct SwapsFlow {
    datapath: Datapath,
    info: FlowInfo,
    algorithms: Arc<Mutex<Three>>,
    rng: Arc<Mutex<Seed>>,
    swapped: Swapped,
    window: Window,
    present: usize,
    flow: Box<dyn Flow>,
}

impl Algorithm for Swaps {
    fn name(&self) -> &str {
        "swaps"
    }

    fn programs(&self) -> Vec<(String, String)> {
        three().iter().flat_map(|algorithm| algorithm.programs()).collect()
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        let flow = self.algorithms.lock().unwrap()[0].new_flow(datapath.clone(), info)?;
        // Flows swap at different times.
        let first = self.rng.lock().unwrap().below(SWAP.as_us());
        datapath.set_timer(Duration::from_us(first))?;
        Ok(Box::new(SwapsFlow {
            datapath,
            info: info.clone(),
            algorithms: Arc::clone(&self.algorithms),
            rng: Arc::clone(&self.rng),
            swapped: Arc::clone(&self.swapped),
            window: Arc::clone(&self.window),
            present: 0,
            flow,
        }))
    }
}

impl Flow for SwapsFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        self.flow.on_report(report)
    }

    fn on_timer(&mut self) -> Outcome {
        let window = self.window.load(Ordering::Relaxed);
        if window > 0 {
            self.info.cwnd = window;
        }
        self.present = (self.present + 1 + self.rng.lock().unwrap().below(2) as usize) % 3;
        self.flow =
            self.algorithms.lock().unwrap()[self.present].new_flow(self.datapath.clone(), &self.info)?;
        self.swapped.lock().unwrap()[self.present] += 1;
        self.datapath.set_timer(SWAP)?;
        Ok(())
    }
}

/// An agent, and how often its flows have come to each of the three.
fn agent(seed: u64, window: &Window) -> (AgentSetting, Swapped) {
    let swapped = Swapped::default();
    let (counts, window) = (Arc::clone(&swapped), Arc::clone(window));
    let maker = AgentMaker::new(move || {
        let mut agent = Agent::new();
        let (algorithms, rng) = (Arc::new(Mutex::new(three())), Arc::new(Mutex::new(Seed::new(seed))));
        let (swapped, window) = (Arc::clone(&counts), Arc::clone(&window));
        agent.add(Swaps { algorithms, rng, swapped, window }).unwrap();
        agent
    });
    (AgentSetting::new(Duration::from_us(20), Mind::Agent(maker)), swapped)
}

/// 24 Mbit/s, a round trip of 20 ms, a queue of one bandwidth-delay product, and a loss in each thousand.
fn link() -> LinkConfig {
    "rate=24mbit,delay=10ms,queue=40p,loss=0.1%".parse().unwrap()
}

#[test]
fn flows_that_swap_carry_every_byte_right() {
    for seed in 1..=SEEDS {
        // Each swap is a slow start of its own: the harder case for the repairs.
        let (setting, swapped) = agent(seed, &Window::default());
        let mut pair = Setting::pair(seed, &link(), Profile::Bulk(3_000_000), FLOWS);
        pair.machines[1].agent = Some(setting);
        let report = Run::new(pair).finish();
        assert_eq!(report.failure, None, "seed {seed}");
        let swapped = *swapped.lock().unwrap();
        assert!(swapped.iter().all(|count| *count > 10), "seed {seed}: {swapped:?}");
    }
}

/// What is seen of a flow.
#[derive(Clone, Copy)]
struct Progress {
    /// Bytes that its receiver has in order.
    received: u64,
    /// When `received` grew last.
    moved_at: Instant,
}

impl Progress {
    const NEW: Self = Self { received: 0, moved_at: BEGIN };

    /// Judges what is seen at `at`: the receiver waits for one retransmission timeout at most, and the time of a look.
    fn look(&mut self, at: Instant, received: u64, sight: Option<Sight>) -> Result<(), String> {
        let Some(seen) = sight else {
            // Not connected yet: what repairs a lost SYN is no matter of the flow's.
            self.moved_at = at;
            return Ok(());
        };
        if received > self.received {
            (self.received, self.moved_at) = (received, at);
        }
        if at.since(self.moved_at) > seen.rto.plus(LOOK) {
            return Err(format!("nothing new since {:?}: {seen:?}", self.moved_at));
        }
        Ok(())
    }
}

/// Looks each 5 ms at what has arrived of each flow. The algorithm that takes a flow over is told its window, as a datapath tells it: told the
/// window of a new flow instead, each would start slowly again, and half of what a slow start sends is lost here (stalls of 1.6 timeouts).
#[test]
fn no_flow_that_swaps_stands_still_for_longer_than_a_timeout() {
    for seed in 1..=SEEDS {
        let receiver = HostSetting::new(BuiltIn::Cubic);
        let window = Window::default();
        let (setting, swapped) = agent(seed, &window);
        let sender = HostSetting { agent: Some(setting), ..receiver.clone() };
        let mut fabric = Fabric::star(&[receiver, sender], &link(), seed, BEGIN);
        let (to, from) = (fabric.members[0], fabric.members[1]);
        let network = &mut fabric.network;
        network.load(to.node, Load::new(Connections::Fresh).serving(PORT, 16));
        let mut jobs: Vec<Job> = (0..FLOWS).map(|_| Job::new(BEGIN, to.socket(), u64::MAX)).collect();
        network.tally.enter(&mut jobs);
        network.load(from.node, Load::new(Connections::Fresh).sending(jobs));
        let (mut at, end) = (BEGIN, BEGIN.plus(Duration::from_secs(6)));
        let mut flows = vec![Progress::NEW; FLOWS as usize];
        while at < end {
            at = at.plus(LOOK);
            network.run_until(at);
            let mut windows = 0;
            for (number, flow) in flows.iter_mut().enumerate() {
                let received = network.tally.messages()[number].received;
                let sight = network.sight(from.node, number as u64);
                windows += sight.map_or(0, |seen| u64::from(seen.cwnd));
                if let Err(what) = flow.look(at, received, sight) {
                    panic!("seed {seed}, flow {number} at {at:?}: {what}");
                }
            }
            window.store(windows / FLOWS, Ordering::Relaxed);
        }
        let total: u64 = flows.iter().map(|flow| flow.received).sum();
        let swapped = *swapped.lock().unwrap();
        assert!(swapped.iter().sum::<u64>() > 120, "seed {seed}: {swapped:?}");
        assert!(total > 24_000_000 / 8 * 6 / 2, "seed {seed}: {total} bytes in six seconds");
    }
}
